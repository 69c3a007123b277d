"""Our side of each comparison, kept thin so that the rows measure the product and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from benchmarks.clock import clock
from benchmarks.data import Tokens, Turns
from benchmarks.frontier import Count
from suffixspec_index.proposers.base import Proposer
from suffixspec_index.speculative_config import DraftShape, SpeculativeConfig
from suffixspec_traces.model import TokenSession, Turn
from suffixspec_traces.replay.decode import replay as replay_plan
from suffixspec_traces.replay.plan import ReplayPlan

UNBOUNDED = 1e6
"""A ``max_spec_factor`` that bounds nothing."""


@dataclass(frozen=True, slots=True)
class OurSettings:
    """The settings that the benchmarks vary, named as the peer's where they mean the same."""

    depth: int = 64
    max_spec_factor: float = 1.0
    max_spec_offset: float = 0.0
    min_token_prob: float = 0.1
    num_speculative_tokens: int = 32
    draft_shape: DraftShape = "path"
    step_costs: tuple[float, ...] = ()  # dynamic drafts: milliseconds by draft size

    @property
    def label(self) -> str:
        """Short name for plots."""
        factor, offset = self.max_spec_factor, self.max_spec_offset
        if self.step_costs:
            return f"{self.draft_shape} d{self.depth} dynamic k{self.num_speculative_tokens}"
        bound = "" if factor >= UNBOUNDED else f"f{factor:g} o{offset:g} "
        return (
            f"{self.draft_shape} d{self.depth} {bound}"
            f"p{self.min_token_prob:g} k{self.num_speculative_tokens}"
        )

    @property
    def config(self) -> SpeculativeConfig:
        """The same as a configuration; nothing is evicted, as with the peer."""
        return SpeculativeConfig(
            method="suffix",
            num_speculative_tokens=self.num_speculative_tokens,
            suffix_decoding_max_tree_depth=self.depth,
            suffix_decoding_max_spec_factor=self.max_spec_factor,
            suffix_decoding_max_spec_offset=self.max_spec_offset,
            suffix_decoding_min_token_prob=self.min_token_prob,
            suffix_decoding_max_cached_requests=1_000_000,
            draft_shape=self.draft_shape,
        )


def new_proposer(settings: OurSettings) -> Proposer:
    """A suffix proposer over an empty index."""
    from suffixspec_index.proposers.suffix import SuffixProposer

    proposer = SuffixProposer(settings.config)
    if settings.step_costs:
        proposer.set_step_costs(settings.step_costs)
    return proposer


def insert_all(sequences: Sequence[Tokens], depth: int) -> tuple[object, float]:
    """A global tree of ``sequences`` and the seconds it took."""
    from suffixspec_index.tree import SuffixTree

    tree = SuffixTree(depth=depth)
    began = clock()
    for sequence in sequences:
        tree.insert(sequence)
    return tree, clock() - began


def replay(sessions: Sequence[Turns], settings: OurSettings) -> tuple[Count, float]:
    """Teacher-forced replay through the proposer contract: its count and its seconds."""
    proposer = new_proposer(settings)
    count = Count(settings.label, tree=settings.draft_shape == "tree")
    began = clock()
    for number, turns in enumerate(sessions):
        session = str(number)
        for prompt, output in turns:
            request = proposer.begin(session, prompt)
            truth = output.tolist()
            at = 0
            while at < len(truth):
                draft = proposer.propose(request)
                gained = count.step(draft.token_ids.tolist(), draft.parents.tolist(), truth, at)
                proposer.advance(request, output[at : at + gained])
                at += gained
            proposer.finish(request)
        proposer.end_session(session)
    return count, clock() - began


def plan(sessions: Sequence[Turns]) -> ReplayPlan:
    """The sessions as the product's own replay takes them: one after the other."""
    return ReplayPlan.build(
        [
            TokenSession(str(number), tuple(Turn(prompt, output) for prompt, output in turns))
            for number, turns in enumerate(sessions)
        ],
        concurrency=1,
    )


def replay_speed(planned: ReplayPlan, settings: OurSettings) -> float:
    """Output tokens per second of the product's own replay, with its step log."""
    proposer = new_proposer(settings)
    began = clock()
    replay_plan(planned, proposer)
    return planned.output_tokens / (clock() - began)


@cache
def compile_kernels() -> None:
    """Compile (or load) every kernel before anything is timed."""
    turns: list[Turns] = [[(np.arange(100, dtype=np.int32), np.arange(50, 90, dtype=np.int32))]]
    shapes: tuple[DraftShape, ...] = ("path", "tree")
    for shape in shapes:
        replay(turns, OurSettings(draft_shape=shape))
    replay_speed(plan(turns), OurSettings())
    insert_all([np.arange(100, dtype=np.int32)], 64)


def tree_bytes(tree: object) -> int:
    """What the tree says it occupies."""
    from suffixspec_index.tree import SuffixTree

    assert isinstance(tree, SuffixTree)
    return int(tree.statistics().bytes)
