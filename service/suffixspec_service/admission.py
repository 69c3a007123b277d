"""Whether a tenant may begin another request now: concurrent requests and tokens per second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from suffixspec_index.errors import LimitExceededError, UnavailableError
from suffixspec_service.callers import Tenant
from suffixspec_service.config import Limits

_BURST_SECONDS = 10.0
_ASK_AGAIN_S = 1.0


@dataclass(slots=True)
class Usage:
    """One tenant's: requests that run, and tokens that may still be used (negative: owed)."""

    running: int
    tokens: float
    filled_at: float


class Admission:
    """Counts what every tenant uses. Thread-safe; O(1).

    A token bucket per tenant: what a request really costs is known when it ends, so it is charged
    then, and a tenant that owes tokens waits until the bucket is filled again.

    Args:
        clock: seconds, monotonic; for tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._usage: dict[str, Usage] = {}
        self._closed = False

    @property
    def running(self) -> int:
        """Requests admitted and not ended."""
        with self._lock:
            return sum(usage.running for usage in self._usage.values())

    def running_of(self, tenant: str) -> int:
        """Those of one tenant."""
        with self._lock:
            usage = self._usage.get(tenant)
            return usage.running if usage else 0

    def stop(self) -> None:
        """Admit nobody any more."""
        self._closed = True

    @contextmanager
    def admit(self, tenant: Tenant, requests: int = 1) -> Iterator[None]:
        """Count ``requests`` of a tenant as running within the block.

        Raises:
            LimitExceededError: a limit of the tenant is reached; says when to come again.
            UnavailableError: the service is stopping.
        """
        self.enter(tenant, requests)
        try:
            yield
        finally:
            self.leave(tenant, requests)

    def enter(self, tenant: Tenant, requests: int = 1) -> None:
        """As :meth:`admit`; to be followed by :meth:`leave`."""
        if self._closed:
            raise UnavailableError("the service is stopping; ask another replica")
        limits = tenant.limits
        with self._lock:
            usage = self._filled(tenant)
            most = limits.concurrent_requests
            if most is not None and usage.running + requests > most:
                raise LimitExceededError(
                    f"concurrent_requests: {usage.running} are running and {most} are allowed for "
                    f"this caller; wait for one to end",
                    retry_after=_ASK_AGAIN_S,
                )
            if limits.tokens_per_second is not None and usage.tokens < 0:
                wait = -usage.tokens / limits.tokens_per_second
                raise LimitExceededError(
                    f"tokens_per_second: this caller used more than {limits.tokens_per_second:g} "
                    f"per second; come again in {wait:.1f} s",
                    retry_after=wait,
                )
            usage.running += requests

    def leave(self, tenant: Tenant, requests: int = 1) -> None:
        """As many requests have ended."""
        with self._lock:
            usage = self._usage[tenant.name]
            usage.running -= requests
            if not usage.running and tenant.limits.tokens_per_second is None:
                del self._usage[tenant.name]

    def charge(self, tenant: Tenant, tokens: int) -> None:
        """The tenant used ``tokens``."""
        if tenant.limits.tokens_per_second is None:
            return
        with self._lock:
            self._filled(tenant).tokens -= tokens

    def _filled(self, tenant: Tenant) -> Usage:
        now = self._clock()
        full = _capacity(tenant.limits)
        usage = self._usage.get(tenant.name)
        if usage is None:
            usage = self._usage[tenant.name] = Usage(0, full, now)
        rate = tenant.limits.tokens_per_second or 0.0
        usage.tokens = min(full, usage.tokens + rate * (now - usage.filled_at))
        usage.filled_at = now
        return usage


def _capacity(limits: Limits) -> float:
    if limits.burst_tokens is not None:
        return limits.burst_tokens
    return (limits.tokens_per_second or 0.0) * _BURST_SECONDS
