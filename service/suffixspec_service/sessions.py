"""Which session a prompt belongs to.

HTTP is stateless: a client sends the whole conversation each time. A prompt that begins with what
a session has said so far is that session's next turn, so that its memory and its keys and values
serve it. A caller may name the session instead.
"""

from __future__ import annotations

import secrets
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.namespaces import NamespaceKey
from suffixspec_index.prefixes import SessionPrefixes

_Used = OrderedDict[str, float]  # when each session was used last; the oldest first


class SessionTable:
    """The sessions of every namespace. Thread-safe.

    Args:
        most: sessions of one namespace; the one used longest ago ends when there are more.
        idle_seconds: a session nobody used for so long ends at the next :meth:`expire`.
        ended: called with namespace and name of each session that ends, outside the lock.
        clock: seconds, monotonic; for tests.
    """

    def __init__(
        self,
        most: int = 1024,
        idle_seconds: float = 3600.0,
        *,
        ended: Callable[[NamespaceKey, str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._idle_seconds = most, idle_seconds
        self._ended = ended
        self._clock = clock
        self._lock = threading.Lock()
        self._used: dict[NamespaceKey, _Used] = {}
        self._prefixes = SessionPrefixes(sys.maxsize)  # how many there are is bounded here

    def find(self, key: NamespaceKey, prompt: NDArray[np.int32], name: str | None = None) -> str:
        """The session of a prompt: the one named, else the one with the longest known context
        that the prompt continues, else a new one. O(prompt): one hash over it.

        Args:
            key: the namespace; sessions of others are never looked at.
            prompt: ``(n,)`` token ids.
            name: given by the caller.
        """
        scope = key.digest
        if name is None:
            known = self._prefixes.find(prompt, scope=scope)
            name = known.removeprefix(scope) if known else f"session-{secrets.token_hex(8)}"
        with self._lock:
            used = self._used.setdefault(key, OrderedDict())
            used[name] = self._clock()
            used.move_to_end(name)
            gone = [used.popitem(last=False)[0] for _ in range(len(used) - self._most)]
        self._end_all(key, gone)
        return name

    def remember(
        self, key: NamespaceKey, name: str, prompt: NDArray[np.int32], output: NDArray[np.int32]
    ) -> None:
        """What a session has said by now; a later prompt that goes on from there is its next
        turn. Ignored where the session has ended meanwhile. O(context)."""
        context = np.concatenate([prompt, output])
        with self._lock:
            used = self._used.get(key)
            if used is None or name not in used:
                return
            used[name] = self._clock()
            used.move_to_end(name)
            scope = key.digest
            self._prefixes.remember(scope + name, context, prompt_length=len(prompt), scope=scope)

    def end(self, key: NamespaceKey, name: str) -> bool:
        """End a session; whether there was one."""
        with self._lock:
            known = self._used.get(key, OrderedDict()).pop(name, None) is not None
        if known:
            self._end_all(key, [name])
        return known

    def expire(self) -> int:
        """End the sessions that nobody has used for too long; how many."""
        oldest = self._clock() - self._idle_seconds
        ended: list[tuple[NamespaceKey, list[str]]] = []
        with self._lock:
            for key, used in self._used.items():
                gone = []
                while used and next(iter(used.values())) < oldest:
                    gone.append(used.popitem(last=False)[0])
                ended.append((key, gone))
        for key, gone in ended:
            self._end_all(key, gone)
        return sum(len(gone) for _, gone in ended)

    def names(self, key: NamespaceKey) -> list[str]:
        """The sessions of a namespace, the one used longest ago first."""
        with self._lock:
            return list(self._used.get(key, ()))

    def __len__(self) -> int:
        with self._lock:
            return sum(len(used) for used in self._used.values())

    def _end_all(self, key: NamespaceKey, names: list[str]) -> None:
        for name in names:
            self._prefixes.forget(key.digest + name)
            if self._ended is not None:
                self._ended(key, name)
