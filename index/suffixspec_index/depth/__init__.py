"""Depth: how much of what was drafted is worth verifying, chosen for a whole step at once.

The engine and the replay share this room: the engine with a cost model that it measures while it
runs (:class:`MeasuredCost`), the replay with one from a file. See ``docs/dynamic.md``.
"""

from __future__ import annotations

from suffixspec_index.depth.allocation import allocate
from suffixspec_index.depth.base import DepthRule, StepPlan, propose_for
from suffixspec_index.depth.calibration import DraftCalibration
from suffixspec_index.depth.controller import DepthController, DepthSettings
from suffixspec_index.depth.costs import StepCost
from suffixspec_index.depth.measured import MeasuredCost
from suffixspec_index.depth.rates import GoingRates
from suffixspec_index.depth.schedule import BatchSizeSchedule
from suffixspec_index.depth.scheduled import ScheduledDepth
from suffixspec_index.speculative_config import SpeculativeConfig

__all__ = [
    "BatchSizeSchedule",
    "DepthController",
    "DepthRule",
    "DepthSettings",
    "DraftCalibration",
    "GoingRates",
    "MeasuredCost",
    "ScheduledDepth",
    "StepCost",
    "StepPlan",
    "allocate",
    "create_depth_rule",
    "propose_for",
]


def create_depth_rule(
    config: SpeculativeConfig, cost: StepCost, settings: DepthSettings | None = None
) -> DepthRule | None:
    """The rule that a configuration asks for; ``None``: drafts are as long as proposers make them.

    Args:
        config: with ``dynamic``, or ``num_speculative_tokens_per_batch_size``, or neither.
        cost: what a step takes, for the dynamic rule.
        settings: of the dynamic rule.
    """
    scheduled = config.num_speculative_tokens_per_batch_size is not None
    if config.dynamic:
        schedule = BatchSizeSchedule(config) if scheduled else None
        return DepthController(cost, settings, schedule=schedule)
    return ScheduledDepth(config) if scheduled else None
