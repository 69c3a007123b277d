"""Depth: how much of what was drafted is worth verifying, chosen for a whole step at once.

The engine and the replay share this room: the engine with a cost model that it measures while it
runs (:class:`MeasuredCost`), the replay with one from a file. See ``docs/dynamic.md``.
"""

from suffixspec_index.depth.allocation import allocate
from suffixspec_index.depth.calibration import DraftCalibration
from suffixspec_index.depth.controller import DepthController, DepthSettings
from suffixspec_index.depth.costs import StepCost
from suffixspec_index.depth.measured import MeasuredCost
from suffixspec_index.depth.rates import GoingRates
from suffixspec_index.depth.schedule import BatchSizeSchedule

__all__ = [
    "BatchSizeSchedule",
    "DepthController",
    "DepthSettings",
    "DraftCalibration",
    "GoingRates",
    "MeasuredCost",
    "StepCost",
    "allocate",
]
