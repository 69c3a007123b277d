"""What transformers' own ``generate`` says: the truth that the engine is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]


def said(
    model: Any, prompt: Sequence[int] | Ids, max_new_tokens: int, *, ignore_eos: bool = False
) -> list[int]:
    """Greedy continuation, an end token included."""
    import torch

    ids = torch.tensor([[int(token) for token in prompt]])
    with torch.inference_mode():
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            **({"eos_token_id": -1} if ignore_eos else {}),
        )
    tokens: list[int] = output[0, ids.shape[1] :].tolist()
    return tokens


def random_prompt(seed: int, length: int, vocabulary: int = 256) -> Ids:
    """With a repetition, so that proposers find something."""
    rng = np.random.default_rng(seed)
    half = rng.integers(0, vocabulary, max(1, length // 2), dtype=np.int32)
    return np.concatenate([half, half, half])[:length]
