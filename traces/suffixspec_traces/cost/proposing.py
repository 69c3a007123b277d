"""What proposing costs: so much for a call, and so much for each request that it serves.

One call drafts for all requests of a forward pass. A replay with fewer sessions in flight than the
load it stands for sees the call's own part more often per token than an engine would, so the two
are told apart: by how the time of a call grew with its requests, while sessions came and went.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ProposingCost:
    """``call_ns``: of a call, however many requests it serves; 0 where that could not be told, and
    all counts as the requests' own. ``request_ns``: ``(steps,)`` of each request and step."""

    call_ns: float
    request_ns: Floats

    @staticmethod
    def of(batch: NDArray[np.int32], ns: NDArray[np.int64] | Floats) -> ProposingCost:
        """Tell both parts apart.

        Args:
            batch: ``(steps,)`` the forward pass that each step was part of, never falling.
            ns: ``(steps,)`` each step's equal share of the time of its pass.

        Returns:
            The parts; over the passes seen they add up to the times given, but for calls that took
            less than ``call_ns``. A line through the medians of passes of equal size, so that what
            else the machine did meanwhile does not decide. O(steps).
        """
        times = np.asarray(ns, np.float64)
        if not len(batch):
            return ProposingCost(0.0, times)
        passes = batch - batch[0]
        rows = np.maximum(np.bincount(passes), 1).astype(np.int64)
        totals: Floats = np.bincount(passes, times).astype(np.float64)
        call = _intercept(rows, totals)
        return ProposingCost(call, np.maximum(times - (call / rows)[passes], 0.0))


def _intercept(rows: NDArray[np.int64], totals: Floats) -> float:
    """Where the line of ``totals`` over ``rows`` begins, between 0 and the least median; 0 if too
    few sizes were seen."""
    sizes, count = np.unique(rows, return_counts=True)
    if sizes[-1] < 2 * sizes[0]:
        return 0.0
    medians = np.array([np.median(totals[rows == size]) for size in sizes])
    weight = np.sqrt(np.minimum(count, 1000))  # the full size is seen most, and is one point only
    slope, start = np.polyfit(sizes, medians, 1, w=weight)
    if slope < 0.0:
        return float(medians.min())
    return float(np.clip(start, 0.0, medians.min()))
