"""A tree built anew beside the old one holds what the slow way leaves, whatever comes meanwhile."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from suffixspec_index.index import SuffixIndex
from suffixspec_index.index_config import IndexConfig
from suffixspec_index.rebuilding import rebuild_aside
from suffixspec_index.tree_copy import TreeCopy


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


def said_array(said: list[int]) -> Any:
    return np.array(said, np.int32)
