"""The peer: arctic-inference 0.3.0, the C++ suffix trees inside vLLM's method ``suffix``.

What one must know to measure it fairly (read from its source, confirmed by running it):

* ``SuffixTree(max_depth)`` is the C++ tree: ``extend(seq_id, list)`` / ``extend_ndarray`` (int32,
  contiguous, no copy) append to a sequence and keep ``max_depth`` open suffixes per sequence;
  ``remove(seq_id)``, ``speculate(...)``, ``estimate_memory()`` (walks the tree: nodes, hash maps
  and sibling groups; allocator overhead is not in it), ``check_integrity()`` (``""`` if sound;
  expects sequence ids 0, 1, 2, ... without gaps).
* ``speculate(context, max_spec_tokens, max_spec_factor, max_spec_offset, min_token_prob,
  use_tree_spec)`` matches the context's suffixes of length 1, 2, ... from the root until one is not
  found, drafts at each length ``m`` at most ``min(max_spec_tokens, m * factor + offset)`` tokens,
  and keeps the draft with the largest score (the sum of cumulative count ratios; the longer match
  wins a tie). A context of one token never drafts. The gap ``match + draft <= depth`` holds since
  no node lies deeper than ``max_depth``.
* ``SuffixDecodingCache`` is the Python face that vLLM calls: one global tree of *responses* and one
  tree per request of *prompt + response*, built whole by ``start_request`` on every turn, dropped
  by ``stop_request``. ``speculate`` asks both trees and keeps the better score, the request's own
  on a tie. Open leaves: a request's latest tokens are visible to all others at once.
* ``max_spec_tokens=None`` is an AttributeError (it reads a name that does not exist): always pass a
  number. Its simulator passes the tree depth.
* Neither side is told where a recorded output ends, so the last draft of a turn may run past it;
  its tokens count as drafted.

The tree's state at a position does not depend on what was drafted before, so :func:`frontier`
feeds every output once and lets many settings step through it side by side. That equals running
each alone (``tests/benchmarks/test_peer.py`` shows it) and is an order of magnitude faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks.clock import clock
from benchmarks.data import Tokens, Turns
from benchmarks.frontier import Count


def available() -> bool:
    """Whether the peer is installed (``benchmarks/install_peer.sh`` does that)."""
    return find_spec("arctic_inference") is not None


def new_tree(depth: int) -> Any:
    """One bare C++ tree."""
    from arctic_inference.suffix_decoding._C import SuffixTree

    return SuffixTree(depth)


def new_cache(depth: int) -> Any:
    """The Python face over the global and the per-request trees, nothing evicted."""
    from arctic_inference.suffix_decoding import SuffixDecodingCache

    return SuffixDecodingCache(max_tree_depth=depth, max_cached_requests=-1)


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """One setting of the peer; the names are its own."""

    depth: int = 64
    max_spec_factor: float = 1.0
    max_spec_offset: float = 0.0
    min_token_prob: float = 0.1
    max_spec_tokens: int = 32
    use_tree_spec: bool = False

    @property
    def label(self) -> str:
        """Short name for plots."""
        kind = "tree" if self.use_tree_spec else "path"
        return (
            f"{kind} d{self.depth} f{self.max_spec_factor:g} o{self.max_spec_offset:g} "
            f"p{self.min_token_prob:g} k{self.max_spec_tokens}"
        )


def speculate(cache: Any, request: int, context: Tokens, s: PeerSettings) -> Any:
    """The better of both trees' drafts after ``context``."""
    return cache.speculate(
        request,
        context,
        max_spec_tokens=s.max_spec_tokens,
        max_spec_factor=s.max_spec_factor,
        max_spec_offset=s.max_spec_offset,
        min_token_prob=s.min_token_prob,
        use_tree_spec=s.use_tree_spec,
    )


def insert_all(sequences: Sequence[Tokens], depth: int) -> tuple[Any, float]:
    """A global tree of ``sequences`` and the seconds it took."""
    tree = new_tree(depth)
    began = clock()
    for number, sequence in enumerate(sequences):
        tree.extend_ndarray(number, sequence)
    return tree, clock() - began


def tree_bytes(tree: Any) -> int:
    """What the peer's tree says it occupies."""
    return int(tree.estimate_memory())


def frontier(sessions: Sequence[Turns], settings: Sequence[PeerSettings]) -> list[Count]:
    """Teacher-forced replay of ``sessions`` in order for many settings of one depth at once."""
    depths = {s.depth for s in settings}
    if len(depths) != 1:
        raise ValueError(f"frontier: settings must share one depth, got {sorted(depths)}")
    cache = new_cache(depths.pop())
    counts = [Count(s.label, tree=s.use_tree_spec) for s in settings]
    rivals = list(zip(settings, counts, strict=True))
    request = 0
    for turns in sessions:
        for prompt, output in turns:
            request += 1
            cache.start_request(request, np.ascontiguousarray(prompt))
            _turn(cache, request, prompt, output, rivals)
            cache.stop_request(request)
    return counts


def _turn(
    cache: Any,
    request: int,
    prompt: Tokens,
    output: Tokens,
    rivals: Sequence[tuple[PeerSettings, Count]],
) -> None:
    depth = cache.max_tree_depth
    known = np.concatenate([prompt[-depth:], output])
    lead = len(known) - len(output)
    truth = output.tolist()
    due = [0] * len(rivals)  # the position at which each setting takes its next step
    for at in range(len(truth)):
        context = known[max(0, lead + at - depth) : lead + at]
        for k, (settings, count) in enumerate(rivals):
            if due[k] == at:
                draft = speculate(cache, request, context, settings)
                due[k] += count.step(draft.token_ids, draft.parents, truth, at)
        cache.add_active_response(request, output[at : at + 1])


def replay_alone(sessions: Sequence[Turns], settings: PeerSettings) -> tuple[Count, float]:
    """The plain loop a caller of the peer writes, timed: its count and its seconds."""
    cache = new_cache(settings.depth)
    count = Count(settings.label, tree=settings.use_tree_spec)
    began = clock()
    for request, (prompt, output) in enumerate(turn for turns in sessions for turn in turns):
        cache.start_request(request, np.ascontiguousarray(prompt))
        known = np.concatenate([prompt, output])
        truth = output.tolist()
        at = 0
        while at < len(truth):
            end = len(prompt) + at
            context = known[max(0, end - settings.depth) : end]
            draft = speculate(cache, request, context, settings)
            gained = count.step(draft.token_ids, draft.parents, truth, at)
            cache.add_active_response(request, output[at : at + gained])
            at += gained
        cache.stop_request(request)
    return count, clock() - began


def simulator_speed(sessions: Sequence[Turns], settings: PeerSettings) -> float:
    """Output tokens per second of the peer's own simulator.

    Only its ``suffix_decode`` is called, so its tokenizing and reporting are not in the time.
    """
    from arctic_inference.suffix_decoding.simulator import suffix_decode

    cache = new_cache(settings.depth)
    turns = [(np.ascontiguousarray(p), np.ascontiguousarray(o)) for s in sessions for p, o in s]
    began = clock()
    for request, (prompt, output) in enumerate(turns):
        suffix_decode(
            cache,
            request,
            prompt,
            output,
            max_spec_tokens=settings.max_spec_tokens,
            max_spec_factor=settings.max_spec_factor,
            min_token_prob=settings.min_token_prob,
            use_tree_spec=settings.use_tree_spec,
            use_cached_prompt=True,
        )
    return sum(len(o) for _, o in turns) / (clock() - began)
