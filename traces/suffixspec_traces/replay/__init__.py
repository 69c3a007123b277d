"""Replay: recorded sessions decoded again, step by step, with a proposer drafting."""

from suffixspec_traces.replay.decode import Progress, ReplayResult, replay, warm_up
from suffixspec_traces.replay.log import Step, StepLog
from suffixspec_traces.replay.plan import PlannedTurn, ReplayPlan

__all__ = [
    "PlannedTurn",
    "Progress",
    "ReplayPlan",
    "ReplayResult",
    "Step",
    "StepLog",
    "replay",
    "warm_up",
]
