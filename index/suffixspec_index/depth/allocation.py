"""The allocation rule: which draft tokens of a whole batch are worth their time.

A step of ``B`` tokens that verifies ``k`` draft tokens more takes ``T(B + k)`` instead of ``T(B)``.
The best ``k`` tokens are the most probable ones of all requests together, and as a token is never
more probable than the one before it, they are whole drafts, cut somewhere. So for every ``k`` the
expected gain is a prefix sum, and the ``k`` is taken at which the gain exceeds by the most what the
same time would yield at the going rate. That maximises the quotient of tokens and time in the long
run, if the rate is the one the rule itself attains (W. Dinkelbach, "On nonlinear fractional
programming", Management Science 13, 1967). Costs need not be convex: every ``k`` is looked at.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.draft import DraftBatch
from suffixspec_index.kernels import depth as kernels

Floats = NDArray[np.float64]


def allocate(
    drafts: DraftBatch, weights: Floats, curve: Floats, rate: float, *, scale: float = 1.0
) -> DraftBatch:
    """The part of every draft that is worth verifying.

    Args:
        drafts: one per request; no token is more probable than its parent.
        weights: ``(rows,)``, what a token of each request counts, times how far its probabilities
            are trusted.
        curve: ``(m,)`` time of the step with 0, 1, 2, ... draft tokens, never falling; beyond its
            end the last difference goes on.
        rate: expected tokens that a unit of time has to bring.
        scale: requests that each row stands for.

    Returns:
        The fewest draft tokens of greatest net gain; a token only with those before it. Among
        equals those of earlier rows. O(n log n) in the draft tokens of all rows.
    """
    n = len(drafts.token_ids)
    out = (
        np.empty(n, np.int32),
        np.empty(n, np.int32),
        np.empty(n, np.float32),
        np.empty(n, np.uint8),
    )
    offsets = np.empty(len(drafts.offsets), np.int64)
    used = kernels.choose(
        (drafts.offsets, drafts.token_ids, drafts.parents, drafts.sources),
        drafts.probs,
        weights,
        rate,
        curve,
        scale,
        offsets,
        out,
    )
    ids, parents, probs, sources = out
    return DraftBatch(
        offsets, ids[:used], parents[:used], probs[:used], sources[:used], drafts.match_lens
    )
