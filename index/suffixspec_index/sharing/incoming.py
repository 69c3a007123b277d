"""Putting what others said into an index: in order, each record once, a little at a time.

Two indexes that have taken in the same log hold the same sequences (a multiset: their order in the
tree may differ, and nothing that is drafted depends on it). The rules that make it so:

* A record is known by ``(origin, number)``. An origin's numbers rise, but for records that it sends
  again because the log lost them, so the numbers met are kept as runs. Own records are in the index
  already and are left out,
* except those that a purge wiped out here although they stand after its mark in the log: they were
  said before the mark arrived. They come back through the log like anybody else's.
* Own records that come again after the mark of a purge they were said before were sent again while
  the mark was on its way. They are not taken, and the purge is repeated, so that nobody who comes
  later takes them.
* A chunk that does not go on where its sequence ended (a part was dropped, trimmed or purged)
  ends the sequence, and what follows of it is left out. It does not count as met: it may be sent
  again with the pieces before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from suffixspec_index.index import SuffixIndex
from suffixspec_index.log.base import FOREVER, Record, RecordKind
from suffixspec_index.log.seen import Seen
from suffixspec_index.rebuilding import evict_aside, purge_aside, rebuild_aside

SLICE_TOKENS = 4096
"""The write lock is held for about so many tokens at a time: one or two milliseconds."""

IDLE_S = 900.0
"""A live sequence of which no chunk came for so long has lost its origin: it is closed."""


@dataclass(slots=True)
class Counts:
    """What an :class:`Incoming` did, in records but for ``tokens``."""

    applied: int = 0
    tokens: int = 0
    own: int = 0
    duplicates: int = 0
    orphans: int = 0
    foreign: int = 0
    purges: int = 0


@dataclass(slots=True)
class _Live:
    """A sequence that comes in chunks."""

    id: int  # in the global tree
    length: int
    time: float


@dataclass(frozen=True, slots=True)
class _Wipe:
    """A purge that was followed here."""

    number: int  # of the newest own record at that moment
    before: float
    time: float

    def covers(self, record: Record) -> bool:
        """Whether it removed an own record from the index."""
        return record.number <= self.number and record.time < self.before


class PurgeObserver(Protocol):
    """Is told about purges that others began."""

    def purged(self, number: int, before: float) -> None:
        """A mark was followed: own records up to ``number`` and older than ``before`` are gone."""

    def came_back(self, before: float) -> None:
        """Records that a mark had removed stand in the log again: purge what is older."""


class Incoming:
    """Takes records of one namespace into an index. One thread calls it.

    Args:
        index: where they go.
        origin: of this replica's own records.
        observer: whom purges concern as well.
    """

    def __init__(
        self, index: SuffixIndex, origin: int, observer: PurgeObserver | None = None
    ) -> None:
        self.index = index
        self.origin = origin
        self.observer = observer
        self.counts = Counts()
        self.last_number = -1
        """The newest own record; whoever publishes keeps it, under the index's write lock."""
        self._wiped: list[_Wipe] = []
        self._seen: defaultdict[int, Seen] = defaultdict(Seen)  # by origin
        self._came_back = 0.0  # a mark that reaches so far must be left once more
        self._live: dict[tuple[int, int], _Live] = {}
        self._claimed = False  # the tree is too large, and it is ours to do something about it

    def take(self, records: Sequence[Record]) -> None:
        """Apply records in order. The index's write lock is taken for a slice at a time."""
        self._came_back = 0.0
        self._apply(records)
        if self._came_back and self.observer is not None:
            self.observer.came_back(self._came_back)

    def _apply(self, records: Sequence[Record]) -> None:
        for piece in _slices(self._wanted(records)):
            kind = piece[0].kind
            if kind is RecordKind.SEQUENCE:
                if len(piece[0].tokens) > 2 * SLICE_TOKENS:
                    self._insert_long(piece.pop(0))
                if piece:
                    self._insert(piece)
                continue
            if kind is RecordKind.CHUNK:
                with self.index._lock.writing():
                    for record in piece:
                        self._chunk(record)
                    self._settle()
                self._fit()
            elif kind is RecordKind.DISCARD:
                self._discard(piece)
            else:
                self._purge(piece[0])

    def expire(self, now: float) -> None:
        """Close live sequences whose origin fell silent. O(live sequences)."""
        silent = [key for key, live in self._live.items() if live.time < now - IDLE_S]
        if silent:
            with self.index._lock.writing():
                for key in silent:
                    self._end(key)
                self._settle()
            self._fit()

    # --- which records ---------------------------------------------------------------------------

    def _wanted(self, records: Sequence[Record]) -> Iterator[Record]:
        size = self.index.vocab_size
        for record in records:
            if not self._seen[record.origin].add(record.number):
                self.counts.duplicates += 1
                if record.origin == self.origin:
                    self._look_for_purged(record)
                continue
            if record.origin == self.origin and not self._was_wiped(record):
                self.counts.own += 1
            elif size is not None and len(record.tokens) and int(record.tokens.max()) >= size:
                self.counts.foreign += 1  # cannot happen while tokenizers have fingerprints
            else:
                yield record

    def _was_wiped(self, record: Record) -> bool:
        """Whether an own record may be no longer in the index, although it stands after the mark.

        What continues a sequence goes the way its beginning went, which is known when its turn
        comes.
        """
        if record.kind in (RecordKind.PURGE, RecordKind.DISCARD) or record.offset:
            return True
        return any(wipe.covers(record) for wipe in self._wiped)

    def _look_for_purged(self, record: Record) -> None:
        """An own record comes for the second time: was it purged in between?"""
        if record.kind in (RecordKind.SEQUENCE, RecordKind.CHUNK):
            for wipe in self._wiped:
                if wipe.covers(record):
                    self._came_back = max(self._came_back, min(wipe.before, wipe.time))

    # --- what they do ----------------------------------------------------------------------------

    def _insert(self, records: Sequence[Record]) -> None:
        offsets = np.zeros(len(records) + 1, np.int64)
        np.cumsum([len(record.tokens) for record in records], out=offsets[1:])
        tokens = np.concatenate([record.tokens for record in records])
        times = [record.time for record in records]
        with self.index._lock.writing():
            self.index.world.insert_many(tokens, offsets, times)
            self._settle()
        self._fit()
        self.counts.applied += len(records)
        self.counts.tokens += len(tokens)

    def _insert_long(self, record: Record) -> None:
        """Piece by piece, so that nobody waits for all of it."""
        index, world = self.index, self.index.world
        tokens = record.tokens
        with index._lock.writing():
            sequence = world.open(tokens[:SLICE_TOKENS], at_time=record.time)
            self._settle()
        for start in range(SLICE_TOKENS, len(tokens), SLICE_TOKENS):
            with index._lock.writing():
                world.extend(sequence, tokens[start : start + SLICE_TOKENS])
                self._settle()
        with index._lock.writing():
            world.close(sequence)
            self._settle()
        self._fit()
        self.counts.applied += 1
        self.counts.tokens += len(tokens)

    def _chunk(self, record: Record) -> None:
        """The write lock is held."""
        key = (record.origin, record.sequence)
        live = self._live.get(key)
        world = self.index.world
        if live is not None and live.id not in world.sequences:  # forgotten by a purge
            del self._live[key]
            live = None
        if live is not None and record.offset != live.length:
            self._end(key)
            live = None
        if live is None:
            if record.offset:
                self._count_orphan(record)
                return
            live = _Live(world.open(at_time=record.time), 0, record.time)
            self._live[key] = live
        if len(record.tokens):
            world.extend(live.id, record.tokens)
        live.length += len(record.tokens)
        live.time = record.time
        self.counts.applied += 1
        self.counts.tokens += len(record.tokens)
        if record.final:
            self._end(key)

    def _end(self, key: tuple[int, int]) -> None:
        """The write lock is held."""
        live = self._live.pop(key)
        if live.id in self.index.world.sequences:
            self.index.world.close(live.id)

    def _discard(self, records: Sequence[Record]) -> None:
        """Together, because forgetting one costs as much as forgetting many."""
        gone: set[int] = set()
        for record in records:
            live = self._live.pop((record.origin, record.sequence), None)
            if live is None:
                self._count_orphan(record)
            else:
                gone.add(live.id)
                self.counts.applied += 1
        if gone:
            rebuild_aside(self.index, lambda sequence: sequence.id not in gone)

    def _count_orphan(self, record: Record) -> None:
        if record.origin == self.origin:
            self.counts.own += 1
        else:
            self.counts.orphans += 1
            self._seen[record.origin].remove(record.number)

    def _purge(self, record: Record) -> None:
        before = record.before
        if before == FOREVER:
            self._live.clear()
            with self.index._lock.writing():
                self.index._forget_all()
                self._note_wiped(record)
                self.index._update_context()
        else:
            purge_aside(self.index, before, lambda: self._note_wiped(record))
        self.counts.purges += 1
        if self.observer is not None and record.origin != self.origin:
            self.observer.purged(self._wiped[-1].number, before)

    def _note_wiped(self, mark: Record) -> None:
        """The write lock is held. A later purge that reaches as far covers the earlier ones."""
        self._wiped = [known for known in self._wiped if known.before > mark.before]
        self._wiped.append(_Wipe(self.last_number, mark.before, mark.time))

    # --- the budget ------------------------------------------------------------------------------

    def _settle(self) -> None:
        """The write lock is held. Where the tree grew too large, others leave it to us."""
        self.index._update_context()
        self._claimed = self._claimed or self.index._budget.enforce()

    def _fit(self) -> None:
        """Forget the oldest, beside the lock, where the tree grew too large."""
        if self._claimed:
            self._claimed = False
            evict_aside(self.index)


def _slices(records: Iterator[Record]) -> Iterator[list[Record]]:
    """Runs of records of one kind, cut after about ``SLICE_TOKENS``.

    A purge mark is handed on before the next record is asked for: it decides about that one.
    """
    piece: list[Record] = []
    tokens = 0
    for record in records:
        if piece and (record.kind is not piece[0].kind or tokens >= SLICE_TOKENS):
            yield piece
            piece, tokens = [], 0
        piece.append(record)
        tokens += len(record.tokens)
        if record.kind is RecordKind.PURGE:
            yield piece
            piece, tokens = [], 0
    if piece:
        yield piece
