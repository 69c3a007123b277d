"""Building a batch of linear drafts from what a kernel wrote."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.draft import DraftBatch, Source


def path_batch(
    token_ids: NDArray[np.int32],
    offsets: NDArray[np.int64],
    match_lens: NDArray[np.int32],
    source: Source,
    probs: NDArray[np.float32] | None = None,
) -> DraftBatch:
    """A :class:`DraftBatch` of paths; ``token_ids`` and ``probs`` may be longer than needed.

    ``probs`` default to 1. O(tokens).
    """
    used = int(offsets[-1])
    lengths = np.diff(offsets)
    starts = np.repeat(offsets[:-1], lengths)
    return DraftBatch(
        offsets,
        token_ids[:used],
        (np.arange(used) - starts - 1).astype(np.int32),
        np.ones(used, np.float32) if probs is None else probs[:used],
        np.full(used, source, np.uint8),
        match_lens,
    )
