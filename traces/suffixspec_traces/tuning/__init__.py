"""Tuning: finding the thresholds that suit somebody's own traces, and judging them honestly."""

from suffixspec_traces.tuning.model import TuningReport
from suffixspec_traces.tuning.search import Halt, SearchOptions
from suffixspec_traces.tuning.split import Parts
from suffixspec_traces.tuning.tune import TuningHead, TuningTask, tune

__all__ = [
    "Halt",
    "Parts",
    "SearchOptions",
    "TuningHead",
    "TuningReport",
    "TuningTask",
    "tune",
]
