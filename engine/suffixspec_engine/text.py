"""Tokens to text, one by one, as any of transformers' tokenizers decodes them."""

from __future__ import annotations

from typing import Any

_UNFINISHED = "\ufffd"


class IncrementalDetokenizer:
    """The text of a growing list of tokens.

    A token's text may depend on the one before it (blanks) and a character may be spread over
    several tokens. So each token is decoded together with the piece of text before it, and what is
    new is the difference; nothing is given out while the last character is unfinished.

    Args:
        tokenizer: of transformers.
        skip_special_tokens: leave control tokens out of the text.
    """

    __slots__ = ("_known", "_pending", "_skip", "_tokenizer")

    def __init__(self, tokenizer: Any, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._known: list[int] = []  # the tokens of the piece of text given out last
        self._pending: list[int] = []  # tokens since then

    def feed(self, token_id: int) -> str:
        """The text that ``token_id`` completes; empty inside an unfinished character. Amortised
        O(1)."""
        self._pending.append(token_id)
        before = self._decode(self._known)
        after = self._decode(self._known + self._pending)
        if after.endswith(_UNFINISHED) and len(self._pending) < 8:
            return ""  # longer than any character: the bytes are no text at all
        if len(after) > len(before):
            self._known, self._pending = self._pending, []
            return after[len(before) :]
        return ""

    def fork(self) -> IncrementalDetokenizer:
        """A copy that can be fed without changing this one. O(1)."""
        copy = IncrementalDetokenizer(self._tokenizer, skip_special_tokens=self._skip)
        copy._known, copy._pending = list(self._known), list(self._pending)
        return copy

    def _decode(self, token_ids: list[int]) -> str:
        text: str = self._tokenizer.decode(
            token_ids, skip_special_tokens=self._skip, clean_up_tokenization_spaces=False
        )
        return text


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
