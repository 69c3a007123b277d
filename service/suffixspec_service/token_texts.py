"""What single tokens read as, in text and in bytes: a token may be part of a character only."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "▁"


class TokenTexts:
    """Texts and bytes of a tokenizer's tokens. Thread-safe.

    Args:
        tokenizer: transformers' tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special = frozenset(tokenizer.all_special_tokens)
        self._byte_level = self._is_byte_level()

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes that a token stands for; empty for ids beyond the tokenizer's. O(token)."""
        token = self._tokenizer.convert_ids_to_tokens(token_id)
        if token is None:
            return b""
        if token in self._special:
            return str(token).encode()
        if self._byte_level:
            table = _byte_of_letter()
            if all(letter in table for letter in token):
                return bytes(table[letter] for letter in token)
            return str(token).encode()
        single = _BYTE.fullmatch(token)
        if single:
            return bytes([int(single.group(1), 16)])
        return str(token).replace(_SPACE, " ").encode()

    def text_of(self, token_id: int) -> str:
        """The text; what is no whole character reads as the replacement character."""
        return self.bytes_of(token_id).decode("utf-8", "replace")

    def _is_byte_level(self) -> bool:
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        decoder = getattr(backend, "decoder", None)
        return "ByteLevel" in repr(decoder)


@lru_cache(maxsize=1)
def _byte_of_letter() -> dict[str, int]:
    """GPT-2's alphabet: a printable letter for every byte."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in plain}
    others = [byte for byte in range(256) if byte not in set(plain)]
    return table | {chr(256 + i): byte for i, byte in enumerate(others)}
