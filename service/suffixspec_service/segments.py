"""Tokens of long texts that repeat: an agent sends its whole conversation again with every turn.

A tokenizer first cuts a text at its special tokens (``<|im_start|>``, say), and what lies between
is made tokens piece by piece, each without regard to the others. So a text may be cut before
special tokens and its segments, a message each, made tokens alone; those that were seen before
need no work. The result is the tokenizer's own, token for token.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]

_SHORT = 256
"""Segments of fewer characters are made tokens as quickly as they are found."""
_OVERHEAD = 200  # bytes of an entry besides text and tokens


class SegmentTokens:
    """Makes texts tokens, without what a tokenizer puts around them, and remembers long segments.
    Thread-safe.

    What one scope has sent makes no other scope's texts quicker, so that nobody learns from the
    time an answer takes what others have sent.

    Args:
        backend: a ``tokenizers.Tokenizer``.
        max_bytes: of remembered segments; the least recently used ones are forgotten.
    """

    def __init__(self, backend: Any, max_bytes: int = 64 << 20) -> None:
        self._backend = backend
        self._cut = _cutting(backend)
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str], Tokens] = OrderedDict()
        self._bytes = 0

    @property
    def remembers(self) -> bool:
        """Whether the tokenizer's special tokens are places to cut at."""
        return self._cut is not None

    @property
    def bytes(self) -> int:
        """Held by remembered segments, about."""
        return self._bytes

    def encode(self, text: str, scope: str = "") -> Tokens:
        """``(n,)`` int32. O(characters) of segments not yet known, and a hash of the others."""
        if self._cut is None or len(text) < _SHORT:
            return self._tokens(text)
        starts = [match.start() for match in self._cut.finditer(text)]
        bounds = [0, *(start for start in starts if start), len(text)]
        parts = [self._segment(text[begin:end], scope) for begin, end in pairwise(bounds)]
        return np.concatenate(parts)

    def _segment(self, text: str, scope: str) -> Tokens:
        if len(text) < _SHORT:
            return self._tokens(text)
        key = (scope, text)
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
                return known
        tokens = self._tokens(text)
        self._remember(key, tokens)
        return tokens

    def _remember(self, key: tuple[str, str], tokens: Tokens) -> None:
        size = _size(key, tokens)
        with self._lock:
            if key in self._known or size > self._max_bytes:
                return
            self._known[key] = tokens
            self._bytes += size
            while self._bytes > self._max_bytes:
                self._bytes -= _size(*self._known.popitem(last=False))

    def _tokens(self, text: str) -> Tokens:
        # The tokenizer itself leaves the interpreter's lock alone, unlike its wrapper.
        ids = self._backend.encode(text, add_special_tokens=False).ids
        return np.asarray(ids, np.int32)


def _size(key: tuple[str, str], tokens: Tokens) -> int:
    return _OVERHEAD + 2 * len(key[1]) + tokens.nbytes


def _cutting(backend: Any) -> re.Pattern[str] | None:
    """What finds the places to cut at as the tokenizer does: the leftmost special token, of several
    the longest. ``None``: it has none that can be found in the text as it stands, or cuts or pads
    what it returns."""
    added = list(backend.get_added_tokens_decoder().values())
    plain = [token for token in added if not token.normalized]
    if not plain or any(token.lstrip or token.rstrip or token.single_word for token in plain):
        return None
    if backend.truncation is not None or backend.padding is not None:
        return None
    contents = sorted({token.content for token in plain}, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, contents)))
