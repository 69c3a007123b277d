"""What waits to be sent, within a bound."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from suffixspec_index.log.base import Record, RecordKind
from suffixspec_index.namespaces import NamespaceKey
from suffixspec_index.sharing.backoff import Backoff

OVERHEAD = 200
"""Bytes of a waiting record beside its tokens, roughly."""

_BATCH_RECORDS = 1024
_BATCH_BYTES = 1 << 20

Entry = tuple[int, Record]
"""In which order it came, among those of all namespaces; and the record."""


def record_bytes(record: Record) -> int:
    """What a waiting record takes, roughly."""
    return int(record.tokens.nbytes) + OVERHEAD


@dataclass(slots=True)
class Spool:
    """What of one namespace waits to be sent, oldest first; and how sending goes.

    Attributes:
        waiting: entries that are not under way.
        sending: how many are.
        bytes: of what waits.
        dropped, dropped_tokens, sent, resent: counts since the start.
        error: why the last attempt failed; ``None``: it did not.
        troubled: the last attempt failed, and may be repeated from ``due`` on.
        life: of the log, at the last append; see :meth:`SequenceLog.life`.
    """

    waiting: deque[Entry] = field(default_factory=deque)
    sending: int = 0
    bytes: int = 0
    dropped: int = 0
    dropped_tokens: int = 0
    sent: int = 0
    resent: int = 0
    error: str | None = None
    troubled: bool = False
    due: float = 0.0  # time.monotonic()
    life: str = ""
    backoff: Backoff = field(default_factory=Backoff)

    @property
    def unsent(self) -> int:
        """Records that are not acknowledged."""
        return len(self.waiting) + self.sending


class Spools:
    """The spools of all namespaces, bounded together. Whoever calls holds a lock.

    The oldest records are dropped first, whichever namespace they belong to. A batch that is being
    sent does not count: it must not push out what is newer.

    Args:
        most: bytes.
    """

    def __init__(self, most: int) -> None:
        self.nbytes = 0
        self._most = most
        self._order = 0
        self._spools: dict[NamespaceKey, Spool] = {}

    def __getitem__(self, key: NamespaceKey) -> Spool:
        spool = self._spools.get(key)
        if spool is None:
            spool = self._spools[key] = Spool()
        return spool

    def __iter__(self) -> Iterator[NamespaceKey]:
        return iter(self._spools)

    def items(self) -> list[tuple[NamespaceKey, Spool]]:
        """All that ever held something."""
        return list(self._spools.items())

    def put(self, key: NamespaceKey, record: Record) -> Spool:
        """Take a record, and drop the oldest where they are too many."""
        spool = self[key]
        self._order += 1
        spool.waiting.append((self._order, record))
        self._count(spool, record, 1)
        if self.nbytes > self._most:
            self._drop_oldest()
        return spool

    def take(self, key: NamespaceKey) -> list[Entry]:
        """The oldest records of a namespace, to be sent; a purge mark goes alone."""
        batch: list[Entry] = []
        size = 0
        spool = self[key]
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

    def put_back(self, key: NamespaceKey, batch: list[Entry]) -> None:
        """What could not be sent: it is the oldest again."""
        spool = self[key]
        spool.sending = 0
        spool.waiting.extendleft(reversed(batch))
        for _, record in batch:
            self._count(spool, record, 1)
        if self.nbytes > self._most:
            self._drop_oldest()

    def lose(self, spool: Spool, records: list[Record]) -> None:
        """Count records as dropped."""
        spool.dropped += len(records)
        spool.dropped_tokens += sum(len(record.tokens) for record in records)

    def _drop_oldest(self) -> None:
        """Drop until it fits. Purge marks stay: what must be forgotten must be said."""
        while self.nbytes > self._most:
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
            self.lose(spool, [record])

    def _count(self, spool: Spool, record: Record, sign: int) -> None:
        size = sign * record_bytes(record)
        spool.bytes += size
        self.nbytes += size


def _first_droppable(spool: Spool) -> tuple[int, int] | None:
    """The oldest record that is no mark: its order and its place."""
    for at, (order, record) in enumerate(spool.waiting):
        if record.kind is not RecordKind.PURGE:
            return order, at
    return None
