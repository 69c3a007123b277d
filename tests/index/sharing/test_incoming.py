"""Which records an index takes in: each once, in whatever order they come again."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from suffixspec_index.index import SuffixIndex
from suffixspec_index.index_config import IndexConfig
from suffixspec_index.log import Record, RecordKind
from suffixspec_index.log.base import FOREVER
from suffixspec_index.sharing.incoming import Incoming

MINE, THEIRS = 1, 2


class Observed:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.purges: list[tuple[int, float]] = []
        self.back: list[float] = []

    def purged(self, number: int, before: float) -> None:
        self.purges.append((number, before))

    def came_back(self, before: float) -> None:
        self.back.append(before)


def incoming(observer: Observed | None = None) -> Incoming:
    return Incoming(SuffixIndex(IndexConfig(depth=6)), MINE, observer)


def said(number: int, origin: int = THEIRS) -> Record:
    tokens = np.array([number, number + 1, number + 2], np.int32)
    return Record(RecordKind.SEQUENCE, origin, number, number, 100.0 + number, tokens)


def mark(number: int, before: float = FOREVER) -> Record:
    return Record(RecordKind.PURGE, THEIRS, number, time=150.0, before=before)


def pieces(count: int) -> list[Record]:
    return [
        Record(
            RecordKind.CHUNK,
            THEIRS,
            number,
            9,
            100.0,
            np.array([number], np.int32),
            offset=number,
            final=number == count - 1,
        )
        for number in range(count)
    ]


def texts(into: Incoming) -> Counter[tuple[int, ...]]:
    world = into.index.world
    return Counter(tuple(world.sequence_tokens(s).tolist()) for s in world)


@pytest.mark.parametrize("seed", range(5))
def test_each_once_in_any_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    into = incoming()
    for _ in range(4):
        order = rng.permutation(40)[:30]
        into.take([said(int(number)) for number in order])
    into.take([said(number) for number in range(40)])
    assert texts(into) == Counter({(n, n + 1, n + 2): 1 for n in range(40)})
    into.index.check_integrity()


def test_pieces_that_come_again_with_those_before_them() -> None:
    into = incoming()
    *first, last = pieces(4)
    into.take([last])
    assert into.counts.orphans == 1
    assert texts(into) == Counter()
    into.take([*first, last])
    assert texts(into) == Counter({(0, 1, 2, 3): 1})
    into.take(pieces(4))
    assert texts(into) == Counter({(0, 1, 2, 3): 1})
    assert into.counts.duplicates == 4


def test_own_records_sent_again_behind_a_purge_are_purged_again() -> None:
    observer = Observed()
    into = incoming(observer)
    into.last_number = 3
    into.take([said(1, MINE), said(2, MINE), mark(1)])
    assert observer.purges == [(3, FOREVER)]
    assert observer.back == []
    into.take([said(1, MINE), said(2, MINE)])
    assert observer.back == [150.0]
    assert texts(into) == Counter()
    into.last_number = 4
    into.take([said(4, MINE), said(4, MINE)])  # said after it, sent twice
    assert observer.back == [150.0]


def test_by_age_only_what_is_older_counts() -> None:
    observer = Observed()
    into = incoming(observer)
    into.last_number = 3
    into.take([said(1, MINE), said(3, MINE), mark(1, before=102.0)])
    into.take([said(3, MINE)])
    assert observer.back == []
    into.take([said(1, MINE)])
    assert observer.back == [102.0]
