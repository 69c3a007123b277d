"""A tree built anew beside the old one holds what the slow way leaves, whatever comes meanwhile."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from suffixspec_index.draft import Draft
from suffixspec_index.index import SuffixIndex
from suffixspec_index.index_config import IndexConfig
from suffixspec_index.rebuilding import rebuild_aside
from suffixspec_index.tree_copy import TreeCopy
from tests.threads import ended


def held(index: SuffixIndex) -> Counter[tuple[int, ...]]:
    world = index.world
    return Counter(tuple(world.sequence_tokens(s).tolist()) for s in world)


@pytest.mark.parametrize("seed", range(8))
def test_equals_a_rebuild_under_the_lock(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    index = SuffixIndex(IndexConfig(depth=5, live_chunk=4, session_depth=4))
    live = [index.begin(str(n), [0]) for n in range(3)]

    def say(count: int) -> None:
        for _ in range(count):
            said: Any = [rng.randrange(3) for _ in range(rng.randrange(1, 12))]
            if rng.random() < 0.5:
                index.ingest(said)
            else:
                request = index.begin("s", [0])
                index.advance(request, said_array(said))
                index.finish(request)
            index.advance(rng.choice(live), said_array(said))

    say(30)
    dropped = {
        s for s in index.world if rng.random() < 0.4 and not index.world.sequences[s].is_open
    }
    expected = held(index)
    for sequence in dropped:
        expected[tuple(index.world.sequence_tokens(sequence).tolist())] -= 1
    add = TreeCopy.add
    before = {"told": False}

    def meanwhile(copy: Any, *sequence: Any, **options: Any) -> None:
        add(copy, *sequence, **options)
        if not before["told"]:
            before["told"] = True
            told = held(index)
            say(5)
            if seed % 4 == 3:
                index.world.rebuild(lambda sequence: True)  # somebody else was quicker
            expected.update(held(index) - told)
            expected.subtract(told - held(index))

    monkeypatch.setattr(TreeCopy, "add", meanwhile)
    assert rebuild_aside(index, lambda s: s.id not in dropped, room=5_000) == len(dropped)
    monkeypatch.undo()
    assert held(index) == +expected
    index.check_integrity()
    say(20)
    for request in live:
        index.propose(request)
        index.finish(request)
    index.check_integrity()


@dataclass
class Busy:
    """An index in use: a request of it proposes and goes on whenever a tree is built."""

    index: SuffixIndex
    running: int
    proposed: list[Draft]


@pytest.fixture
def busy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Busy]:
    index = SuffixIndex(IndexConfig(depth=8, live_chunk=4, **getattr(request, "param", {})))
    rng = random.Random(3)
    for _ in range(30):
        index.ingest(rng.choices(range(9), k=20))
    self = Busy(index, index.begin("other", [1, 2, 3]), [])
    add = TreeCopy.add
    since = -1

    def meanwhile(copy: Any, *sequence: Any, **options: Any) -> None:
        nonlocal since
        if since != index.world.generation:
            since = index.world.generation
            told = len(self.proposed)
            thread = threading.Thread(
                daemon=True, target=lambda: self.proposed.append(index.propose(self.running))
            )
            thread.start()
            ended([thread], 20)
            assert len(self.proposed) > told  # nobody holds the lock
            index.advance(self.running, said_array([2_000_000] * 20))
        add(copy, *sequence, **options)

    monkeypatch.setattr(TreeCopy, "add", meanwhile)
    yield self
    assert self.proposed
    monkeypatch.undo()
    index.check_integrity()


def test_requests_go_on_while_an_output_is_taken_back(busy: Busy) -> None:
    shared = busy.index.begin("s", [1])
    busy.index.advance(shared, said_array([77] * 40))
    assert busy.index.world.count([77])
    busy.index.finish(shared, keep=False)
    assert busy.index.world.count([77]) == 0


def test_requests_go_on_while_what_is_old_is_purged(busy: Busy) -> None:
    for number, sequence in enumerate(busy.index.world.sequences.values()):
        sequence.time -= 100.0 * (number % 2)
    busy.index.ingest([11, 12])
    busy.index.purge(before=time.time() - 50.0)
    assert min(s.time for s in busy.index.world.sequences.values()) > time.time() - 50.0
    assert busy.index.world.count([11, 12]) == 1


@pytest.mark.parametrize(
    "busy", [{"max_cached_requests": 30}, {"max_bytes": 1 << 20}], indirect=True
)
def test_requests_go_on_while_the_oldest_are_evicted(busy: Busy) -> None:
    index, rng = busy.index, random.Random(4)
    while len(busy.proposed) < 2:
        index.ingest(rng.choices(range(10**6), k=500))
        assert len(index.world) <= index.config.max_cached_requests
        assert index.nbytes <= index.config.max_bytes
    assert index.statistics().evicted_sequences
    assert index.world.count([2_000_000]) > 0  # what the running request said meanwhile


def test_many_threads_take_back_what_they_shared() -> None:
    index = SuffixIndex(IndexConfig(depth=6, live_chunk=4, max_cached_requests=40))
    faults: list[BaseException] = []

    def work(number: int) -> None:
        rng = random.Random(number)
        try:
            for turn in range(25):
                request = index.begin(f"{number}", [rng.randrange(4)])
                for _ in range(4):
                    index.advance(request, said_array(rng.choices(range(4), k=9)))
                    index.propose(request)
                index.advance(request, said_array([1000 + number] * 20))
                index.finish(request, keep=False)
                index.ingest(rng.choices(range(4), k=20))
                if turn % 10 == 9:
                    index.purge(before=time.time() - 0.01)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(daemon=True, target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    ended(threads)
    assert not faults
    assert all(index.world.count([1000 + number]) == 0 for number in range(4))
    assert len(index.world) <= 40
    assert index.statistics().requests == 0
    index.check_integrity()


def said_array(said: list[int]) -> Any:
    return np.array(said, np.int32)
