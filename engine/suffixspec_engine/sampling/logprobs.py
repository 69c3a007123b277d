"""Log probabilities of the raw distribution, for the caller to see."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from suffixspec_engine.sampling.contract import TokenLogprobs


def token_logprobs(row: NDArray[np.float32], token_id: int, k: int) -> TokenLogprobs:
    """Log probability and rank of ``token_id`` and of the ``k`` most probable tokens (-1: all).

    Args:
        row: ``(vocab,)`` raw logits. O(vocab), and O(vocab log vocab) for all.
        token_id: the emitted token.
        k: see :class:`~.params.SamplingParams`.
    """
    wide = row.astype(np.float64)
    peak = wide.max()
    total = peak + np.log(np.exp(wide - peak).sum())
    k = len(row) if k < 0 else min(k, len(row))
    top: tuple[tuple[int, float], ...] = ()
    if k:
        found = torch.topk(torch.from_numpy(row), k)
        ids: list[int] = found.indices.tolist()
        top = tuple((i, float(wide[i] - total)) for i in ids)
    return TokenLogprobs(
        token_id=token_id,
        logprob=float(wide[token_id] - total),
        rank=1 + int(np.count_nonzero(row > row[token_id])),
        top=top,
    )
