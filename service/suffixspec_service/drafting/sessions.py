"""The sessions that drafting holds: how long each has been idle, and how many a tenant has."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from suffixspec_index.errors import LimitExceededError
from suffixspec_service.spaces import Space

_PREFIX = "drafting/"
"""So that a client's sessions and those of the service's own model never meet."""

SessionKey = tuple[Space, str]


def proposer_session(session: str) -> str:
    """What a client's session is called where it is drafted for."""
    return _PREFIX + session


@dataclass(slots=True)
class _Use:
    live: int  # its open requests
    used_at: float


class HeldSessions:
    """Sessions by space and name, the one used longest ago first. Thread-safe.

    Args:
        most: of one tenant.
        idle_seconds: after which one without open requests is to be forgotten.
    """

    def __init__(self, most: int, idle_seconds: float) -> None:
        self._most = most
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._uses: OrderedDict[SessionKey, _Use] = OrderedDict()
        self._counts: dict[str, int] = {}

    def holds(self, key: SessionKey) -> bool:
        """Whether a session is held."""
        return key in self._uses

    def begin(self, key: SessionKey, now: float) -> SessionKey | None:
        """A request of the session begins. O(1), O(sessions) where one must go.

        Returns:
            A session that must be forgotten to make room; ``None``: none.

        Raises:
            LimitExceededError: the tenant has as many as it may, and all have open requests.
        """
        tenant = key[0].key.tenant
        with self._lock:
            use = self._uses.get(key)
            evicted = None
            if use is None:
                if self._counts.get(tenant, 0) >= self._most:
                    evicted = self._evict(tenant)
                use = self._uses[key] = _Use(0, now)
                self._counts[tenant] = self._counts.get(tenant, 0) + 1
            use.live += 1
            use.used_at = now
            self._uses.move_to_end(key)
            return evicted

    def finish(self, key: SessionKey, now: float) -> None:
        """A request of the session has ended."""
        with self._lock:
            use = self._uses.get(key)
            if use is not None:  # not if the session was ended meanwhile
                use.live = max(use.live - 1, 0)
                use.used_at = now
                self._uses.move_to_end(key)

    def end(self, key: SessionKey) -> bool:
        """Forget a session; returns whether it was there."""
        with self._lock:
            return self._drop(key)

    def idle(self, now: float) -> list[SessionKey]:
        """Drop and return the sessions that have been idle for too long."""
        with self._lock:
            found: list[SessionKey] = []
            for key, use in self._uses.items():
                if use.used_at + self._idle_seconds > now:
                    break  # the rest was used later
                if not use.live:
                    found.append(key)
            for key in found:
                self._drop(key)
            return found

    def count(self, tenant: str | None = None) -> int:
        """How many are held, for one tenant or all."""
        with self._lock:
            return len(self._uses) if tenant is None else self._counts.get(tenant, 0)

    def _evict(self, tenant: str) -> SessionKey:
        for key, use in self._uses.items():
            if key[0].key.tenant == tenant and not use.live:
                self._drop(key)
                return key
        raise LimitExceededError(
            f"sessions: {self._most} have open requests, which is the most for this caller; "
            "finish some"
        )

    def _drop(self, key: SessionKey) -> bool:
        if self._uses.pop(key, None) is None:
            return False
        tenant = key[0].key.tenant
        self._counts[tenant] -= 1
        if not self._counts[tenant]:
            del self._counts[tenant]
        return True
