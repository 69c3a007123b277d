"""Verify-cost models: what one step of the target model takes, by what it has to compute.

Two kinds, both written as YAML or JSON and checked on reading:

* ``points``: measured milliseconds by tokens in the step, joined by straight lines, plus an
  optional term for the context;
* ``roofline``: the larger of memory time and compute time, plus a fixed overhead, from the
  hardware's and the model's constants.

Every model must say how it was obtained.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import yaml
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from suffixspec_index.errors import ConfigError

Floats = NDArray[np.float64]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1, max_length=120)]
    provenance: Annotated[str, Field(min_length=20)]
    """How the figures were obtained: hardware, software, method, date; or the formula's sources."""


class PointsCost(_Model):
    """Milliseconds per step, measured at some numbers of tokens."""

    kind: Literal["points"]
    points: Annotated[dict[int, Positive], Field(min_length=2)]
    """Tokens in the step (all requests together) -> milliseconds."""
    reference_context_tokens: NonNegative = 0.0
    """Tokens of cache that a request had while ``points`` were measured."""
    ms_per_1000_context_tokens: NonNegative = 0.0
    """Extra milliseconds per 1000 further tokens of cache, summed over the requests."""
    ms_per_further_request: NonNegative = 0.0
    """Extra milliseconds of the same tokens when they belong to one more request, which has
    ``reference_context_tokens`` of cache."""

    @property
    def measured_tokens(self) -> int | None:
        """The largest step measured; beyond it the model extrapolates."""
        return max(self.points)

    @field_validator("points")
    @classmethod
    def _in_order(cls, points: dict[int, float]) -> dict[int, float]:
        ordered = dict(sorted(points.items()))
        if next(iter(ordered)) != 1:
            raise ValueError("must start at 1 token, the cost of a step without a draft")
        return ordered

    def step_ms(self, tokens: ArrayLike, context_tokens: ArrayLike, requests: int = 1) -> Floats:
        """Milliseconds of steps; see :func:`step_ms <RooflineCost.step_ms>`.

        Between points: straight lines through the measurements' non-decreasing fit (a larger step
        is never taken to be cheaper). Beyond the last: the slope over the upper half of it.
        """
        xs = np.array(list(self.points), np.float64)
        ys = non_decreasing(list(self.points.values()))
        n = np.asarray(tokens, np.float64)
        base = np.interp(n, xs, ys)
        middle = (len(xs) - 1) // 2
        slope = (ys[-1] - ys[middle]) / (xs[-1] - xs[middle])
        base = base + slope * np.maximum(n - xs[-1], 0.0)
        further = np.asarray(context_tokens, np.float64) - requests * self.reference_context_tokens
        base = base + self.ms_per_further_request * (requests - 1)
        ms: Floats = np.maximum(
            base + self.ms_per_1000_context_tokens * further / 1000.0, ys[0] / 2
        )
        return ms


def non_decreasing(values: Sequence[float]) -> Floats:
    """The least-squares non-decreasing fit (isotonic regression). O(n).

    Measurements that run against the order are pooled to their mean, so that neither a slow outlier
    nor a fast one decides for its neighbours.
    """
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, size = value, 1
        while pools and pools[-1][0] > mean:
            before, n = pools.pop()
            mean, size = (before * n + mean * size) / (n + size), n + size
        pools.append((mean, size))
    return np.repeat([mean for mean, _ in pools], [size for _, size in pools])


class RooflineCost(_Model):
    """``max(bytes / bandwidth, operations / peak) + overhead``."""

    kind: Literal["roofline"]
    weight_bytes: Positive
    """Weights read in every step."""
    kv_bytes_per_token: Positive
    """Keys and values of one token of context, read once per request and step."""
    flops_per_token: Positive
    """Operations per token in the step: two per weight that takes part in a product."""
    bandwidth_bytes_per_s: Positive
    peak_flops_per_s: Positive
    overhead_ms: NonNegative

    @property
    def measured_tokens(self) -> int | None:
        """``None``: the formula holds for any step."""
        return None

    def step_ms(self, tokens: ArrayLike, context_tokens: ArrayLike, requests: int = 1) -> Floats:
        """Milliseconds of steps.

        Args:
            tokens: tokens in the step, all requests together; any shape.
            context_tokens: tokens of cache the step reads, summed over the requests; broadcasts.
            requests: requests in the step.

        Returns:
            float64 milliseconds, of the broadcast shape.
        """
        n = np.asarray(tokens, np.float64)
        read = self.weight_bytes + self.kv_bytes_per_token * np.asarray(context_tokens, np.float64)
        seconds = np.maximum(
            read / self.bandwidth_bytes_per_s, n * self.flops_per_token / self.peak_flops_per_s
        )
        ms: Floats = seconds * 1000.0 + self.overhead_ms
        return ms


CostModel = Annotated[PointsCost | RooflineCost, Field(discriminator="kind")]
_ADAPTER: TypeAdapter[PointsCost | RooflineCost] = TypeAdapter(CostModel)


def parse_cost_model(values: object, *, where: str) -> PointsCost | RooflineCost:
    """Check a mapping read from a file.

    Raises:
        ConfigError: it is no cost model; the message names ``where``, the field and the value.
    """
    try:
        return _ADAPTER.validate_python(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "the document"
        raise ConfigError(
            f"cost model {where}: {field}: {first['msg']} (got {first['input']!r:.80}); "
            "docs/replay.md describes the file"
        ) from error


def read_cost_model(path: Path) -> PointsCost | RooflineCost:
    """Read a YAML or JSON file.

    Raises:
        ConfigError: it cannot be read or is no cost model.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cost model {path}: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"cost model {path}: neither YAML nor JSON: {error}") from error
    return parse_cost_model(values, where=str(path))
