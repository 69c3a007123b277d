"""Sending what is said here to the log, from a thread of its own."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field

from suffixspec_index.errors import InputError, LogClosedError, LogError, LogUnavailableError
from suffixspec_index.log.base import Record, RecordKind, SequenceLog
from suffixspec_index.namespaces import NamespaceKey
from suffixspec_index.sharing.backoff import Backoff

_OVERHEAD = 200  # bytes of a waiting record beside its tokens, roughly
_BATCH_RECORDS = 1024
_BATCH_BYTES = 1 << 20


@dataclass(slots=True)
class Spool:
    """What of one namespace waits to be sent, oldest first."""

    waiting: deque[tuple[int, Record]] = field(default_factory=deque)  # (order of coming, record)
    sending: int = 0  # records in an append that is under way
    bytes: int = 0
    dropped: int = 0
    dropped_tokens: int = 0
    sent: int = 0
    error: str | None = None

    @property
    def unsent(self) -> int:
        """Records that are not acknowledged."""
        return len(self.waiting) + self.sending


class Publisher:
    """Takes records without ever blocking, and appends them to a log in batches.

    Where the log does not take them they wait in a spool of bounded size; the oldest are dropped
    first, whichever namespace they belong to, and counted.

    Args:
        log: where they go.
        spool_bytes: bound of what waits, of all namespaces together. One batch that is being sent
            comes on top: it must not push out what is newer.
        linger: seconds to wait for more before a batch is sent.
    """

    def __init__(self, log: SequenceLog, *, spool_bytes: int, linger: float) -> None:
        self.log = log
        self.error: str | None = None
        """Why the last attempt failed; ``None``: it did not."""
        self._most = spool_bytes
        self._linger = linger
        self._lock = threading.Lock()
        self._work = threading.Event()
        self._idle = threading.Condition(self._lock)
        self._spools: dict[NamespaceKey, Spool] = {}
        self._bytes = 0
        self._order = 0
        self._stopping = threading.Event()
        self._backoff = Backoff()
        self._thread = threading.Thread(target=self._run, name="suffixspec-publisher", daemon=True)
        self._thread.start()

    def put(self, key: NamespaceKey, record: Record) -> None:
        """Take a record; a few microseconds, whatever the log does."""
        with self._lock:
            spool = self._spools.get(key)
            if spool is None:
                spool = self._spools[key] = Spool()
            self._order += 1
            spool.waiting.append((self._order, record))
            self._count(spool, record, 1)
            if self._bytes > self._most:
                self._drop_oldest()
        if not self._work.is_set():
            self._work.set()

    def spool(self, key: NamespaceKey) -> Spool:
        """What of a namespace waits: a copy of the counters."""
        with self._lock:
            found = self._spools.get(key) or Spool()
            return Spool(
                sending=found.unsent,
                bytes=found.bytes,
                dropped=found.dropped,
                dropped_tokens=found.dropped_tokens,
                sent=found.sent,
                error=found.error,
            )

    @property
    def nbytes(self) -> int:
        """Bytes of everything that waits."""
        return self._bytes

    def flush(self, timeout: float) -> bool:
        """Wait until everything put so far is acknowledged; whether it is, within ``timeout``."""
        ends = time.monotonic() + timeout
        with self._idle:
            while any(spool.unsent for spool in self._spools.values()):
                left = ends - time.monotonic()
                if left <= 0 or not self._thread.is_alive():
                    return False
                self._idle.wait(left)
        return True

    def close(self, timeout: float) -> bool:
        """Send what waits, for at most ``timeout`` seconds; whether all of it was."""
        done = self.flush(timeout)
        self._stopping.set()
        self._work.set()
        self._thread.join()
        return done

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._work.wait()
            if self._linger and self._stopping.wait(self._linger):
                return
            self._work.clear()
            if not self._send_all():
                self._stopping.wait(self._backoff.next())
                self._work.set()

    def _send_all(self) -> bool:
        """One round over all namespaces; false where something could not be sent."""
        failed: str | None = None
        with self._lock:
            keys = [key for key, spool in self._spools.items() if spool.waiting]
        for key in keys:
            try:
                while not self._stopping.is_set() and self._send(key):
                    pass
            except LogClosedError as error:
                self.error = str(error)
                self._stopping.set()
                return False
            except LogUnavailableError as error:
                failed = str(error)
                break  # it is the same for the others
            except LogError as error:
                failed = str(error)
        self.error = failed
        if failed is None:
            self._backoff.reset()
        return failed is None

    def _send(self, key: NamespaceKey) -> bool:
        """Append one batch of a namespace; false where nothing waits."""
        batch = self._next_batch(key)
        if not batch:
            return False
        records = [record for _, record in batch]
        try:
            if records[0].kind is RecordKind.PURGE:
                mark = records[0]
                self.log.purge(key, before=mark.before, origin=mark.origin, number=mark.number)
            else:
                self.log.append(key, records)
        except InputError as error:
            self._settle(key, batch, dropped=True, error=str(error))  # it would never be taken
        except BaseException as error:
            self._put_back(key, batch, str(error))
            raise
        else:
            self._settle(key, batch, dropped=False, error=None)
        return True

    def _next_batch(self, key: NamespaceKey) -> list[tuple[int, Record]]:
        """The oldest records of a namespace; a purge mark goes alone."""
        batch: list[tuple[int, Record]] = []
        size = 0
        with self._lock:
            spool = self._spools[key]
            while spool.waiting and len(batch) < _BATCH_RECORDS and size < _BATCH_BYTES:
                record = spool.waiting[0][1]
                if record.kind is RecordKind.PURGE and batch:
                    break
                batch.append(spool.waiting.popleft())
                size += record.tokens.nbytes
                self._count(spool, record, -1)
                if record.kind is RecordKind.PURGE:
                    break
            spool.sending = len(batch)
        return batch

    def _settle(
        self,
        key: NamespaceKey,
        batch: list[tuple[int, Record]],
        *,
        dropped: bool,
        error: str | None,
    ) -> None:
        with self._idle:
            spool = self._spools[key]
            spool.sending = 0
            spool.error = error
            if dropped:
                self._count_dropped(spool, [record for _, record in batch])
            else:
                spool.sent += len(batch)
            self._idle.notify_all()

    def _put_back(self, key: NamespaceKey, batch: list[tuple[int, Record]], error: str) -> None:
        with self._lock:
            spool = self._spools[key]
            spool.sending = 0
            spool.error = error
            spool.waiting.extendleft(reversed(batch))
            for _, record in batch:
                self._count(spool, record, 1)
            if self._bytes > self._most:
                self._drop_oldest()

    # --- the bound; the lock is held -------------------------------------------------------------

    def _drop_oldest(self) -> None:
        """Drop until it fits. Purge marks stay: what must be forgotten must be said."""
        while self._bytes > self._most:
            heads = [
                (order, at, spool)
                for spool in self._spools.values()
                if (found := _first_droppable(spool)) is not None
                for order, at in (found,)
            ]
            if not heads:
                return
            _, at, spool = min(heads, key=lambda head: head[0])
            record = spool.waiting[at][1]
            del spool.waiting[at]
            self._count(spool, record, -1)
            self._count_dropped(spool, [record])

    def _count(self, spool: Spool, record: Record, sign: int) -> None:
        size = sign * (record.tokens.nbytes + _OVERHEAD)
        spool.bytes += size
        self._bytes += size

    def _count_dropped(self, spool: Spool, records: list[Record]) -> None:
        spool.dropped += len(records)
        spool.dropped_tokens += sum(len(record.tokens) for record in records)


def _first_droppable(spool: Spool) -> tuple[int, int] | None:
    """The oldest record that is no mark: its order and its place."""
    for at, (order, record) in enumerate(spool.waiting):
        if record.kind is not RecordKind.PURGE:
            return order, at
    return None
