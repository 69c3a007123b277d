"""What the drafting kernels are told: the settings of an index as one array of numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from suffixspec_index.errors import InputError
from suffixspec_index.index_config import IndexConfig
from suffixspec_index.kernels import draft as D

_FIRST_RATE = 1.5  # tokens a step with one draft token is taken to gain, before anything is known


class DraftSettings:
    """``values`` is ``(SETTINGS,)`` float64 in the order of ``kernels/draft.py``. Kernels add up in
    it what dynamic drafts gained and what they cost."""

    def __init__(self, config: IndexConfig) -> None:
        values = np.zeros(D.SETTINGS)
        values[D.S_TOKENS] = config.num_speculative_tokens
        values[D.S_FACTOR] = min(config.max_spec_factor, 1e6)
        values[D.S_OFFSET] = config.max_spec_offset
        values[D.S_MIN_PROB] = config.min_token_prob
        values[D.S_MIN_MATCH] = config.min_match_len
        values[D.S_TREE] = config.tree
        values[D.S_BEYOND] = config.beyond_depth
        values[D.S_RATE] = config.learning_rate
        values[D.S_MEMORY] = config.learning_memory
        values[D.S_WORLD] = config.max_cached_requests > 0
        if config.live_chunk and config.max_cached_requests:
            values[D.S_SHARE] = config.live_chunk + config.depth
        self.values = values
        self._unit = 1.0  # cost of a step without a draft, in which the time spent was counted

    def set_step_costs(self, costs: ArrayLike | None) -> None:
        """Make drafts dynamic, or not (``None``); see ``SuffixIndex.set_step_costs``.

        Raises:
            InputError: fewer than two costs, or they are not positive and rising.
        """
        values = self.values
        if costs is None:
            values[D.S_DYNAMIC] = 0
            return
        curve = _cost_curve(costs)
        values[D.S_COST : D.S_COST + D.MAX_NODES + 1] = curve
        values[D.S_SLOPE : D.S_SLOPE + D.MAX_NODES + 1] = _least_slopes(curve)
        if values[D.S_SPENT] <= 0:
            values[D.S_GAINED], values[D.S_SPENT] = _FIRST_RATE, curve[1]
        else:  # the rate so far, in the new costs
            values[D.S_SPENT] *= curve[0] / self._unit
        self._unit = float(curve[0])
        values[D.S_DYNAMIC] = 1


def forbidden_mask(forbidden: NDArray[np.int32]) -> NDArray[np.uint8]:
    """One byte per token id up to the largest forbidden one."""
    mask = np.zeros(int(forbidden[-1]) + 1 if len(forbidden) else 0, np.uint8)
    mask[forbidden] = 1
    return mask


def _cost_curve(costs: ArrayLike) -> NDArray[np.float64]:
    """Step costs for every draft size, ``(MAX_NODES + 1,)``."""
    given = np.asarray(costs, np.float64)
    if given.ndim != 1 or len(given) < 2 or not np.isfinite(given).all():
        raise InputError(
            f"costs: must be at least two finite numbers, got shape {given.shape}; give the time "
            "of a step with 0, 1, 2, ... draft tokens"
        )
    if given[0] <= 0 or (np.diff(given) < 0).any():
        raise InputError("costs: must be positive and not fall; smooth what was measured")
    n = D.MAX_NODES + 1
    more = np.arange(1, max(n - len(given), 0) + 1) * (given[-1] - given[-2])
    return np.concatenate([given, given[-1] + more])[:n]


def _least_slopes(curve: NDArray[np.float64]) -> NDArray[np.float64]:
    """For every size, the least cost per node of growing to any larger one."""
    slopes = np.full(len(curve), np.inf)
    for size in range(len(curve) - 1):
        further = np.arange(1, len(curve) - size)
        slopes[size] = ((curve[size + 1 :] - curve[size]) / further).min()
    slopes[-1] = slopes[-2]
    return slopes
