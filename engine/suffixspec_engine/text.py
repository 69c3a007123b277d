"""Tokens to text as transformers' tokenizers decode them, and text that is not certain yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def text_decoder(tokenizer: Any) -> Callable[[list[int]], str]:
    """Token ids to text, without control tokens and without tidied blanks."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None and not getattr(tokenizer, "clean_up_tokenization_spaces", False):
        # The same text as below in a fraction of the time; it is asked for at every token.
        return lambda token_ids: str(backend.decode(token_ids, skip_special_tokens=True))
    return lambda token_ids: str(
        tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    )


def held_back(text: str, stops: tuple[str, ...]) -> int:
    """How many last characters of ``text`` may be the beginning of a stop string. O(stops · their
    length)."""
    most = 0
    for stop in stops:
        for size in range(min(len(stop) - 1, len(text)), most, -1):
            if text.endswith(stop[:size]):
                most = size
                break
    return most
