"""What was said here and acknowledged, kept to be sent again where the log lost it.

Redis restarted empty, flushed, or failed over to a replica without the newest entries forgets what
it acknowledged. Whoever followed keeps it in its index; newcomers would find nothing. So every
replica keeps its own newest records, and sends them again when it sees the log start over.

They go out as they were, with the same origin and number, so that whoever knows them leaves them
out. Three things need care:

* What was purged must not come back: records that a mark covers are taken out here
  (:meth:`History.forget`), also those whose acknowledgement arrives later.
* A purge of everything means everything said until then. Sent again, it says so with a time,
  because in the new stream others' newer records may stand before it.
* Pieces of a sequence make sense together: a sequence is sent again once its last piece was
  acknowledged. What is discarded leaves only the word that it is.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from suffixspec_index.log.base import Record, RecordKind, is_obsolete
from suffixspec_index.namespaces import NamespaceKey
from suffixspec_index.sharing.spool import record_bytes

_BATCH_TOKENS = 1 << 15
_MOST_WIPES = 64  # purges that are remembered for acknowledgements which come late

Name = tuple[NamespaceKey, int, int]
"""Namespace, origin, and the sequence among the origin's; a mark's is ``-1 - number``."""


@dataclass(slots=True)
class _Said:
    """The records of one sequence, or a mark."""

    records: list[Record] = field(default_factory=list)
    length: int = 0
    bytes: int = 0
    finished: bool = False
    lost: bool = False  # the log started over since the first of them was acknowledged


class History:
    """Acknowledged own records within a byte budget, the oldest sequences leave first. Whoever
    calls holds a lock.

    Args:
        most: bytes of all namespaces together; 0: nothing is kept.
    """

    def __init__(self, most: int) -> None:
        self.nbytes = 0
        self._most = most
        self._said: OrderedDict[Name, _Said] = OrderedDict()
        self._pending: dict[NamespaceKey, OrderedDict[Name, None]] = defaultdict(OrderedDict)
        self._wipes: dict[NamespaceKey, list[tuple[int, int, float]]] = defaultdict(list)

    def add(self, key: NamespaceKey, records: Sequence[Record]) -> None:
        """Keep records that were acknowledged, in order."""
        if not self._most:
            return
        for record in records:
            if record.kind is RecordKind.PURGE:
                self._add_mark(key, record)
            elif not any(_covers(wipe, record) for wipe in self._wipes[key]):
                self._add(key, record)
        while self.nbytes > self._most and self._said:
            self._drop(next(iter(self._said)))

    def forget(self, key: NamespaceKey, origin: int, number: int, before: float) -> None:
        """A purge was followed. O(sequences kept).

        Args:
            key: the namespace.
            origin, number: the newest own record that was said before; those of other origins
                (of an index that was detached since) count as older.
            before: reach of the purge.
        """
        wipe = (origin, number, before)
        gone = [
            name
            for name, said in self._said.items()
            if name[0] == key and _covers(wipe, said.records[0])
        ]
        for name in gone:
            self._drop(name)
        wipes = [w for w in self._wipes[key] if not (w[1] <= number and w[2] <= before)]
        self._wipes[key] = [*wipes, wipe][-_MOST_WIPES:]

    def start_over(self, key: NamespaceKey) -> bool:
        """The log lost what it had: all must be sent again. Whether there is anything."""
        pending = self._pending[key]
        pending.clear()
        for name, said in self._said.items():
            if name[0] == key:
                said.lost = True
                if said.finished:
                    pending[name] = None
        return bool(pending)

    def is_pending(self, key: NamespaceKey) -> bool:
        """Whether something must be sent again."""
        return bool(self._pending.get(key))

    def next(self, key: NamespaceKey) -> tuple[list[Name], list[Record]]:
        """What to send now, oldest first; a mark goes alone. It stays pending until
        :meth:`done`."""
        names: list[Name] = []
        records: list[Record] = []
        tokens = 0
        for name in self._pending.get(key, ()):
            said = self._said[name]
            is_mark = said.records[0].kind is RecordKind.PURGE
            if names and (is_mark or tokens >= _BATCH_TOKENS):
                break
            names.append(name)
            records += said.records
            tokens += said.length
            if is_mark:
                break
        return names, records

    def done(self, key: NamespaceKey, names: Sequence[Name]) -> None:
        """They were acknowledged again."""
        pending = self._pending[key]
        for name in names:
            pending.pop(name, None)
            if name in self._said:
                self._said[name].lost = False

    # --- inside ----------------------------------------------------------------------------------

    def _add(self, key: NamespaceKey, record: Record) -> None:
        name = (key, record.origin, record.sequence)
        said = self._said.get(name)
        if record.kind is RecordKind.DISCARD:
            if said is not None:
                self._drop(name)
            said = None
        elif record.offset != (said.length if said is not None else 0):
            if said is not None:
                self._drop(name)  # a piece is missing: nobody could use the rest
            return
        if said is None:
            said = self._said[name] = _Said()
        said.records.append(record)
        said.length += len(record.tokens)
        said.finished = record.final
        said.bytes += record_bytes(record)
        self.nbytes += record_bytes(record)
        if said.finished and said.lost:
            self._pending[key][name] = None

    def _add_mark(self, key: NamespaceKey, mark: Record) -> None:
        self.forget(key, mark.origin, mark.number, mark.before)
        said_until = replace(mark, before=min(mark.before, mark.time))
        for name, said in list(self._said.items()):
            is_mark = name[0] == key and said.records[0].kind is RecordKind.PURGE
            if is_mark and is_obsolete(said.records[0], said_until.before):
                self._drop(name)
        size = record_bytes(mark)
        self._said[(key, mark.origin, -1 - mark.number)] = _Said([said_until], 0, size, True)
        self.nbytes += size

    def _drop(self, name: Name) -> None:
        self.nbytes -= self._said.pop(name).bytes
        self._pending[name[0]].pop(name, None)


def _covers(wipe: tuple[int, int, float], record: Record) -> bool:
    """Whether a purge reaches a record."""
    origin, number, before = wipe
    is_older = record.origin != origin or record.number <= number
    return record.kind is not RecordKind.PURGE and is_older and record.time < before
