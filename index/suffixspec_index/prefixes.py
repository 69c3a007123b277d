"""Which session a prompt continues, for callers that do not say.

An agent's next prompt begins with its last prompt and, as a rule, with what was answered to it.
So a session is recognised by what it held: blocks of tokens are hashed in a chain, each hash
standing for the whole text up to there, and the end of every session's prompt and of its context
is kept by its hash. A prompt is looked up from its end backwards; the longest text wins.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from suffixspec_index.errors import ConfigError
from suffixspec_index.tokens import as_token_array

_BLOCK = 64
_SHORTEST = 16  # a text shorter than this says nothing about who continues it


@dataclass(frozen=True, slots=True)
class _End:
    """The end of a text that a session held: behind whole blocks, a rest of fewer tokens."""

    session_id: str
    rest: NDArray[np.int32]


@dataclass(slots=True)
class _Session:
    blocks: tuple[bytes, ...]  # the keys under which its ends stand


class SessionPrefixes:
    """Sessions by what they held. Thread-safe.

    Args:
        max_sessions: those unused the longest are forgotten beyond this many.

    Raises:
        ConfigError: ``max_sessions`` is not positive.
    """

    def __init__(self, max_sessions: int = 4096) -> None:
        if max_sessions < 1:
            raise ConfigError(f"max_sessions: must be at least 1, got {max_sessions!r}")
        self._max = max_sessions
        self._lock = threading.Lock()
        self._sessions: OrderedDict[str, _Session] = OrderedDict()  # least recent first
        self._ends: dict[bytes, list[_End]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, prompt: ArrayLike, *, scope: str = "", busy: Iterable[str] = ()) -> str | None:
        """The session that held the longest beginning of ``prompt``, the latest of several.

        Args:
            prompt: ``(n,)`` integer token ids. A session whose whole context is ``prompt`` itself
                is not continued by it: equal prompts are parallel samples.
            scope: only sessions remembered with the same one are looked at: a namespace, say.
            busy: sessions that are not to be found, since a request of theirs is running.

        Raises:
            TokenError: an id is wrong.

        O(n) hashing, 64 tokens at a time.
        """
        tokens = as_token_array(prompt, field="prompt")
        chain = _chain(tokens, scope)
        excluded = frozenset(busy)
        with self._lock:
            for blocks in range(len(chain) - 1, -1, -1):
                tail = tokens[blocks * _BLOCK :]
                best: _End | None = None
                for end in self._ends.get(chain[blocks], ()):
                    if end.session_id in excluded or len(end.rest) >= len(tail):
                        continue
                    if best is not None and len(end.rest) < len(best.rest):
                        continue
                    if np.array_equal(end.rest, tail[: len(end.rest)]):
                        best = end  # among equals the one that was noted last
                if best is not None:
                    self._sessions.move_to_end(best.session_id)
                    return best.session_id
        return None

    def remember(
        self,
        session_id: str,
        context: ArrayLike,
        *,
        prompt_length: int | None = None,
        scope: str = "",
    ) -> list[str]:
        """Note what a session holds now; what it held before is forgotten.

        Args:
            session_id: whose.
            context: ``(n,)`` integer token ids, prompt and output.
            prompt_length: where the output begins. The next prompt may render the output anew
                (other whitespace, no reasoning), so the prompt alone is recognised too.
            scope: as for :meth:`find`.

        Returns:
            The sessions that were forgotten for it.

        Raises:
            TokenError: an id is wrong.
        """
        tokens = as_token_array(context, field="context")
        chain = _chain(tokens, scope)
        lengths = {len(tokens)} | ({prompt_length} if prompt_length is not None else set())
        with self._lock:
            self._forget(session_id)
            keys = []
            for length in sorted(n for n in lengths if _SHORTEST <= n <= len(tokens)):
                blocks = length // _BLOCK
                end = _End(session_id, tokens[blocks * _BLOCK : length].copy())
                self._ends.setdefault(chain[blocks], []).append(end)
                keys.append(chain[blocks])
            self._sessions[session_id] = _Session(tuple(keys))
            dropped = []
            while len(self._sessions) > self._max:
                oldest = next(iter(self._sessions))
                self._forget(oldest)
                dropped.append(oldest)
            return dropped

    def forget(self, session_id: str) -> None:
        """Forget a session. Unknown ids are ignored."""
        with self._lock:
            self._forget(session_id)

    def _forget(self, session_id: str) -> None:
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        for key in set(session.blocks):
            left = [end for end in self._ends[key] if end.session_id != session_id]
            if left:
                self._ends[key] = left
            else:
                del self._ends[key]


def _chain(tokens: NDArray[np.int32], scope: str) -> list[bytes]:
    """A hash per number of whole blocks, from 0 on; each stands for the scope and all before it."""
    digest = hashlib.blake2b(scope.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    chain = [digest]
    raw = tokens.tobytes()
    size = _BLOCK * tokens.itemsize
    for start in range(0, len(tokens) // _BLOCK * size, size):
        digest = hashlib.blake2b(raw[start : start + size], key=digest, digest_size=16).digest()
        chain.append(digest)
    return chain
