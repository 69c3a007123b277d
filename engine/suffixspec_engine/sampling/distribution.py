"""The processed distribution: what a row of logits becomes before a token is drawn from it.

The order is vLLM's: grammar mask, ``min_tokens``, ``logit_bias``, penalties, temperature,
``min_p``, ``top_k``, ``top_p``. Rows are numpy arrays on the host: an argmax over a vocabulary
takes a tenth of torch's time there, and the tokens are needed on the host at once anyway.
"""

from __future__ import annotations

import math
from collections.abc import Set

import numpy as np
import torch
from numpy.typing import NDArray

from suffixspec_engine.sampling.params import SamplingParams
from suffixspec_index.errors import InputError

Floats = NDArray[np.float32]

_BIN_SHIFT = 19  # of a float32: exponent and 4 bits of fraction, about 2000 bins up to 1.0


class Context:
    """What is already said at a position, as the processors need it: prompt, output, draft path.

    Attributes:
        position: number of output tokens so far, those of the draft path included.
    """

    def __init__(
        self,
        position: int,
        output_counts: NDArray[np.int32] | None,
        prompt_seen: NDArray[np.bool_] | None,
    ) -> None:
        self.position = position
        self._counts = None if output_counts is None else output_counts.copy()
        self._prompt_seen = prompt_seen

    def append(self, token_id: int) -> None:
        """One more token is said."""
        self.position += 1
        if self._counts is not None:
            self._counts[token_id] += 1

    def penalise(self, logits: Floats, params: SamplingParams) -> None:
        """Apply the penalties in place."""
        counts = self._counts
        if counts is None:
            return
        said = np.flatnonzero(counts)
        if params.repetition_penalty != 1.0:
            seen = said
            if self._prompt_seen is not None:
                seen = np.flatnonzero(self._prompt_seen | (counts > 0))
            scale = np.float32(params.repetition_penalty)
            values = logits[seen]
            logits[seen] = np.where(values > 0, values / scale, values * scale)
        logits[said] -= np.float32(params.frequency_penalty) * counts[said] + np.float32(
            params.presence_penalty
        )


def is_plain(params: SamplingParams, position: int) -> bool:
    """Whether nothing but temperature and truncation touches the logits at this position."""
    return not params.has_penalties and not params.logit_bias and position >= params.min_tokens


def process(
    row: Floats,
    params: SamplingParams,
    context: Context,
    *,
    allowed: NDArray[np.bool_] | None = None,
    stop_ids: Set[int] = frozenset(),
) -> Floats:
    """Logits after mask, ``min_tokens``, bias and penalties; temperature and truncation to come.

    Args:
        row: ``(vocab,)``, not changed (and returned itself where nothing applies).
        params: of the request.
        context: what is said before this position.
        allowed: the grammar's mask.
        stop_ids: what ``min_tokens`` holds back. Where the grammar allows nothing else, the grammar
            wins: a request cannot say less than nothing.

    Raises:
        InputError: no token is left.
    """
    if allowed is None and is_plain(params, context.position):
        return row
    logits = row.copy()
    if allowed is not None:
        logits[~allowed] = -np.inf
    if context.position < params.min_tokens and stop_ids:
        held = [t for t in stop_ids if t < len(logits)]
        kept = logits[held]
        logits[held] = -np.inf
        if logits.max() == -np.inf:
            logits[held] = kept
    if params.logit_bias:
        ids = np.fromiter(params.logit_bias.keys(), np.int64)
        logits[ids] += np.fromiter(params.logit_bias.values(), np.float32)
    context.penalise(logits, params)
    return logits


def argmax(logits: Floats) -> int:
    """The largest logit's id, the lowest where they tie.

    Raises:
        InputError: the logits are not numbers, or no token is left.
    """
    best = int(np.argmax(logits))  # of the first NaN, where there is one
    _check_peak(float(logits[best]))
    return best


def weights(logits: Floats, params: SamplingParams) -> Floats:
    """``(vocab,)`` unnormalised probabilities, the largest 1, after temperature and truncation.

    O(vocab).

    Raises:
        InputError: the logits are not numbers, or no token is left.
    """
    peak = logits.max()
    _check_peak(float(peak))
    weight: Floats = logits - peak
    if params.temperature != 1.0:
        weight /= np.float32(params.temperature)
    np.exp(weight, out=weight)
    if params.min_p > 0.0:
        weight[weight < np.float32(params.min_p)] = 0.0
    if 0 < params.top_k < len(weight):
        last = torch.topk(torch.from_numpy(weight), params.top_k).values[-1].item()
        weight[weight < last] = 0.0
    if params.top_p < 1.0:
        _keep_top_p(weight, params.top_p)
    return weight


def probabilities(weight: Floats) -> NDArray[np.float64]:
    """Normalised ``weights``."""
    wide: NDArray[np.float64] = weight.astype(np.float64)
    wide /= wide.sum()
    return wide


def _check_peak(peak: float) -> None:
    if math.isfinite(peak):
        return
    if peak == -math.inf:
        raise InputError("logits: no token is left; loosen grammar, logit_bias or min_tokens")
    raise InputError(f"logits: the largest is {peak}; the model's output is not a number")


def _keep_top_p(weight: Floats, top_p: float) -> None:
    """Zero, in place, what is not in the smallest set of largest weights of mass ``top_p``.

    O(vocab), where a sort of the whole takes twenty times as long: the weights' leading bits (they
    order positive floats) sum up in bins, and only the bin in which the mass is reached is sorted;
    the lower id goes first where weights tie.
    """
    goal = top_p * float(weight.sum(dtype=np.float64))
    bins = weight.view(np.int32) >> _BIN_SHIFT
    mass = np.cumsum(np.bincount(bins, weights=weight)[::-1])
    index = min(int(np.searchsorted(mass, goal, side="left")), len(mass) - 1)
    last_bin = len(mass) - 1 - index
    before = float(mass[index - 1]) if index else 0.0
    ids = np.flatnonzero(bins == last_bin)
    order = ids[np.argsort(-weight[ids], kind="stable")]
    reached = before + np.cumsum(weight[order], dtype=np.float64)
    kept = int(np.searchsorted(reached, goal, side="left")) + 1
    weight[bins < last_bin] = 0.0
    weight[order[kept:]] = 0.0
