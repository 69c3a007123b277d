"""Predicted speed-up: the time of plain decoding over the time with speculation.

At concurrency ``N`` a step holds the tokens of ``N`` requests, each ``1 + drafted``. How many
they draft together is taken as the sum of ``N`` independent draws from the steps that were
replayed; its distribution is computed, not sampled. The proposer's measured time counts in full, as
if nothing overlapped it: once for a step what a call takes, and for every request its own part.
Prefill is the same with and without speculation and is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suffixspec_traces.cost.model import PointsCost, RooflineCost


@dataclass(frozen=True, slots=True)
class DecodeWork:
    """What a replay asks of the target model.

    Attributes:
        tokens: output tokens.
        drafted: ``(steps,)`` draft tokens of every step.
        step_context: ``(steps,)`` tokens of context before every step.
        token_context: mean context of an output token, which is what a plain step reads.
        overhead_ms: the proposer's time for the requests, all steps together.
        batch: ``(steps,)`` the forward pass each step was part of, where the drafts of a pass were
            chosen together; ``None``: drafts do not depend on each other.
        call_ms: the proposer's time for each forward pass, however many requests it holds.
    """

    tokens: int
    drafted: NDArray[np.int32]
    step_context: NDArray[np.int64]
    token_context: float
    overhead_ms: float
    batch: NDArray[np.int32] | None = None
    call_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """Milliseconds per output token of one request, and how many times faster that is."""

    concurrency: int
    plain_ms_per_token: float
    ms_per_token: float
    proposer_ms_per_token: float

    @property
    def speedup(self) -> float:
        """Plain over speculative; 0 where nothing was decoded."""
        return self.plain_ms_per_token / self.ms_per_token if self.ms_per_token else 0.0


def predict(model: PointsCost | RooflineCost, work: DecodeWork, concurrency: int = 1) -> Prediction:
    """Predict the time per output token at ``concurrency`` equal requests.

    O(steps + S log S), S being the largest possible number of tokens in a step.
    """
    steps = len(work.drafted)
    if not steps or not work.tokens:
        return Prediction(concurrency, 0.0, 0.0, 0.0)
    n = concurrency
    plain = float(model.step_ms(n, n * work.token_context, n))
    if work.batch is not None:
        step = float(batch_ms(model, work, n)[work.batch - work.batch.min()].mean())
    elif n == 1:
        step = float(model.step_ms(1 + work.drafted, work.step_context, 1).mean())
    else:
        sizes = batch_sizes(work.drafted, n)
        cost = model.step_ms(np.arange(len(sizes)), n * float(work.step_context.mean()), n)
        step = float(sizes @ cost)
    per_step = work.tokens / steps
    proposer = n * work.overhead_ms / work.tokens + work.call_ms / per_step
    return Prediction(n, plain, step / per_step + proposer, proposer)


def batch_ms(
    model: PointsCost | RooflineCost, work: DecodeWork, requests: int
) -> NDArray[np.float64]:
    """``(batches,)`` milliseconds of every forward pass, as if it held ``requests`` requests like
    those that it did hold. O(steps)."""
    assert work.batch is not None
    batch = work.batch - work.batch.min()
    rows = np.bincount(batch)
    rows = np.maximum(rows, 1)
    scale = requests / rows
    tokens = scale * (rows + np.bincount(batch, work.drafted))
    return model.step_ms(tokens, scale * np.bincount(batch, work.step_context), requests)


def batch_sizes(drafted: NDArray[np.int32], requests: int) -> NDArray[np.float64]:
    """Distribution of the tokens in a step of ``requests`` independent requests.

    Element ``t`` is the probability of ``t`` tokens. The ``requests``-fold convolution of one
    step's sizes, by FFT.
    """
    single = np.bincount(1 + drafted).astype(np.float64)
    single /= single.sum()
    length = (len(single) - 1) * requests + 1
    padded = 1 << (length - 1).bit_length()
    spectrum = np.fft.rfft(single, padded)
    sizes = np.clip(np.fft.irfft(spectrum**requests, padded)[:length], 0.0, None)
    distribution: NDArray[np.float64] = sizes / sizes.sum()
    return distribution
