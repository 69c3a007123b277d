"""``python -m benchmarks.memory ours|peer DEPTH``: bytes per token of one global tree, as JSON.

A process of its own, so that what other benchmarks allocated and freed cannot hide the growth.
``estimate`` is what the rival itself reports, ``resident`` the growth of the process's resident
memory (Linux only; ``null`` elsewhere), both over the number of indexed tokens.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
from pathlib import Path

import numpy as np

from benchmarks import ours, peer
from benchmarks.data import Tokens, load_corpus
from benchmarks.harness import ROOT


def resident_bytes() -> int | None:
    """The resident memory of this process."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return None
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def return_freed_memory() -> None:
    """What the preparation freed must leave the process, or what follows would grow into it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)


def measure(rival: str, depth: int) -> dict[str, float | None]:
    """Index every output of the corpus and see what it takes."""
    outputs = load_corpus(ROOT).outputs()
    tokens = sum(map(len, outputs))
    if rival == "ours":
        ours.compile_kernels()
    else:
        peer.new_tree(depth).extend_ndarray(0, np.arange(100, dtype=np.int32))
    gc.collect()
    return_freed_memory()
    before = resident_bytes()
    tree, estimate = _build(rival, outputs, depth)
    gc.collect()
    after = resident_bytes()
    assert tree is not None  # it must live until here
    grown = None if before is None or after is None else (after - before) / tokens
    return {"estimate": estimate / tokens, "resident": grown}


def _build(rival: str, outputs: list[Tokens], depth: int) -> tuple[object, int]:
    if rival == "ours":
        tree, _ = ours.insert_all(outputs, depth)
        return tree, ours.tree_bytes(tree)
    tree, _ = peer.insert_all(outputs, depth)
    return tree, peer.tree_bytes(tree)


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
