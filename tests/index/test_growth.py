"""Arrays that grow hold up nobody who asked before whether something could take long."""

from __future__ import annotations

import numpy as np
import pytest

from suffixspec_index import forest
from suffixspec_index.index import SuffixIndex
from suffixspec_index.index_config import IndexConfig
from suffixspec_index.kernels.layout import H_HASH_CAP, H_TEXT_CAP


def capacities(index: SuffixIndex) -> list[int]:
    """Of the global tree's arrays."""
    caps: list[int] = index._forest.table[index.world.row, H_TEXT_CAP : H_HASH_CAP + 1].tolist()
    return caps


@pytest.mark.parametrize("words", [40, 9000])  # many nodes, or many leaves and a large hash
def test_a_large_tree_grows_only_where_it_said_that_it_may_stall(
    words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forest, "_LARGE", 1 << 13)
    rng = np.random.default_rng(words)
    index = SuffixIndex(IndexConfig(depth=16, live_chunk=64))
    grown = calm = 0
    for _ in range(400):
        before, warned = capacities(index), index.may_stall()
        index.ingest(rng.integers(0, words, int(rng.integers(1, 1000))))
        if before[0] < 1 << 13:
            assert not warned  # what is small is quick to copy
        elif capacities(index) != before:
            assert warned
            grown += 1
        else:
            calm += not warned
    assert grown > 5
    assert calm > 200


def test_so_does_a_step_of_many_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forest, "_LARGE", 1 << 13)
    rng = np.random.default_rng(2)
    index = SuffixIndex(IndexConfig(depth=16, live_chunk=32))
    rows = 8
    handles = [index.begin(f"s{row}", [row]) for row in range(rows)]
    grown = 0
    for _ in range(1500):
        before, warned = capacities(index), index.may_stall(rows)
        index.advance_batch(
            handles, rng.integers(0, 900, 4 * rows).astype(np.int32), np.arange(rows + 1) * 4
        )
        if before[0] >= 1 << 13 and capacities(index) != before:
            assert warned
            grown += 1
    assert grown > 5
