"""Leases: what a client has open, so that nothing of it stays when the client is gone."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.errors import LimitExceededError, UnknownLeaseError, UnknownRequestError
from suffixspec_index.proposers.base import Proposer, RequestHandle
from suffixspec_service.callers import Tenant
from suffixspec_service.drafting.acceptance import AcceptanceLedger
from suffixspec_service.drafting.config import DraftingConfig
from suffixspec_service.spaces import Space


@dataclass(frozen=True, slots=True, eq=False)
class LiveRequest:
    """An open request.

    Attributes:
        number: the client's.
        proposer: drafts for it; ``handle`` is its handle there.
        row: of the lease's ledger.
        session: as the client named it.
        prompt_tokens: how many.
        started_at: seconds since 1970.
    """

    number: int
    proposer: Proposer
    handle: RequestHandle
    row: int
    session: str
    prompt_tokens: int
    started_at: float


@dataclass(slots=True, eq=False)
class Lease:
    """An open lease. ``lock`` guards everything that changes, ``expires_at`` aside."""

    id: str
    tenant: Tenant
    space: Space
    paths_only: bool
    ttl_seconds: float
    expires_at: float
    requests: dict[int, LiveRequest] = field(default_factory=dict)
    ledger: AcceptanceLedger = field(default_factory=AcceptanceLedger)
    lock: threading.Lock = field(default_factory=threading.Lock)
    closed: bool = False

    def lookup(self, numbers: Sequence[int], field: str) -> list[LiveRequest]:
        """The requests of these numbers. O(n).

        Raises:
            UnknownRequestError: one is not open. InputError is left to whoever knows whether one
                may be named twice.
        """
        requests = self.requests
        try:
            return [requests[number] for number in numbers]
        except KeyError:
            unknown = next(number for number in numbers if number not in requests)
            raise UnknownRequestError(
                f"{field}: no request {unknown} is open under this lease; it never began or is "
                "finished"
            ) from None


def rows_of(requests: Sequence[LiveRequest]) -> NDArray[np.int64]:
    """Their rows in the ledger."""
    return np.array([request.row for request in requests], np.int64)


class LeaseTable:
    """The open leases, and how many requests each tenant has open. Thread-safe; O(1) but for
    :meth:`expired`."""

    def __init__(self, config: DraftingConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._leases: dict[str, Lease] = {}
        self._requests: dict[str, int] = {}  # by tenant; reserved ones included

    def add(
        self, tenant: Tenant, space: Space, *, paths_only: bool, ttl: float, now: float
    ) -> Lease:
        """A new lease.

        Raises:
            LimitExceededError: the tenant has as many as it may.
        """
        with self._lock:
            held = self._held(tenant.name)
            if held >= self._config.max_leases:
                raise LimitExceededError(
                    f"leases: {held} are open, and {self._config.max_leases} are allowed for this "
                    "caller; close one, or name the one that the new one replaces",
                    retry_after=self._config.lease_seconds,
                )
            name = secrets.token_urlsafe(16)
            lease = Lease(name, tenant, space, paths_only, ttl, now + ttl)
            self._leases[name] = lease
            return lease

    def find(self, tenant: Tenant, name: str) -> Lease | None:
        """A lease of a tenant; another tenant's is not there."""
        lease = self._leases.get(name)
        return lease if lease is not None and lease.tenant.name == tenant.name else None

    def renewed(self, tenant: Tenant, name: str, now: float) -> Lease:
        """A lease of a tenant, renewed.

        Raises:
            UnknownLeaseError: it is not open (any more).
        """
        lease = self.find(tenant, name)
        if lease is None or lease.closed or lease.expires_at <= now:
            raise unknown_lease()
        lease.expires_at = now + lease.ttl_seconds
        return lease

    def remove(self, lease: Lease) -> None:
        """A lease has been closed."""
        with self._lock:
            self._leases.pop(lease.id, None)

    def expired(self, now: float) -> list[Lease]:
        """Leases that ran out. O(leases)."""
        with self._lock:
            return [lease for lease in self._leases.values() if lease.expires_at <= now]

    def all(self) -> list[Lease]:
        """Every lease."""
        with self._lock:
            return list(self._leases.values())

    @contextmanager
    def reserving(self, tenant: Tenant, requests: int) -> Iterator[None]:
        """Count requests as open; where the block raises they are not.

        Raises:
            LimitExceededError: the tenant would have more than it may.
        """
        with self._lock:
            held = self._requests.get(tenant.name, 0)
            if held + requests > self._config.max_requests:
                raise LimitExceededError(
                    f"requests: {held} are open, and {self._config.max_requests} are allowed for "
                    f"this caller; finish some before beginning {requests}"
                )
            self._requests[tenant.name] = held + requests
        try:
            yield
        except BaseException:
            self.release(tenant, requests)
            raise

    def release(self, tenant: Tenant, requests: int) -> None:
        """As many requests are not open any more."""
        with self._lock:
            left = self._requests[tenant.name] - requests
            if left:
                self._requests[tenant.name] = left
            else:
                del self._requests[tenant.name]

    def open_leases(self, tenant: str | None = None) -> int:
        """How many leases are open, of one tenant or of all."""
        with self._lock:
            return len(self._leases) if tenant is None else self._held(tenant)

    def open_requests(self, tenant: str | None = None) -> int:
        """How many requests are open, of one tenant or of all."""
        with self._lock:
            if tenant is None:
                return sum(self._requests.values())
            return self._requests.get(tenant, 0)

    def _held(self, tenant: str) -> int:
        return sum(lease.tenant.name == tenant for lease in self._leases.values())


def unknown_lease() -> UnknownLeaseError:
    """The error for a lease that is not open. It does not name it: a lease is a secret."""
    return UnknownLeaseError(
        "lease: it is not open; it never was, was closed, or ran out. Open a new one and begin "
        "its requests again"
    )
