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
from suffixspec_index.kernels import check, insert, layout, lookup, step
from suffixspec_index.proposers.suffix import SuffixProposer
from suffixspec_index.tree import SuffixTree
from suffixspec_index.warm_up import is_cold, warm_up


def compiled() -> dict[str, int]:
    """How many signatures each kernel that can be called from Python has."""
    found = {}
    for room in (check, insert, layout, lookup, step):
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
        proposer.advance_batch([request], tokens, [0, len(tokens)])
        proposer.propose_batch([request], [3])
        proposer.finish(request)
        proposer.index.ingest(tokens)
    assert {k: n for k, n in compiled().items() if n != before[k]} == {}


def test_progress_says_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    warm_up(said.append)
    assert said[0] == "loading kernels: inserting, 1 of 6"
    assert len(said) == 6

    monkeypatch.setattr(module, "_any_cold", lambda entries: True)
    monkeypatch.setattr(
        module, "_STAGES", tuple((name, e, lambda: None) for name, e, _ in module._STAGES)
    )
    said.clear()
    warm_up(said.append)
    assert said[-1] == "compiling kernels (once): proposing, 6 of 6"
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
