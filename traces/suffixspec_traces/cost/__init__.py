"""Verify-cost models and the speed-up they predict for a replay."""

from suffixspec_traces.cost.library import DEFAULT_COST_MODEL, cost_model_names, load_cost_model
from suffixspec_traces.cost.model import PointsCost, RooflineCost, read_cost_model
from suffixspec_traces.cost.predict import DecodeWork, Prediction, batch_sizes, predict

__all__ = [
    "DEFAULT_COST_MODEL",
    "DecodeWork",
    "PointsCost",
    "Prediction",
    "RooflineCost",
    "batch_sizes",
    "cost_model_names",
    "load_cost_model",
    "predict",
    "read_cost_model",
]
