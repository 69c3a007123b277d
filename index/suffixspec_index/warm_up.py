"""Compiling or loading every kernel of the suffix index ahead of the first call.

Kernels are compiled once per machine and version and then kept on disk (``kernels/jit.py``). That
first time takes about a minute; loading takes a fifth of a second. A program that must answer
soon calls :func:`warm_up` when it starts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from suffixspec_index.depth import DepthController, MeasuredCost
from suffixspec_index.draft import DraftBatch
from suffixspec_index.index import SuffixIndex
from suffixspec_index.index_config import IndexConfig
from suffixspec_index.kernels import check, depth, insert, layout, lookup, step, varint
from suffixspec_index.tree import SuffixTree


def warm_up(progress: Callable[[str], None] | None = None) -> None:
    """Make sure that no later call of the index waits for a compiler.

    Args:
        progress: called before each stage with what it is doing, e.g. ``"compiling kernels
            (once): inserting, 1 of 7"``, or ``"loading kernels: ..."`` where they are on disk.
    """
    for number, (name, entries, run) in enumerate(_STAGES, start=1):
        if progress is not None:
            doing = "compiling kernels (once)" if _any_cold(entries) else "loading kernels"
            progress(f"{doing}: {name}, {number} of {len(_STAGES)}")
        run()


def is_cold() -> bool:
    """Whether a kernel is still to be compiled: neither in this process nor on disk. O(kernels)."""
    return any(_any_cold(entries) for _, entries, _ in _STAGES)


def _any_cold(entries: tuple[Any, ...]) -> bool:
    return any(not kernel.signatures and not _is_stored(kernel) for kernel in entries)


def _is_stored(kernel: Any) -> bool:
    """Whether a fresh compilation for this processor is on disk."""
    magic = kernel.targetctx.codegen().magic_tuple()
    stored = kernel._cache._cache_file._load_index()
    return any(magic in key for key in stored)


def _insert() -> None:
    tree = SuffixTree(4, live_chunk=1)
    sequence = tree.open(range(6))
    tree.extend(sequence, range(6))
    tree.close(sequence)
    for _ in range(2):
        tree.insert(np.arange(3000) % 997)  # large enough to grow every array
    tree.insert_many(np.arange(4), [0, 2, 4], [0.0, 0.0])


def _pack() -> None:
    out = np.empty(varint.MOST, np.uint8)
    size = varint.encode_varints(np.ones(1, np.int64), out)
    varint.decode_varints(out[:size], np.empty(1, np.int64))


def _look_up() -> None:
    tree = SuffixTree(4)
    tree.insert([1, 2, 3, 1, 2])
    tree.count([1, 2])
    tree.draft([1, 2])


def _check() -> None:
    tree = SuffixTree(4)
    tree.insert([1, 2, 1])
    tree.check_integrity()


def _steps() -> tuple[SuffixIndex, int]:
    index = SuffixIndex(IndexConfig(depth=4, session_depth=4, live_chunk=4))
    return index, index.begin("warm-up", [1, 2, 3, 1, 2])


def _advance() -> None:
    index, request = _steps()
    index.advance_batch([request], np.array([3, 1], np.int32), np.array([0, 2], np.int64))
    index.finish(request)


def _propose() -> None:
    index, request = _steps()
    index.propose(request)
    index.propose_batch([request])


def _choose() -> None:
    index, request = _steps()
    rule = DepthController(MeasuredCost())
    rule.plan([0], context_tokens=5.0)
    drafts = DraftBatch.of([index.propose(request)])
    assert len(drafts.token_ids)
    rule.claims(rule.choose(drafts))
    rule.learn(drafts.token_ids[:1], np.array([0, 1], np.int64))
    index.finish(request)


# What is compiled together: a name, the kernels that Python calls, and something that calls them.
_STAGES: tuple[tuple[str, tuple[Any, ...], Callable[[], object]], ...] = (
    (
        "inserting",
        (insert.insert_text, insert.insert_sequences, insert.insert_windows, layout.rehash),
        _insert,
    ),
    (
        "looking up",
        (lookup.count_string, lookup.longest_match, lookup.frequency_draft),
        _look_up,
    ),
    ("packing", (varint.encode_varints, varint.decode_varints), _pack),
    ("checking", (check.check_tree,), _check),
    ("advancing", (step.warm_cursor, step.advance_batch), _advance),
    ("proposing", (step.propose_one, step.propose_batch), _propose),
    (
        "choosing depths",
        (depth.calibrated, depth.choose, depth.origins, depth.learn),
        _choose,
    ),
)
