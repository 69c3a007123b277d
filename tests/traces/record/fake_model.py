"""A text model without a model: it says what it is told to, in a tokenizer's ids."""

from __future__ import annotations

import threading
from collections.abc import Callable

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
        self.closed = False
        self._lock = threading.Lock()

    def generate(self, prompt: Ids, *, key: str, max_new_tokens: int) -> Ids:
        assert key
        with self._lock:  # Jinja's and the tokenizer's caches are not this test's business
            self.prompts.append(prompt)
            said = self.tokenizer.encode(self.reply(self.tokenizer.decode(prompt)))
        end = np.array([self.tokenizer.eos_token_ids[-1]], np.int32)
        return np.concatenate([said, end])[:max_new_tokens]

    def release(self, key: str) -> None:
        self.released.append(key)

    def close(self) -> None:
        self.closed = True
