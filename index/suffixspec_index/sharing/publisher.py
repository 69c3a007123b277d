"""Sending what is said here to the log, from threads of its own."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Sequence

from suffixspec_index.errors import InputError, LogClosedError, LogError
from suffixspec_index.log.base import Record, RecordKind, SequenceLog
from suffixspec_index.namespaces import NamespaceKey
from suffixspec_index.sharing.history import History, Name
from suffixspec_index.sharing.spool import Entry, Spool, Spools

_RESEND_PAUSE = 0.05  # seconds, on average, between two batches that are sent again


class Publisher:
    """Takes records without ever blocking, and appends them to a log in batches.

    Where the log does not take them they wait in a spool of bounded size; the oldest are dropped
    first, whichever namespace they belong to, and counted. A namespace that fails is tried again by
    a second thread, with a backoff of its own, so that the others do not wait for its timeouts: in
    a cluster one dead node concerns some namespaces only.

    Args:
        log: where they go.
        spool_bytes: bound of what waits, of all namespaces together. One batch that is being sent
            comes on top: it must not push out what is newer.
        linger: seconds to wait for more before a batch is sent.
        resend_bytes: of acknowledged records that are kept, to be sent again after
            :meth:`start_over`.
        resend_within: seconds within which a resend begins, at random, so that many replicas do not
            send all at once.
    """

    def __init__(
        self,
        log: SequenceLog,
        *,
        spool_bytes: int,
        linger: float,
        resend_bytes: int = 0,
        resend_within: float = 0.0,
    ) -> None:
        self.log = log
        self._linger = linger
        self._resend_within = resend_within
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._spools = Spools(spool_bytes)
        self._history = History(resend_bytes)
        self._resend_at: dict[NamespaceKey, float] = {}
        self._work = threading.Event()  # for the first thread
        self._trouble = threading.Event()  # for the second one
        self._stopping = threading.Event()
        self._closed: str | None = None
        self._threads = [
            threading.Thread(target=run, name=f"suffixspec-{name}", daemon=True)
            for name, run in (("publisher", self._run), ("publisher-retries", self._run_retries))
        ]
        for thread in self._threads:
            thread.start()

    def put(self, key: NamespaceKey, record: Record) -> None:
        """Take a record; a few microseconds, whatever the log does."""
        with self._lock:
            self._spools.put(key, record)
        if not self._work.is_set():
            self._work.set()

    def start_over(self, key: NamespaceKey, position: str) -> None:
        """A reader found that the log lost what it had, and goes on from ``position``: send again
        what is kept of it, beside what is new."""
        with self._lock:
            life = self.log.life(position)
            if life and life == self._spools[key].life:
                return  # noticed when writing
            self._start_over(key, life)

    def _start_over(self, key: NamespaceKey, life: str) -> None:
        """The lock is held."""
        self._spools[key].life = life
        if self._history.start_over(key):
            self._resend_at[key] = time.monotonic() + random.uniform(0, self._resend_within)
            self._work.set()

    def forget(self, key: NamespaceKey, origin: int, number: int, before: float) -> None:
        """A purge was followed: never send again what it reaches. See :meth:`History.forget`."""
        with self._lock:
            self._history.forget(key, origin, number, before)

    @property
    def error(self) -> str | None:
        """Why the last attempt with some namespace failed; ``None``: none did."""
        with self._lock:
            failed = (spool.error for _, spool in self._spools.items() if spool.troubled)
            return self._closed or next(failed, None)

    def spool(self, key: NamespaceKey) -> Spool:
        """What of a namespace waits: a copy of the counters."""
        with self._lock:
            found = self._spools[key]
            return Spool(
                sending=found.unsent,
                bytes=found.bytes,
                dropped=found.dropped,
                dropped_tokens=found.dropped_tokens,
                sent=found.sent,
                resent=found.resent,
                error=found.error,
                troubled=found.troubled,
            )

    @property
    def nbytes(self) -> int:
        """Bytes of everything that waits."""
        return self._spools.nbytes

    def flush(self, timeout: float) -> bool:
        """Wait until everything put so far is acknowledged; whether it is, within ``timeout``."""
        ends = time.monotonic() + timeout
        with self._idle:
            while any(spool.unsent for _, spool in self._spools.items()):
                left = ends - time.monotonic()
                if left <= 0 or self._stopping.is_set():
                    return False
                self._idle.wait(left)
        return True

    def close(self, timeout: float) -> bool:
        """Send what waits, for at most ``timeout`` seconds; whether all of it was."""
        done = self.flush(timeout)
        self._stop()
        for thread in self._threads:
            thread.join()
        return done

    # --- the threads -----------------------------------------------------------------------------

    def _run(self) -> None:
        """Namespaces that are well. A namespace changes hands only by whoever has it."""
        while not self._stopping.is_set():
            self._work.wait(self._until_resend())
            if self._linger and self._stopping.wait(self._linger):
                return
            self._work.clear()
            for key in self._with_work():
                self._drain(key)

    def _run_retries(self) -> None:
        """Those that failed."""
        while not self._stopping.is_set():
            self._trouble.wait(self._until_retry())
            self._trouble.clear()
            for key in self._to_retry():
                self._drain(key)

    def _stop(self) -> None:
        self._stopping.set()
        self._work.set()
        self._trouble.set()
        with self._idle:
            self._idle.notify_all()

    def _until_resend(self) -> float | None:
        with self._lock:
            due = [
                at
                for key, at in self._resend_at.items()
                if not self._spools[key].troubled and self._history.is_pending(key)
            ]
        return max(min(due) - time.monotonic(), 0.0) if due else None

    def _with_work(self) -> list[NamespaceKey]:
        now = time.monotonic()
        with self._lock:
            return [
                key
                for key, spool in self._spools.items()
                if not spool.troubled and (spool.waiting or self._may_resend(key, now))
            ]

    def _until_retry(self) -> float | None:
        with self._lock:
            due = [spool.due for _, spool in self._spools.items() if spool.troubled]
        return max(min(due) - time.monotonic(), 0.0) if due else None

    def _to_retry(self) -> list[NamespaceKey]:
        now = time.monotonic()
        with self._lock:
            return [
                key for key, spool in self._spools.items() if spool.troubled and spool.due <= now
            ]

    def _may_resend(self, key: NamespaceKey, now: float) -> bool:
        """The lock is held."""
        return self._history.is_pending(key) and self._resend_at.get(key, 0.0) <= now

    def _drain(self, key: NamespaceKey) -> None:
        """Send what waits of a namespace, until nothing does or it fails."""
        try:
            while not self._stopping.is_set() and (self._send(key) or self._send_again(key)):
                pass
        except LogClosedError as error:
            self._closed = str(error)
            self._stop()
        except LogError as error:
            with self._lock:
                spool = self._spools[key]
                spool.error, spool.troubled = str(error), True
                spool.due = time.monotonic() + spool.backoff.next()
            self._trouble.set()
        else:
            with self._lock:
                spool = self._spools[key]
                if not spool.troubled:
                    return
                spool.error, spool.troubled = None, False
                spool.backoff.reset()
            self._work.set()  # for what came meanwhile

    # --- sending ---------------------------------------------------------------------------------

    def _send(self, key: NamespaceKey) -> bool:
        """Append one batch of a namespace; false where nothing waits."""
        with self._lock:
            batch = self._spools.take(key)
        if not batch:
            return False
        records = [record for _, record in batch]
        try:
            position = self._append(key, records)
        except InputError as error:  # it would never be taken
            self._settle(key, batch, error=str(error))
        except BaseException:
            with self._lock:
                self._spools.put_back(key, batch)
            raise
        else:
            self._look_for_loss(key, position)
            self._settle(key, batch)
        return True

    def _append(self, key: NamespaceKey, records: Sequence[Record]) -> str:
        if records[0].kind is RecordKind.PURGE:
            mark = records[0]
            return self.log.purge(key, before=mark.before, origin=mark.origin, number=mark.number)
        return self.log.append(key, records)

    def _look_for_loss(self, key: NamespaceKey, position: str) -> None:
        """Whether the log was emptied between this append and the one before. No reader may have
        been quick enough to see both."""
        life = self.log.life(position)
        with self._lock:
            known = self._spools[key].life
            if known and life != known:
                self._start_over(key, life)
            self._spools[key].life = life

    def _settle(self, key: NamespaceKey, batch: list[Entry], error: str | None = None) -> None:
        records = [record for _, record in batch]
        with self._idle:
            spool = self._spools[key]
            spool.sending = 0
            spool.error = error
            if error is not None:
                self._spools.lose(spool, records)
            else:
                spool.sent += len(records)
                self._history.add(key, records)
            self._idle.notify_all()

    def _send_again(self, key: NamespaceKey) -> bool:
        """Append one batch that the log had and lost, now and then; false where it is not time."""
        with self._lock:
            if not self._may_resend(key, time.monotonic()):
                return False
            names, records = self._history.next(key)
        with contextlib.suppress(InputError):  # it was taken before, so that cannot be
            self._look_for_loss(key, self._append(key, records))
        self._settle_again(key, names, len(records))
        return True

    def _settle_again(self, key: NamespaceKey, names: list[Name], records: int) -> None:
        with self._lock:
            self._history.done(key, names)
            self._spools[key].resent += records
            pause = random.uniform(0, 2 * _RESEND_PAUSE)
            self._resend_at[key] = time.monotonic() + pause
