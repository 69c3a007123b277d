"""From timed steps to a cost model, and to its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from suffixspec_index.errors import ConfigError, InputError
from suffixspec_index.replacing import replacing
from suffixspec_traces.cost.model import PointsCost, parse_cost_model


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A kind of step and what it took: ``context`` tokens of cache per request."""

    tokens: int
    requests: int
    context: int
    ms: float


def cost_from_steps(steps: Sequence[TimedStep], *, name: str, provenance: str) -> PointsCost:
    """The cost model that timed steps give.

    The points are the steps of one request (else of the fewest) at the smallest context. How much
    more context and further requests cost is the median of what like steps differ by, each in one
    of the two only; it is 0 where nothing was varied. A further request is one that brings the
    smallest context along.

    Raises:
        ConfigError: there are no two sizes, or none of 1 token per request.
    """
    fewest = min(s.requests for s in steps) if steps else 0
    least = min((s.context for s in steps if s.requests == fewest), default=0)
    points = {s.tokens: s.ms for s in steps if s.requests == fewest and s.context == least}
    if len(points) < 2:
        raise ConfigError("sizes: a cost model needs steps of at least two sizes")
    by_kind = {(s.tokens, s.requests, s.context): s.ms for s in steps}
    context = _slope(
        (ms - by_kind[t, r, least]) / (r * (c - least))
        for (t, r, c), ms in by_kind.items()
        if c > least and (t, r, least) in by_kind
    )
    request = _slope(
        (ms - by_kind[t, fewest, c]) / (r - fewest) - context * (c - least)
        for (t, r, c), ms in by_kind.items()
        if r > fewest and (t, fewest, c) in by_kind
    )
    return points_cost(
        points,
        name=name,
        provenance=provenance,
        reference_context_tokens=float(least),
        ms_per_1000_context_tokens=1000.0 * context,
        ms_per_further_request=request,
    )


def points_cost(
    points: Mapping[int, float], *, name: str, provenance: str, **terms: float
) -> PointsCost:
    """A checked model of measured points, rounded as a file has them.

    Raises:
        ConfigError: a field is wrong.
    """
    model = parse_cost_model(
        {
            "kind": "points",
            "name": name,
            "provenance": provenance,
            "points": {int(n): round(float(ms), 4) for n, ms in sorted(points.items())},
            **{key: round(value, 5) for key, value in terms.items() if value},
        },
        where=name,
    )
    assert isinstance(model, PointsCost)
    return model


def write_cost_model(path: Path, model: PointsCost) -> None:
    """Write the file that :func:`~.model.read_cost_model` reads: the whole of it or nothing.

    Raises:
        InputError: it cannot be written.
    """
    text = yaml.safe_dump(model.model_dump(exclude_defaults=True), sort_keys=False, width=96)
    path = path.expanduser()
    try:
        with replacing(path) as file:
            file.write(text.encode())
            Path(file.name).chmod(0o644)
    except OSError as error:
        raise InputError(f"cost model {path}: cannot be written: {error.strerror}") from error


def _slope(differences: object) -> float:
    values = list(differences)  # type: ignore[call-overload]
    return max(float(np.median(values)), 0.0) if values else 0.0
