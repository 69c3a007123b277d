"""Bootstrap intervals over sessions, seeded."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from suffixspec_traces.report.model import Interval

_BLOCK = 4_000_000  # weights drawn at once: about 32 MB


def ratio_interval(
    parts: ArrayLike, wholes: ArrayLike, *, samples: int, seed: int, level: float = 0.95
) -> Interval:
    """``sum(parts) / sum(wholes)`` with its percentile interval, sessions being resampled.

    Sessions, not steps: the steps of one session depend on each other. Sessions without a whole
    are left out. With fewer than two sessions there is no interval. O(samples x sessions).
    """
    part, whole = np.asarray(parts, np.float64), np.asarray(wholes, np.float64)
    part, whole = part[whole > 0], whole[whole > 0]
    n = len(whole)
    if not n:
        return Interval(value=None, low=None, high=None)
    value = float(part.sum() / whole.sum())
    if n < 2:
        return Interval(value=value, low=None, high=None)
    rng = np.random.default_rng(seed)
    ratios = np.empty(samples)
    block = max(1, _BLOCK // n)
    for at in range(0, samples, block):
        size = min(block, samples - at)
        weights = rng.multinomial(n, np.full(n, 1.0 / n), size=size)
        ratios[at : at + size] = (weights @ part) / (weights @ whole)
    low, high = np.quantile(ratios, ((1 - level) / 2, (1 + level) / 2))
    return Interval(value=value, low=float(low), high=float(high))
