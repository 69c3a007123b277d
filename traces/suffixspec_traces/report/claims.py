"""Probabilities before anything was learned, for the draft tokens of a replay.

What a proposer says of a token is kept in the log. The suffix index is different: it has learned
when it speaks. For its tokens the ratio is taken that SuffixDecoding would have taken
(arXiv 2411.04975): of the places where the longest match of the context stands in the tree, the
share after which the drafted tokens follow. The trees are made again from the replay's text: one
of the request's own context, and one of the outputs that had ended before it began.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.draft import Source
from suffixspec_index.tree import SuffixTree
from suffixspec_traces.replay.decode import ReplayResult
from suffixspec_traces.replay.log import Step, StepLog

DEPTH = 24  # of SuffixDecoding's trees, as vLLM has them
SAMPLE_TOKENS = 1_000_000  # of contexts that trees are made of again
SAMPLE_NODES = 20_000

Basis = Literal["as claimed", "ratios of counts", "ratios of counts and as claimed"]
Longs = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Claims:
    """``nodes``: ``(n,)`` int64 draft nodes of the log, rising; ``probs``: ``(n,)`` float32, their
    probabilities before anything was learned; ``basis``: what those are."""

    nodes: Longs
    probs: NDArray[np.float32]
    basis: Basis


def claims_of(result: ReplayResult) -> Claims:
    """The probabilities before learning. Tokens of an index are sampled by turn, evenly over the
    replay; those that ratios of counts would not have proposed are left out, as there is nothing
    to compare. O(nodes), and about 10 µs for each sampled token of an index."""
    log = result.log
    indexed = np.isin(log.node_sources, (Source.SESSION, Source.GLOBAL))
    said = np.flatnonzero(~indexed)
    if not indexed.any():
        return Claims(said, log.node_claims[said], "as claimed")
    nodes, ratios = _count_ratios(result)
    if not len(said):
        return Claims(nodes, ratios, "ratios of counts")
    # Both kinds weigh as they do in the whole log.
    wanted = max(round(len(said) * len(nodes) / int(indexed.sum())), 1)
    said = said[np.linspace(0, len(said) - 1, wanted).astype(np.int64)]
    both = np.concatenate([nodes, said])
    probs = np.concatenate([ratios, log.node_claims[said]])
    order = np.argsort(both, kind="stable")
    return Claims(both[order], probs[order], "ratios of counts and as claimed")


def _count_ratios(result: ReplayResult) -> tuple[Longs, NDArray[np.float32]]:
    """Nodes of an index in the sampled turns, and their ratios."""
    log, plan = result.log, result.plan
    steps = _steps_of_turns(log, len(plan.turns))
    sample = _sampled(result, steps)
    world = SuffixTree(DEPTH)
    ended = sorted((int(own[-1]), turn) for turn, own in enumerate(steps) if len(own))
    offsets, next_ended = log.node_offsets, 0
    nodes: list[int] = []
    ratios: list[float] = []
    for turn in sorted(sample, key=lambda t: int(steps[t][0])):
        while next_ended < len(ended) and ended[next_ended][0] < steps[turn][0]:
            done = plan.turns[ended[next_ended][1]]
            world.insert(plan.outputs[done.start : done.end])
            next_ended += 1
        planned = plan.turns[turn]
        output = plan.outputs[planned.start : planned.end]
        context = np.concatenate([planned.turn.prompt, output])
        own = SuffixTree(DEPTH)
        sequence = own.open(planned.turn.prompt)
        for step in steps[turn].tolist():
            at = int(log.column(Step.POSITION)[step])
            gained = int(log.column(Step.GAINED)[step])
            before = len(planned.turn.prompt) + at
            scorer = _Scorer(own, world, context[max(before - DEPTH, 0) : before])
            for node, ratio in scorer.ratios(log, int(offsets[step]), int(offsets[step + 1])):
                nodes.append(node)
                ratios.append(ratio)
            own.extend(sequence, output[at : at + gained])
    order = np.argsort(np.array(nodes, np.int64), kind="stable")
    return np.array(nodes, np.int64)[order], np.array(ratios, np.float32)[order]


def _steps_of_turns(log: StepLog, turns: int) -> list[Longs]:
    """The steps of every turn, in order."""
    order = np.argsort(log.column(Step.TURN), kind="stable")
    bounds = np.searchsorted(log.column(Step.TURN)[order], np.arange(1, turns))
    return np.split(order, bounds)


def _sampled(result: ReplayResult, steps: list[Longs]) -> list[int]:
    """Turns evenly over the replay, within the bounds of the sample."""
    drafted = result.log.column(Step.DRAFTED)
    found = [turn for turn, own in enumerate(steps) if len(own)]
    size = [len(result.plan.turns[t].turn.prompt) for t in found]
    nodes = [int(drafted[steps[t]].sum()) for t in found]
    share = min(SAMPLE_TOKENS / max(sum(size), 1), SAMPLE_NODES / max(sum(nodes), 1), 1.0)
    wanted = max(int(len(found) * share), 1)
    return [found[i] for i in np.unique(np.linspace(0, len(found) - 1, wanted).astype(np.int64))]


class _Scorer:
    """Ratios of counts behind one context."""

    def __init__(self, own: SuffixTree, world: SuffixTree, tail: NDArray[np.int32]) -> None:
        self._trees = {Source.SESSION: own, Source.GLOBAL: world}
        self._tail = tail
        self._lengths = {source: tree.match(tail) for source, tree in self._trees.items()}

    def ratios(self, log: StepLog, first: int, last: int) -> Iterator[tuple[int, float]]:
        """Nodes of an index in ``[first, last)`` whose context is known, and their ratios."""
        tokens, parents, sources = log.node_tokens, log.node_parents, log.node_sources
        paths: list[list[int]] = []
        for node in range(first, last):
            parent = int(parents[node])
            paths.append([*(paths[parent] if parent >= 0 else []), int(tokens[node])])
            source = Source(int(sources[node]))
            if source in self._trees and (ratio := self._ratio(source, paths[-1])) is not None:
                yield node, ratio

    def _ratio(self, source: Source, path: list[int]) -> float | None:
        """By the tree the token came from, else by the other; ``None``: neither has a match."""
        other = Source.GLOBAL if source == Source.SESSION else Source.SESSION
        for one in (source, other):
            length = min(self._lengths[one], DEPTH - len(path))
            if length > 0:
                match = self._tail[-length:]
                behind = np.array([*match, *path], np.int32)
                tree = self._trees[one]
                return tree.count(behind) / max(tree.count(match), 1)
        return None
