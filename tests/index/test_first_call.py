"""The first call: kernels are compiled once, ahead of time, and that is shown."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suffixspec_index import warm_up as module
from suffixspec_index.depth import DepthController, MeasuredCost
from suffixspec_index.draft import DraftBatch
from suffixspec_index.kernels import check, depth, insert, layout, lookup, step
from suffixspec_index.proposers.suffix import SuffixProposer
from suffixspec_index.tree import SuffixTree
from suffixspec_index.warm_up import is_cold, warm_up


def compiled() -> dict[str, int]:
    """How many signatures each kernel that can be called from Python has."""
    found = {}
    for room in (check, depth, insert, layout, lookup, step):
        for name, kernel in vars(room).items():
            if hasattr(kernel, "signatures"):
                found[f"{room.__name__}.{name}"] = len(kernel.signatures)
    return found


def kinds_of(tokens: list[int]) -> list[Any]:
    """The same tokens in every form that callers have them in."""
    array = np.array(tokens, np.int32)
    locked = array.copy()
    locked.setflags(write=False)
    strided = np.repeat(array, 2)[::2]
    return [tokens, tuple(tokens), array, locked, strided, array.astype(np.int64), array[:]]


def test_nothing_is_compiled_after_warming_up() -> None:
    warm_up()
    assert not is_cold()
    before = compiled()
    for tokens in kinds_of([1, 2, 3, 1, 2, 4]):
        tree = SuffixTree(8, live_chunk=2)
        tree.insert(tokens)
        sequence = tree.open(tokens)
        tree.extend(sequence, tokens)
        tree.match(tokens)
        tree.count(tokens[:2])
        tree.draft(tokens, tree=True)
        tree.close(sequence)
        tree.evict([sequence])
        tree.check_integrity()
        proposer = SuffixProposer(vocab_size=10, forbidden=[9])
        request = proposer.begin("s", tokens)
        proposer.propose(request)
        proposer.index.propose(request, np.int32(2))  # type: ignore[arg-type]
        proposer.index.propose_batch([request], np.array([2], np.int32))
        proposer.advance(request, tokens)
        for offsets in kinds_of([0, len(tokens)]):
            proposer.advance_batch([request], tokens, offsets)
        proposer.propose_batch([request], [3])
        proposer.finish(request)
        proposer.index.ingest(tokens)
    assert {k: n for k, n in compiled().items() if n != before[k]} == {}


def test_no_depth_is_chosen_by_a_kernel_that_is_compiled_meanwhile() -> None:
    """The engine begins to choose depths some steps after the first request came."""
    warm_up()
    before = compiled()
    cost = MeasuredCost()
    rule = DepthController(cost)
    proposer = SuffixProposer(vocab_size=10)
    requests = [proposer.begin(name, [1, 2, 3, 4] * 3) for name in "ab"]
    seen = 0
    for at in range(8):
        plan = rule.plan([0, 1], context_tokens=24.0 + at, tokens=2, limits=[4, 9])
        drafts = DraftBatch.of(list(proposer.propose_batch(requests, plan.limits.tolist())))
        chosen = rule.choose(drafts, [rule.calibration] * 2)
        rule.claims(chosen)
        tokens, offsets = np.full(2, at % 4 + 1, np.int32), np.arange(3)
        proposer.advance_batch(requests, tokens, offsets)
        rule.learn(tokens, offsets, propose_ms=0.1)
        cost.observe(2 + len(chosen.token_ids), 24.0 + at, 2, 5.0)
        seen += len(chosen.token_ids)
    assert seen
    assert {k: n for k, n in compiled().items() if n != before[k]} == {}


def test_progress_says_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    warm_up(said.append)
    assert said[0] == "loading kernels: inserting, 1 of 7"
    assert len(said) == 7

    monkeypatch.setattr(module, "_any_cold", lambda entries: True)
    monkeypatch.setattr(
        module, "_STAGES", tuple((name, e, lambda: None) for name, e, _ in module._STAGES)
    )
    said.clear()
    warm_up(said.append)
    assert said[-1] == "compiling kernels (once): choosing depths, 7 of 7"
    assert is_cold()


def _cold_in(cache: Path) -> bool:
    code = "from suffixspec_index.warm_up import is_cold; print(is_cold())"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"NUMBA_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return result.stdout.strip() == "True"


def test_a_new_machine_is_cold(tmp_path: Path) -> None:
    assert _cold_in(tmp_path)


def test_a_second_process_loads_what_the_first_compiled() -> None:
    warm_up()
    code = "from suffixspec_index.warm_up import is_cold; print(is_cold())"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert result.stdout.strip() == "False"


def test_kernels_of_other_sources_are_cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stamp holds a digest of all kernel sources: an edit anywhere makes everything cold."""
    file = step.propose_batch._cache._cache_file
    assert file._load_index()
    stamp = file._source_stamp
    monkeypatch.setattr(file, "_source_stamp", (stamp[0], "another digest"))
    assert not module._is_stored(step.propose_batch)
