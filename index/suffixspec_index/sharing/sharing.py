"""Sharing: what one process learns, all processes of a namespace draft from."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.errors import ConfigError, InputError, LogError
from suffixspec_index.index import SuffixIndex
from suffixspec_index.log.base import (
    FOREVER,
    MAX_RECORD_TOKENS,
    START,
    Record,
    RecordKind,
    SequenceLog,
    new_origin,
)
from suffixspec_index.namespaces import NamespaceKey
from suffixspec_index.proposers.base import Proposer
from suffixspec_index.sharing.follower import Follower, Following
from suffixspec_index.sharing.incoming import Incoming
from suffixspec_index.sharing.publisher import Publisher
from suffixspec_index.sharing.status import NamespaceStatus, SharingStatus

_RETENTION_CHECKS = 20  # marks are left this often within the time that sequences are kept
_NOTHING = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingConfig:
    """Checked on construction.

    Attributes:
        spool_bytes: most bytes of own sequences that wait while the log does not take them.
        linger: seconds to wait for more sequences before a batch is sent: larger batches compress
            better, and reach others later.
        flush_seconds: how long closing waits for what is unsent.
        resend_bytes: own newest sequences that are kept beside the index, as bytes of token ids, to
            be sent again after the log lost them (a Redis restarted empty, say); 0: none.
        resend_within: seconds within which sending again begins, at random, so that many replicas
            do not send all at once.
        retention: seconds after which a sequence is forgotten everywhere, in the log and in all
            replicas; ``None``: only budgets bound it.

    Raises:
        ConfigError: a value is out of range.
    """

    spool_bytes: int = 64 << 20
    linger: float = 0.002
    flush_seconds: float = 5.0
    resend_bytes: int = 8 << 20
    resend_within: float = 5.0
    retention: float | None = None

    def __post_init__(self) -> None:
        limits = (
            ("spool_bytes", 1 << 10, 1 << 50),
            ("linger", 0, 60),
            ("flush_seconds", 0, 3600),
            ("resend_bytes", 0, 1 << 50),
            ("resend_within", 0, 3600),
        )
        for name, low, high in limits:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ConfigError(f"{name}: must be a number, got {value!r}")
            if not low <= value <= high:
                raise ConfigError(f"{name}: must be from {low} to {high}, got {value!r}")
        if self.retention is not None and not 1 <= self.retention < FOREVER:
            raise ConfigError(f"retention: must be at least 1 s or None, got {self.retention!r}")


class Sharing:
    """Shares the indexes of a process through a log.

    >>> from suffixspec_index import NamespaceKey, SuffixIndex
    >>> from suffixspec_index.log import open_log
    >>> from suffixspec_index.proposers.suffix import SuffixProposer
    >>> key = NamespaceKey("tenant", "model", "tokenizer")
    >>> replicas = []
    >>> for _ in range(2):
    ...     sharing, index = Sharing(open_log("memory:doc")), SuffixIndex()
    ...     _ = sharing.attach(key, index, SuffixProposer(index=index))
    ...     replicas.append((sharing, index))
    >>> (one, mine), (other, theirs) = replicas
    >>> mine.ingest([1, 2, 3, 4])
    >>> one.flush(60) and other.wait_until_current(60)
    True
    >>> theirs.world.count([2, 3])
    1
    >>> one.close(), other.close()
    (True, True)

    Args:
        log: through which. It is closed with this object.
        config: settings.
        origin: of this process's records; by default a random one, as it should be.
    """

    def __init__(
        self, log: SequenceLog, config: SharingConfig | None = None, *, origin: int | None = None
    ) -> None:
        self.log = log
        self.config = config or SharingConfig()
        self.origin = new_origin() if origin is None else origin
        self._lock = threading.Lock()
        self._indexes: dict[NamespaceKey, SuffixIndex] = {}
        self._closed = False
        self._former: set[NamespaceKey] = set()  # were detached
        self._publisher = Publisher(
            log,
            spool_bytes=self.config.spool_bytes,
            linger=self.config.linger,
            resend_bytes=self.config.resend_bytes,
            resend_within=self.config.resend_within,
        )
        self._follower = Follower(log, self._publisher.start_over)
        self._stopping = threading.Event()
        self._keeper: threading.Thread | None = None
        if self.config.retention is not None:
            self._keeper = threading.Thread(
                target=self._keep_retention, name="suffixspec-retention", daemon=True
            )
            self._keeper.start()

    def attach(
        self,
        key: NamespaceKey,
        index: SuffixIndex | None,
        proposer: Proposer,
        *,
        position: str = START,
    ) -> Proposer:
        """Share an index: publish what is said in it, follow what others say.

        The log is read back in the background, and the proposer drafts meanwhile. From now on
        everything that enters the index's global tree is published, by whatever way it comes:
        finished requests (unless ``keep=False``), chunks of live ones, ``ingest``, ``purge``.

        Args:
            key: the namespace. Its tokenizer's fingerprint keeps apart what must not mix.
            index: of the namespace; ``None``, or one that keeps no global tree: nothing is shared.
            proposer: drafts from it.
            position: where to go on reading; by default all of the log is read, or the newest part
                of it that can fit the index. An index that was loaded from a snapshot holds what
                the log holds: start empty instead.

        Returns:
            The proposer, to be used as before.

        Raises:
            InputError: the index or the namespace is shared already, as something else.
        """
        if index is None or not index.config.max_cached_requests:
            return proposer
        with self._lock:
            known = self._indexes.get(key)
            if known is index:
                return proposer
            if known is not None or index.spoken.listener is not None:
                raise InputError(
                    f"key: namespace {key}, or its index, is shared already; detach it"
                )
            # what was said by an index that was detached is news to this one
            origin = new_origin() if key in self._former else self.origin
            incoming = Incoming(index, origin)
            outgoing = incoming.observer = _Outgoing(key, incoming, self._publisher)
            with index._lock.writing():
                index.spoken.listener = outgoing
            self._indexes[key] = index
            self._follower.add(key, incoming, position)
        return proposer

    def detach(self, key: NamespaceKey) -> None:
        """Share a namespace no more. What it holds stays. Unknown ones are ignored."""
        with self._lock:
            index = self._indexes.pop(key, None)
            self._former.add(key)
        if index is not None:
            self._follower.remove(key)
            with index._lock.writing():
                index.spoken.listener = None

    def flush(self, timeout: float) -> bool:
        """Wait until everything said here so far is acknowledged by the log; whether it is."""
        return self._publisher.flush(timeout)

    def wait_until_current(self, timeout: float) -> bool:
        """Wait until everything that is in the log now has been taken in; whether it has."""
        ends = time.monotonic() + timeout
        with self._lock:
            keys = list(self._indexes)
        for key in keys:
            while not self._is_current(key):
                if time.monotonic() > ends:
                    return False
                time.sleep(0.002)
        return True

    def status(self) -> SharingStatus:
        """How it goes; quick, and never blocks on the log."""
        with self._lock:
            keys = list(self._indexes)
        error = self._follower.error or self._publisher.error
        return SharingStatus(
            url=self.log.url,
            connected=error is None,
            error=error,
            spool_bytes=self._publisher.nbytes,
            namespaces=tuple(
                self._namespace_status(key, found)
                for key in keys
                if (found := self._follower.get(key)) is not None
            ),
        )

    def close(self) -> bool:
        """Send what is unsent (for at most ``flush_seconds``), end the threads, close the log.

        Returns whether everything was sent. May be called twice.
        """
        with self._lock:
            if self._closed:
                return True
            self._closed = True
            keys = list(self._indexes)
        self._stopping.set()
        self._follower.stop()
        for key in keys:
            self.detach(key)
        sent = self._publisher.close(self.config.flush_seconds)
        self.log.close()  # wakes the follower, if it waits
        self._follower.join()
        if self._keeper is not None:
            self._keeper.join()
        return sent

    # --- inside ----------------------------------------------------------------------------------

    def _is_current(self, key: NamespaceKey) -> bool:
        found = self._follower.get(key)
        try:
            return found is None or not self.log.behind(key, found.position)
        except LogError:
            return False

    def _namespace_status(self, key: NamespaceKey, found: Following) -> NamespaceStatus:
        spool = self._publisher.spool(key)
        counts = found.incoming.counts
        lag = time.monotonic() - found.current_at
        return NamespaceStatus(
            key=key,
            caught_up=found.caught_up,
            progress=found.progress,
            behind=found.behind,
            lag_seconds=lag if lag > 1.0 else 0.0,
            applied=counts.applied,
            applied_tokens=counts.tokens,
            duplicates=counts.duplicates,
            orphans=counts.orphans,
            missed=found.missed,
            resets=found.resets,
            damaged=found.damaged,
            purges=counts.purges,
            unsent=spool.unsent,
            unsent_bytes=spool.bytes,
            sent=spool.sent,
            resent=spool.resent,
            dropped=spool.dropped,
            dropped_tokens=spool.dropped_tokens,
            error=found.error or spool.error,
        )

    def _keep_retention(self) -> None:
        """Leave purge marks for what grew too old. Any replica may: marks say the same."""
        retention = self.config.retention
        assert retention is not None
        pause = retention / _RETENTION_CHECKS
        while not self._stopping.wait(pause * random.uniform(0.5, 1.5)):
            with self._lock:
                indexes = dict(self._indexes)
            before = round(time.time() - retention, 6)
            for key, index in indexes.items():
                try:
                    stale = 0 < self.log.statistics(key).first_time < before
                except LogError:
                    stale = False
                with index._lock.reading():
                    stale = stale or bool(index.spoken.older(before))
                if stale:
                    index.purge(before=before)


class _Outgoing:
    """Listens to one index and makes records of what it hears, under the index's write lock."""

    def __init__(self, key: NamespaceKey, incoming: Incoming, publisher: Publisher) -> None:
        self._key = key
        self._incoming = incoming
        self._publisher = publisher
        self._whole = 1 << 60  # names of sequences that were never shared in pieces

    def sequence(self, tokens: NDArray[np.int32], at_time: float) -> None:
        if not len(tokens):
            return
        self._whole += 1
        if len(tokens) <= MAX_RECORD_TOKENS:
            self._put(RecordKind.SEQUENCE, self._whole, at_time, tokens)
            return
        for start in range(0, len(tokens), MAX_RECORD_TOKENS):
            self._put(
                RecordKind.CHUNK,
                self._whole,
                at_time,
                tokens[start : start + MAX_RECORD_TOKENS],
                offset=start,
                final=start + MAX_RECORD_TOKENS >= len(tokens),
            )

    def chunk(
        self, sequence: int, offset: int, tokens: NDArray[np.int32], at_time: float, *, final: bool
    ) -> None:
        last = range(0, max(len(tokens), 1), MAX_RECORD_TOKENS)[-1]
        for start in range(0, max(len(tokens), 1), MAX_RECORD_TOKENS):
            self._put(
                RecordKind.CHUNK,
                sequence,
                at_time,
                tokens[start : start + MAX_RECORD_TOKENS],
                offset=offset + start,
                final=final and start == last,
            )

    def discard(self, sequence: int) -> None:
        self._put(RecordKind.DISCARD, sequence, round(time.time(), 6), _NOTHING)

    def purge(self, before: float | None) -> None:
        reach = FOREVER if before is None else before
        self.purged(self._incoming.last_number, reach)
        self._put(RecordKind.PURGE, 0, round(time.time(), 6), _NOTHING, before=reach)

    # what the follower says

    def purged(self, number: int, before: float) -> None:
        self._publisher.forget(self._key, self._incoming.origin, number, before)

    def came_back(self, before: float) -> None:
        with self._incoming.index._lock.writing():
            self.purge(before)

    def _put(
        self,
        kind: RecordKind,
        sequence: int,
        at_time: float,
        tokens: NDArray[np.int32],
        *,
        offset: int = 0,
        final: bool = True,
        before: float = FOREVER,
    ) -> None:
        number = self._incoming.last_number + 1
        self._incoming.last_number = number
        record = Record(
            kind,
            self._incoming.origin,
            number,
            sequence,
            at_time,
            tokens.copy(),
            offset,
            final,
            before,
        )
        self._publisher.put(self._key, record)
