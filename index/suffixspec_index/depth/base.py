"""The contract of a depth rule: what the engine and the replay call around their proposers.

plan = rule.plan(requests, context_tokens=..., tokens=..., limits=...)
drafts = propose_for(proposer, requests, plan)
drafts = rule.choose(drafts)
...                              # the target model verifies them
rule.learn(token_ids, offsets)   # what every request gained
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.depth.calibration import DraftCalibration
from suffixspec_index.draft import DraftBatch
from suffixspec_index.proposers.base import Proposer


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What to ask of proposers.

    Attributes:
        limits: ``(rows,)`` int64, most draft tokens per request; 0: do not ask for it.
        min_prob: draft tokens less probable than this would not be chosen; ``None``: as configured.
    """

    limits: NDArray[np.int64]
    min_prob: float | None = None


class DepthRule(ABC):
    """See the module docstring. Not thread-safe: it belongs to one engine or replay."""

    @abstractmethod
    def plan(
        self,
        requests: Sequence[int],
        *,
        context_tokens: float,
        tokens: int | None = None,
        limits: Sequence[int] | NDArray[np.integer[Any]] | None = None,
        weights: Sequence[float] | None = None,
    ) -> StepPlan:
        """Look at a step before drafting for it.

        Args:
            requests: a number for each request that may have a draft.
            context_tokens: tokens of cache that the step reads, all requests together.
            tokens: in the step without drafts; ``None``: one per request.
            limits: most draft tokens per request.
            weights: of the requests' gains against each other; ``None``: equal.
        """

    @abstractmethod
    def choose(
        self, drafts: DraftBatch, experience: Sequence[DraftCalibration] | None = None
    ) -> DraftBatch:
        """What is to be verified of the drafts, one per request of :meth:`plan`, in its order.

        Args:
            drafts: as proposers made them.
            experience: of each request's namespace, what its drafts' probabilities are worth; it is
                learned from them too. ``None``: all requests share the rule's own.
        """

    def claims(self, chosen: DraftBatch) -> NDArray[np.float32]:
        """``(n,)`` float32: what the proposers said of the draft tokens that :meth:`choose` gave
        out; to be looked at only. O(n)."""
        return chosen.probs

    @abstractmethod
    def learn(
        self,
        token_ids: NDArray[np.int32],
        offsets: NDArray[np.int64],
        *,
        propose_ms: float = 0.0,
    ) -> None:
        """Learn from what the requests of the step gained.

        Args:
            token_ids: row ``r`` gained ``token_ids[offsets[r]:offsets[r + 1]]``.
            offsets: ``(rows + 1,)`` int64.
            propose_ms: what the proposers took, all requests together.
        """

    @abstractmethod
    def forget(self, request: int) -> None:
        """A request has ended; its number may be used again. Unknown ones are ignored."""


def propose_for(proposer: Proposer, requests: Sequence[int], plan: StepPlan) -> DraftBatch:
    """Ask a proposer for what a plan allows.

    Raises:
        UnknownRequestError: no such request.
    """
    if plan.min_prob is not None and proposer.takes_min_prob:
        asked: Any = proposer
        batch: DraftBatch = asked.propose_batch(requests, plan.limits, min_prob=plan.min_prob)
        return batch
    return proposer.propose_batch(requests, plan.limits)  # type: ignore[arg-type]
