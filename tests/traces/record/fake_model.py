"""A text model without a model: it says what it is told to, in a tokenizer's ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from suffixspec_traces.tokenizers import TraceTokenizer

Ids = NDArray[np.int32]


class FakeModel:
    """``reply`` makes an answer from the prompt's text; the end-of-turn token is added."""

    name = "fake"
    settings: dict[str, object] = {"temperature": 0}  # noqa: RUF012

    def __init__(self, tokenizer: TraceTokenizer, reply: Callable[[str], str]) -> None:
        self.tokenizer = tokenizer
        self.reply = reply
        self.prompts: list[Ids] = []
        self.released: list[str] = []
        self.batches: list[int] = []

    def generate(
        self, prompts: Sequence[Ids], *, keys: Sequence[str], max_new_tokens: int
    ) -> list[Ids]:
        assert len(set(keys)) == len(keys) == len(prompts)
        self.batches.append(len(prompts))
        self.prompts.extend(prompts)
        end = np.array([self.tokenizer.eos_token_ids[-1]], np.int32)
        said = (self.tokenizer.encode(self.reply(self.tokenizer.decode(p))) for p in prompts)
        return [np.concatenate([ids, end])[:max_new_tokens] for ids in said]

    def release(self, key: str) -> None:
        self.released.append(key)
