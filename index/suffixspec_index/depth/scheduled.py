"""The static rule: draft lengths by batch size alone, as configured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.depth.base import DepthRule, StepPlan
from suffixspec_index.depth.calibration import DraftCalibration
from suffixspec_index.depth.schedule import BatchSizeSchedule
from suffixspec_index.draft import DraftBatch
from suffixspec_index.speculative_config import SpeculativeConfig


class ScheduledDepth(DepthRule):
    """``num_speculative_tokens_per_batch_size``, with hysteresis; drafts are verified whole.

    Args:
        config: with a schedule.
    """

    def __init__(self, config: SpeculativeConfig) -> None:
        self._schedule = BatchSizeSchedule(config)

    def plan(
        self,
        requests: Sequence[int],
        *,
        context_tokens: float,
        tokens: int | None = None,
        limits: Sequence[int] | NDArray[np.integer[Any]] | None = None,
        weights: Sequence[float] | None = None,
    ) -> StepPlan:
        """The schedule's limit for every request. O(rows)."""
        n = len(requests)
        most = self._schedule.tokens_at(n) if n else 0
        given = np.full(n, most, np.int64)
        if limits is not None:
            given = np.minimum(given, np.asarray(limits, np.int64))
        return StepPlan(given)

    def choose(
        self, drafts: DraftBatch, experience: Sequence[DraftCalibration] | None = None
    ) -> DraftBatch:
        """All of it."""
        return drafts

    def learn(
        self,
        token_ids: NDArray[np.int32],
        offsets: NDArray[np.int64],
        *,
        propose_ms: float = 0.0,
    ) -> None:
        """The rule does not depend on what comes true."""

    def forget(self, request: int) -> None:
        """Nothing is kept of requests."""
