"""What a step of the target model costs, as whoever chooses depths asks for it."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


class StepCost(Protocol):
    """A model of the time that one step takes. One that learns has an attribute ``version``, which
    changes when the same arguments would give other figures."""

    def step_ms(self, tokens: ArrayLike, context_tokens: ArrayLike, requests: int = 1) -> Floats:
        """Milliseconds of steps.

        Args:
            tokens: tokens in the step, all requests together; any shape.
            context_tokens: tokens of cache the step reads, summed over the requests; broadcasts.
            requests: requests in the step.

        Returns:
            float64 milliseconds, of the broadcast shape.
        """


class CostCurves:
    """Costs of ever larger steps, kept while the model says the same.

    A step is asked about with its context rounded to a sixteenth of its size, so that neighbouring
    steps share a curve: the context moves all of a curve's values alike, or nearly so.

    Args:
        cost: the model.
        most: curves kept; then all are dropped.
    """

    def __init__(self, cost: StepCost, most: int = 512) -> None:
        self._cost, self._most = cost, most
        self._learns = hasattr(cost, "version")
        self._version = 0
        self._curves: dict[tuple[int, int, int], tuple[Floats, Floats]] = {}

    def curve(
        self, tokens: int, context_tokens: float, requests: int, further: int
    ) -> tuple[Floats, Floats]:
        """Milliseconds of steps of ``tokens``, ``tokens + 1``, ..., and what the cheapest further
        token up to each of them costs: two arrays of ``further + 2`` values or more.

        Never falls: where a measured model says that a larger step is cheaper, the larger is taken
        to cost the same. O(further) the first time, then O(1).
        """
        if self._learns:
            version = self._cost.version  # type: ignore[attr-defined]
            if version != self._version:
                self._curves.clear()
                self._version = version
        rounded = _rounded(context_tokens)
        key = (tokens, rounded, requests)
        known = self._curves.get(key)
        if known is None or len(known[0]) < further + 2:
            if len(self._curves) > self._most:
                self._curves.clear()
            size = max(64, 1 << further.bit_length()) + 2
            ms = self._cost.step_ms(tokens + np.arange(size), float(rounded), requests)
            rising = np.maximum.accumulate(np.asarray(ms, np.float64))
            steps = np.minimum.accumulate(np.diff(rising))
            known = self._curves[key] = (rising, np.append(steps, steps[-1]))
        return known


def _rounded(context_tokens: float) -> int:
    whole = int(context_tokens)
    grain = 1 << max(whole.bit_length() - 5, 6)
    return (whole + grain // 2) // grain * grain
