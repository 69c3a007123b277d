"""Depth inside vLLM: how long each draft of a step should be, from what vLLM's steps take.

vLLM tells a proposer nothing about time, but calls it once per step: from the end of one call to
the beginning of the next, the model ran. Steps are told apart by their tokens, and what a step of
each size takes is learned (:class:`~suffixspec_index.depth.MeasuredCost`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.depth import DepthController, MeasuredCost
from suffixspec_index.draft import DraftBatch

Propose = Callable[[NDArray[np.int32], float | None], DraftBatch]
"""Drafts for the rows of a step, given limits and the least probability worth drafting."""


@dataclass(frozen=True, slots=True)
class _Planned:
    """The step that vLLM is running.

    ``numbers`` are its requests; ``tokens`` how many it verifies, if it computes no prompts.
    """

    numbers: tuple[int, ...]
    tokens: int
    context_tokens: int
    propose_ms: float
    ended: float


class StepDepth:
    """Depths for the batches of one model runner.

    Args:
        clock: seconds; for tests.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.cost = MeasuredCost()
        self.controller = DepthController(self.cost)
        self._clock = clock
        self._planned: _Planned | None = None

    def learn(
        self,
        numbers: Sequence[int],
        gained: Sequence[NDArray[np.int32]],
        scheduled_tokens: int | None,
    ) -> None:
        """The step that was planned last has been verified. To be called first in every step.

        Args:
            numbers: the requests of this step, old and new.
            gained: per request, its new tokens.
            scheduled_tokens: in the step, prompts included, where vLLM's runner said so.
        """
        planned, self._planned = self._planned, None
        if planned is None or not planned.numbers:
            return
        found = dict(zip(numbers, gained, strict=True))
        if any(number not in found for number in planned.numbers):
            return  # one was preempted or cut off: what its draft was worth is unknown
        rows = [found[number] for number in planned.numbers]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        tokens = np.concatenate(rows).astype(np.int32, copy=False)
        self.controller.learn(tokens, offsets, propose_ms=planned.propose_ms)
        only_these = len(found) == len(planned.numbers)
        if scheduled_tokens is None and not only_these:
            return  # a prompt was computed too, of unknown length
        self.cost.observe(
            scheduled_tokens or planned.tokens,
            planned.context_tokens,
            len(numbers),
            1e3 * (self._clock() - planned.ended),
        )

    def propose(
        self,
        numbers: Sequence[int],
        lengths: Sequence[int],
        limits: Sequence[int],
        propose: Propose,
    ) -> DraftBatch:
        """The drafts of a step, as long as they are worth verifying.

        Args:
            numbers: the requests.
            lengths: tokens of their contexts.
            limits: most draft tokens of each.
            propose: asks the proposers.
        """
        began = self._clock()
        context = sum(lengths)
        plan = self.controller.plan(numbers, context_tokens=context, limits=limits)
        drafts = propose(plan.limits.astype(np.int32), plan.min_prob)
        chosen = self.controller.choose(drafts)
        ended = self._clock()
        self._planned = _Planned(
            numbers=tuple(numbers),
            tokens=len(numbers) + len(chosen.token_ids),
            context_tokens=context,
            propose_ms=1e3 * (ended - began),
            ended=ended,
        )
        return chosen

    def forget(self, number: int) -> None:
        """A request has ended."""
        self.controller.forget(number)
