"""The step cost of a running engine, learned from its own steps.

A step of ``t`` tokens that reads ``c`` tokens of cache for ``r`` requests is taken to last

    pace · (f(t) + a · c + b · r)   milliseconds.

``f`` is a line through knots (1, 2, 3, 4, 6, 8, 12, ... tokens), drawn by least squares through the
steps beside them; ``a`` and ``b`` come from how steps of like size differ with their context and
their number of requests (a regression within sizes, so that the shape of ``f`` cannot disturb it,
of relative errors, so that long prompts, whose times scatter by more than a request costs, do not
decide it). ``pace`` follows
quickly what slows down or speeds up all steps alike, other programs or the clock of the processor,
so that knots that have not been visited for long stay comparable with those that have.

What was not seen yet is taken to be cheap: between two visited knots as cheap as the smaller one.
So a size that might pay is tried, and then known; but one that looked dear is only believed to be
so after a few steps. Else a single slow step would keep it from ever being tried again.

Robust: the first steps of every size are dropped (compilation, allocation), a step far outside
what its neighbours took counts only as far as they would allow, and a seed is fitted to the median
of the first steps.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from suffixspec_index.depth.costs import Floats, StepCost
from suffixspec_index.errors import SnapshotCorruptError

KNOTS = tuple(
    sorted({1, 2, 3} | {n << k for k in range(14) for n in (4, 6)})
)  # 1, 2, 3, 4, 6, 8, 12, ... 49152

_DROPPED = 1  # first steps near a knot that do not count
_MEMORY = 60.0  # steps near a knot that its mean is taken from
_FLATNESS = 0.02  # steps' worth of belief that two neighbouring knots cost the same
_SEED_WEIGHT = 3.0  # steps that a seed's opinion is worth
_SCALING = 3  # steps that a seed is fitted to
_SURE = 2.0  # steps near a knot before it is believed to be as dear as it looked
_PACE_RATE = 0.05
_CLIP = 4.0  # mean absolute deviations beyond which a step is cut
_REFRESH = 8  # steps after which the curve is drawn anew
_ENOUGH = 6  # steps before the model has an opinion


class MeasuredCost:
    """See the module docstring.

    Args:
        seed: a model to start from, of this engine or one like it: its shape is taken over, its
            scale is fitted to the first steps.

    Not thread-safe: it belongs to an engine's thread.
    """

    def __init__(self, seed: StepCost | None = None) -> None:
        self._seed = seed
        self._ratios: list[float] = []  # of steps to what the seed says of them
        self._expected: dict[int, float] = {}
        self._level: Floats = np.zeros(len(KNOTS))
        self._weight: Floats = np.zeros(len(KNOTS))
        # Least squares between each knot and the next: products of steps' parts, and with times.
        self._products_of_parts: Floats = np.zeros((len(KNOTS) - 1, 3))
        self._parts_with_times: Floats = np.zeros((len(KNOTS) - 1, 2))
        self._prior: Floats = np.zeros((len(KNOTS), 2))  # a seed's: weight, weight times level
        self._skipped: NDArray[np.int64] = np.zeros(len(KNOTS), np.int64)
        # Near a knot: means of context, requests, tokens, time; sums of their products with tokens.
        self._means: Floats = np.full((len(KNOTS), 4), np.nan)
        self._with_tokens: Floats = np.zeros((len(KNOTS), 4))
        self._moments: Floats = np.zeros((2, 2))
        self._products: Floats = np.zeros(2)
        self._slopes: Floats = np.zeros(2)
        self._log_pace = 0.0
        self._deviation = 0.0
        self._steps = 0
        self._xs: Floats = np.array([1.0])
        self._ys: Floats = np.zeros(1)
        self._version = 0

    @property
    def ready(self) -> bool:
        """Whether enough was seen for an opinion; a seed needs a single step to be fitted, and
        steps timed beforehand (:meth:`expect`) need none."""
        enough = self._steps >= _ENOUGH or bool(self._prior.any())
        return enough and bool(self._weight.any())

    @property
    def steps(self) -> int:
        """Steps that counted."""
        return self._steps

    @property
    def version(self) -> int:
        """See :class:`~.costs.StepCost`."""
        return self._version

    def observe(self, tokens: int, context_tokens: float, requests: int, ms: float) -> None:
        """Learn from a step. O(1), and O(knots) every eighth time.

        Args:
            tokens: in the step, drafts and prompt chunks included; at least 1.
            context_tokens: tokens of cache it read, summed over the requests.
            requests: rows in the step.
            ms: how long it took, the proposers' time left out.
        """
        if tokens < 1 or not (ms > 0.0 and math.isfinite(ms)):
            return
        low = min(bisect_right(KNOTS, tokens) - 1, len(KNOTS) - 2)
        share = min((tokens - KNOTS[low]) / (KNOTS[low + 1] - KNOTS[low]), 1.0)
        near = low + (share > 0.5)
        if self._skipped[near] < _DROPPED:
            self._skipped[near] += 1
            return
        if self._seed is not None and len(self._ratios) < _SCALING:
            self._ratios.append(self._ratio(tokens, context_tokens, requests, ms))
            self._take_seed(context_tokens, requests)
            self._steps += 1
            return
        x = np.array((context_tokens / 1000.0, float(requests)))
        if self._weight[near] >= 2.0:
            ms = self._clipped(tokens, x, ms)
        shape_ms = ms / math.exp(self._log_pace)
        self._learn_slopes(near, tokens, x, shape_ms)
        level = shape_ms - float(self._slopes @ x)
        self._learn_levels(low, share, level)
        self._steps += 1
        if self._weight[near] <= _ENOUGH or self._steps % _REFRESH == 0:
            self._redraw()

    def step_ms(self, tokens: ArrayLike, context_tokens: ArrayLike, requests: int = 1) -> Floats:
        """See :meth:`.costs.StepCost.step_ms`. Zero everywhere before the first step."""
        n = np.asarray(tokens, np.float64)
        base = np.interp(n, self._xs, self._ys)
        if len(self._xs) > 1:
            last = (self._ys[-1] - self._ys[0]) / (self._xs[-1] - self._xs[0])
            base = base + last * np.maximum(n - self._xs[-1], 0.0)
        context = np.asarray(context_tokens, np.float64) / 1000.0
        further = self._slopes[0] * context + self._slopes[1] * requests
        ms: Floats = np.maximum(base + further, 1e-3) * math.exp(self._log_pace)
        return ms

    def points(self) -> dict[int, float]:
        """Tokens -> milliseconds without context, at the knots that steps were seen near."""
        seen = [i for i in range(len(KNOTS)) if self._weight[i] >= 1.0]
        pace = math.exp(self._log_pace)
        return {KNOTS[i]: float(self._level[i] + self._slopes[1]) * pace for i in seen}

    @property
    def ms_per_1000_context_tokens(self) -> float:
        """Milliseconds that a further 1000 tokens of cache cost."""
        return float(self._slopes[0]) * math.exp(self._log_pace)

    @property
    def ms_per_request(self) -> float:
        """Milliseconds that a further request costs beside its tokens."""
        return float(self._slopes[1]) * math.exp(self._log_pace)

    # --- kept ------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """What was learned, as little-endian float64: levels and weights of the knots, slopes,
        the logarithm of the pace."""
        parts = (self._level, self._weight, self._slopes, [self._log_pace])
        return np.concatenate(parts).astype("<f8").tobytes()

    @staticmethod
    def from_bytes(data: bytes) -> MeasuredCost:
        """Read what :meth:`to_bytes` wrote: a cost that is ready, if the one written was. It serves
        as a seed for the next engine on the same machine.

        Raises:
            SnapshotCorruptError: the length is wrong, or a value is negative or not finite.
        """
        n = len(KNOTS)
        if len(data) != 8 * (2 * n + 3):
            raise SnapshotCorruptError(f"step costs: {len(data)} bytes, not {8 * (2 * n + 3)}")
        values = np.frombuffer(data, "<f8").astype(np.float64)
        if not np.isfinite(values).all() or (values[n:-1] < 0).any() or abs(values[-1]) > 20:
            raise SnapshotCorruptError("step costs: a value is negative or not finite")
        cost = MeasuredCost()
        cost._level, cost._weight = values[:n].copy(), values[n : 2 * n].copy()
        cost._prior = np.stack([cost._weight, cost._weight * cost._level], axis=1)
        cost._slopes, cost._log_pace = values[2 * n : -1].copy(), float(values[-1])
        cost._steps = _ENOUGH if cost._weight.any() else 0
        cost._redraw()
        return cost

    # --- to start from ---------------------------------------------------------------------------

    def start_from(self, seed: StepCost) -> None:
        """Take a seed after all; ignored once steps were seen."""
        if not self._steps:
            self._seed = seed
            self._fit_expected()

    def expect(self, ms: Mapping[int, float]) -> None:
        """Start from steps that were timed beforehand; ignored once steps were seen. A seed is
        fitted to them. Sizes beyond the largest remain unknown; one that took longer than a larger
        one was disturbed, and is taken to cost as much as that.

        Args:
            ms: tokens in a step of one request with little context -> milliseconds, each greater
                than 0.
        """
        if self._steps or not ms:
            return
        self._expected = dict(sorted(ms.items()))
        sizes = list(self._expected)
        knots = [k for k in KNOTS if k <= sizes[-1]]
        times = np.minimum.accumulate(list(self._expected.values())[::-1])[::-1]
        self._believe(np.interp(knots, sizes, times))
        self._fit_expected()

    # --- inside ----------------------------------------------------------------------------------

    def _ratio(self, tokens: int, context_tokens: float, requests: int, ms: float) -> float:
        assert self._seed is not None
        return ms / max(float(self._seed.step_ms(tokens, context_tokens, requests)), 1e-6)

    def _fit_expected(self) -> None:
        """Fit the seed to what was timed beforehand, if there is either."""
        if self._seed is not None and self._expected:
            self._ratios = [self._ratio(n, 0.0, 1, ms) for n, ms in self._expected.items()]
            self._take_seed(0.0, 1)

    def _take_seed(self, context_tokens: float, requests: int) -> None:
        """The seed's shape, scaled by the median ratio."""
        assert self._seed is not None
        knots = [k for k in KNOTS if k <= 4096]
        scale = float(np.median(self._ratios))
        self._believe(scale * self._seed.step_ms(knots, context_tokens, requests))

    def _believe(self, levels: Floats) -> None:
        """Take these levels of the first knots as if a few steps had shown them."""
        n = len(levels)
        self._level[:n] = levels
        self._weight[:n] = self._prior[:n, 0] = _SEED_WEIGHT
        self._prior[:n, 1] = _SEED_WEIGHT * levels
        self._redraw()

    def _clipped(self, tokens: int, x: Floats, ms: float) -> float:
        """``ms``, no further from what is expected than a few usual deviations; moves the pace."""
        expected = float(self.step_ms(tokens, x[0] * 1000.0, int(x[1])))
        error = math.log(ms / expected)
        width = max(_CLIP * self._deviation, 0.05)
        self._deviation += 0.05 * (min(abs(error), 2.0 * width) - self._deviation)
        cut = min(max(error, -width), width)
        self._log_pace += _PACE_RATE * cut
        return expected * math.exp(cut)

    def _learn_levels(self, low: int, share: float, level: float) -> None:
        """Count a step that stands ``share`` of the way from a knot to the next. O(1)."""
        parts = np.array((1.0 - share, share))
        both = slice(low, low + 2)
        self._weight[both] = np.minimum(self._weight[both] + parts, _MEMORY)
        self._prior[both] *= (1.0 - parts / _MEMORY)[:, None]
        kept = 1.0 - 1.0 / _MEMORY
        products = (parts[0] * parts[0], parts[0] * parts[1], parts[1] * parts[1])
        self._products_of_parts[low] = kept * self._products_of_parts[low] + products
        self._parts_with_times[low] = kept * self._parts_with_times[low] + parts * level

    def _solve_levels(self) -> None:
        """The levels of all knots visited that fit the steps best. O(knots)."""
        seen = np.flatnonzero(self._weight)
        i = np.arange(len(KNOTS) - 1)
        first, mixed, second = self._products_of_parts.T
        flat = np.where((self._weight[:-1] > 0.0) & (self._weight[1:] > 0.0), _FLATNESS, 0.0)
        matrix = np.diag(self._prior[:, 0] + 1e-9)
        matrix[i, i] += first + flat
        matrix[i + 1, i + 1] += second + flat
        matrix[i, i + 1] += mixed - flat
        matrix[i + 1, i] += mixed - flat
        times = self._prior[:, 1].copy()
        times[:-1] += self._parts_with_times[:, 0]
        times[1:] += self._parts_with_times[:, 1]
        self._level[seen] = np.linalg.solve(matrix[np.ix_(seen, seen)], times[seen])

    def _learn_slopes(self, near: int, tokens: int, x: Floats, ms: float) -> None:
        """Regression within steps of like size, by decayed sums of products of deviations. What
        tokens explain is taken out of each size first (R. Frisch and F. Waugh, "Partial time
        regressions", Econometrica 1, 1933): requests and tokens tend to come together."""
        seen = np.array((*x, float(tokens), ms))
        if self._weight[near] < 1.0 or np.isnan(self._means[near, 0]):
            self._means[near] = seen
            return
        off = seen - self._means[near]
        self._means[near] += 0.1 * off
        self._with_tokens[near] = 0.98 * self._with_tokens[near] + off[2] * off
        off -= off[2] * self._with_tokens[near] / (self._with_tokens[near, 2] + 1.0)
        # Errors grow with the time that a step takes.
        off, weight = off[[0, 1, 3]], min(float(self._ys[0]) / ms, 1.0) ** 2
        self._moments = 0.995 * self._moments + weight * np.outer(off[:2], off[:2])
        self._products = 0.995 * self._products + weight * off[:2] * off[2]
        ridge = np.diag(0.5 + 0.01 * np.diag(self._moments))
        solved = np.linalg.solve(self._moments + ridge, self._products)
        self._slopes = np.maximum(solved, 0.0)

    def _redraw(self) -> None:
        """The curve through the visited knots: never falling, and flat up to the next one where
        the step between them was never seen."""
        seen = np.flatnonzero(self._weight >= 0.5)
        if not len(seen):
            return
        self._solve_levels()
        ys = weighted_non_decreasing(self._level[seen], self._weight[seen])
        for k in range(1, len(ys)):  # few steps may all have been slow ones
            trust = min(float(self._weight[seen[k]]) / _SURE, 1.0)
            ys[k] = ys[k - 1] + trust * (ys[k] - ys[k - 1])
        xs: list[float] = []
        line: list[float] = []
        for (i, y), (j, z) in pairwise(zip(seen.tolist(), ys.tolist(), strict=True)):
            xs.append(float(KNOTS[i]))
            line.append(y)
            if j - i > 1:  # knots between them were never visited: as cheap as may be
                xs.append(float(KNOTS[j - 1]))
                line.append(y + (z - y) * 0.25)
        xs.append(float(KNOTS[int(seen[-1])]))
        line.append(float(ys[-1]))
        self._xs, self._ys = np.array(xs), np.array(line)
        self._version += 1


def weighted_non_decreasing(values: Floats, weights: Floats) -> Floats:
    """The weighted least-squares non-decreasing fit (isotonic regression). O(n).

    Values that run against the order are pooled to their mean, so that neither a slow outlier nor a
    fast one decides for its neighbours.
    """
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        mean, total, size = value, weight, 1
        while pools and pools[-1][0] > mean:
            before, heavy, n = pools.pop()
            mean = (before * heavy + mean * total) / (heavy + total)
            total, size = heavy + total, n + size
        pools.append((mean, total, size))
    return np.repeat([mean for mean, _, _ in pools], [size for _, _, size in pools])
