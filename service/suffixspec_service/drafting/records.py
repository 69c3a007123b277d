"""What ended requests leave: a record for the monitor, and totals by namespace."""

from __future__ import annotations

import copy
import threading
import time

from suffixspec_index.namespaces import NamespaceKey
from suffixspec_service.drafting.acceptance import Acceptance
from suffixspec_service.drafting.leases import LiveRequest
from suffixspec_service.monitor.records import RequestRecord

API = "drafting"


class Totals:
    """Ended requests and their acceptance by namespace. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: dict[NamespaceKey, tuple[int, Acceptance]] = {}

    def add(self, key: NamespaceKey, acceptance: Acceptance) -> None:
        """Count one request."""
        with self._lock:
            requests, total = self._totals.get(key, (0, Acceptance()))
            total.add(acceptance)
            self._totals[key] = requests + 1, total

    def of(self, key: NamespaceKey) -> tuple[int, Acceptance]:
        """How many requests of a namespace ended, and their counts (a copy)."""
        with self._lock:
            requests, total = self._totals.get(key, (0, Acceptance()))
            return requests, copy.deepcopy(total)


def record_of(
    key: NamespaceKey, lease: str, request: LiveRequest, counts: Acceptance, status: str
) -> RequestRecord:
    """The record of a request that ends now. When its first token came is not known: the engine
    does not tell."""
    return RequestRecord(
        tenant=key.tenant,
        namespace=str(key),
        model=key.model,
        api=API,
        # A lease is a secret, so only its first characters name it.
        request_id=f"{lease[:8]}-{request.number}",
        session_id=request.session,
        started_at=request.started_at,
        ttft_s=None,
        duration_s=max(time.time() - request.started_at, 0.0),
        prompt_tokens=request.prompt_tokens,
        output_tokens=counts.output_tokens,
        steps=counts.steps,
        steps_with_draft=counts.steps_with_draft,
        drafted=counts.drafted,
        accepted=counts.accepted,
        accepted_per_position=tuple(counts.accepted_per_position),
        by_source=counts.by_source,
        status=status,
    )
