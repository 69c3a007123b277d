"""One trial: an index is warmed, then sessions are decoded with it, and their time is predicted."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.depth import DepthSettings, create_depth_rule
from suffixspec_index.proposers import create_proposer
from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_traces.cost import DecodeWork, PointsCost, RooflineCost, predict
from suffixspec_traces.cost.proposing import ProposingCost
from suffixspec_traces.replay import ReplayPlan, ReplayResult, Step, replay, warm_up
from suffixspec_traces.tuning.packing import PackedSession
from suffixspec_traces.tuning.split import Parts

Cost = PointsCost | RooflineCost
Phase = Literal["trial", "judgement"]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Score:
    """What a setting did, and what it is predicted to cost, at one concurrency.

    Attributes:
        output_tokens, steps, drafted, accepted: counted.
        largest_draft: most tokens in one draft.
        plain_ms_per_token: predicted without speculation.
        ms_per_token: predicted with it, the proposer's time left out, so that equal settings score
            equally whenever they are tried.
        proposer_ms_per_token: the proposer's measured time, of all requests of the step, without
            the steps in which the machine did something else.
        plain_ms, spent_ms: ``(sessions,)`` predicted milliseconds of each session, without and
            with speculation (the proposer's time included); they add up to the figures above.
    """

    output_tokens: int
    steps: int
    drafted: int
    accepted: int
    largest_draft: int
    plain_ms_per_token: float
    ms_per_token: float
    proposer_ms_per_token: float
    plain_ms: Floats
    spent_ms: Floats

    @property
    def total_ms_per_token(self) -> float:
        """Predicted milliseconds per output token, the proposer's time included."""
        return self.ms_per_token + self.proposer_ms_per_token

    @property
    def tokens_per_step(self) -> float:
        """Output tokens over all steps."""
        return self.output_tokens / self.steps

    @property
    def wasted_per_token(self) -> float:
        """Draft tokens that were not accepted, per output token."""
        return (self.drafted - self.accepted) / self.output_tokens


@dataclass(frozen=True, slots=True)
class BenchRecipe:
    """All that a process needs to make a :class:`Bench`; cheap to pickle."""

    sessions: tuple[PackedSession, ...]
    sizes: tuple[int, int, int, int]  # history, warm, tuning, held_out
    cost: Cost
    vocab_size: int | None

    @staticmethod
    def of(parts: Parts, cost: Cost, vocab_size: int | None) -> BenchRecipe:
        """Pack the parts; ``warm`` and ``tuning`` are the end of ``history``."""
        return BenchRecipe(
            tuple(PackedSession.of(s) for s in (*parts.history, *parts.held_out)),
            (len(parts.history), len(parts.warm), len(parts.tuning), len(parts.held_out)),
            cost,
            vocab_size,
        )

    def bench(self) -> Bench:
        """Unpack."""
        sessions = tuple(p.unpacked() for p in self.sessions)
        n, warm, tuning, _ = self.sizes
        recent = sessions[n - warm - tuning : n]
        parts = Parts(recent[:warm], recent[warm:], sessions[n:], sessions[:n])
        return Bench(parts, self.cost, self.vocab_size)


class Bench:
    """Decodes the parts of a split with any setting. Plans are made once."""

    def __init__(self, parts: Parts, cost: Cost, vocab_size: int | None) -> None:
        self.parts = parts
        self.cost = cost
        self.vocab_size = vocab_size
        self._plans: dict[tuple[Phase, int], tuple[ReplayPlan, ReplayPlan]] = {}
        self._warmed: set[tuple[str, int]] = set()

    def evaluate(
        self,
        config: SpeculativeConfig,
        concurrency: int,
        phase: Phase = "trial",
        stop: threading.Event | None = None,
    ) -> Score | None:
        """Warm an index with what came before, decode the part that ``phase`` looks at, predict.

        Returns:
            The score; ``None`` if it was stopped.

        Raises:
            ConfigError: the setting cannot be replayed.
        """
        before, scored = self._plan(phase, concurrency)
        if (config.method, min(concurrency, 2)) not in self._warmed:
            warm_up(scored, lambda: create_proposer(config, vocab_size=self.vocab_size))
            self._warmed.add((config.method, min(concurrency, 2)))
        proposer = create_proposer(config, vocab_size=self.vocab_size)
        depth = create_depth_rule(config, self.cost, DepthSettings(load=concurrency))
        if before.turns and replay(before, proposer, depth=depth, stop=stop).partial:
            return None
        result = replay(scored, proposer, depth=depth, stop=stop)
        return None if result.partial else score(result, self.cost, concurrency)

    def _plan(self, phase: Phase, concurrency: int) -> tuple[ReplayPlan, ReplayPlan]:
        key = (phase, concurrency)
        if key not in self._plans:
            parts = self.parts
            before, scored = (
                (parts.warm, parts.tuning) if phase == "trial" else (parts.history, parts.held_out)
            )
            self._plans[key] = (
                ReplayPlan.build(before, concurrency=concurrency),
                ReplayPlan.build(scored, concurrency=concurrency),
            )
        return self._plans[key]


def _undisturbed(ns: NDArray[np.int64]) -> Floats:
    """Times of steps, the longest hundredth cut to what the others take at most.

    Those are the steps in which the machine did something else, for milliseconds; a handful of
    them would outweigh all that the proposer did.
    """
    times = ns.astype(np.float64)
    return np.minimum(times, np.quantile(times, 0.99)) if len(times) else times


def score(result: ReplayResult, cost: Cost, concurrency: int) -> Score:
    """Count and predict a whole replay. O(steps)."""
    log, plan, n = result.log, result.plan, concurrency
    turn_session = np.array([t.session for t in plan.turns], np.int64)
    turn_prompt = np.array([len(t.turn.prompt) for t in plan.turns], np.int64)
    turn_output = np.array([t.output_tokens for t in plan.turns], np.int64)
    turn, drafted = log.column(Step.TURN), log.column(Step.DRAFTED)
    context = turn_prompt[turn] + log.column(Step.POSITION)
    tokens = int(turn_output.sum())
    turn_context = turn_prompt + (turn_output - 1) / 2  # mean over the turn's tokens
    session = turn_session[turn]
    proposing = ProposingCost.of(
        log.column(Step.BATCH), _undisturbed(log.propose_ns) + _undisturbed(log.advance_ns)
    )
    proposer_ns = np.bincount(session, proposing.request_ns, len(plan.sessions))
    proposer_ns += np.bincount(turn_session, result.begin_ns + result.finish_ns, len(plan.sessions))
    calls_ns = np.bincount(session, minlength=len(plan.sessions)) * proposing.call_ns
    proposer_ms = (n * proposer_ns + calls_ns) / 1e6
    prediction = predict(
        cost,
        DecodeWork(
            tokens=tokens,
            drafted=drafted,
            step_context=context,
            token_context=float((turn_output * turn_context).sum() / tokens),
            overhead_ms=float(proposer_ns.sum()) / 1e6,
            batch=log.column(Step.BATCH) if result.load else None,
            call_ms=proposing.call_ns / 1e6,
        ),
        n,
    )
    verified = prediction.ms_per_token - prediction.proposer_ms_per_token
    plain_ms = np.bincount(
        turn_session, turn_output * cost.step_ms(n, n * turn_context, n), len(plan.sessions)
    )
    # Above one request at a time, the mean cost of a step by its own size stands for the mixed
    # batch's; scaling makes the sum what the mixed batches cost.
    step_ms = np.bincount(
        turn_session[turn],
        cost.step_ms(n * (1 + drafted), n * context, n),
        len(plan.sessions),
    )
    return Score(
        output_tokens=tokens,
        steps=len(log),
        drafted=int(drafted.sum()),
        accepted=int(log.column(Step.ACCEPTED).sum()),
        largest_draft=int(drafted.max(initial=0)),
        plain_ms_per_token=prediction.plain_ms_per_token,
        ms_per_token=verified,
        proposer_ms_per_token=prediction.proposer_ms_per_token,
        plain_ms=plain_ms * (tokens * prediction.plain_ms_per_token / plain_ms.sum()),
        spent_ms=step_ms * (tokens * verified / step_ms.sum()) + proposer_ms,
    )
