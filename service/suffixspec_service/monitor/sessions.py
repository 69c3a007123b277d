"""The latest sessions, for the session view: figures always, text only where it may be kept."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field, replace
from typing import Any

from suffixspec_service.monitor.records import Piece, RequestRecord


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """How much is kept. When it is too much, the session that was quiet for longest goes.

    Attributes:
        sessions: over all tenants.
        per_tenant: of one tenant, so that a busy one does not push out the others.
        requests: per session; the first ones go.
        pieces: per request; the rest is cut off.
        chars: of text over all sessions.
    """

    sessions: int = 200
    per_tenant: int = 60
    requests: int = 40
    pieces: int = 4000
    chars: int = 8_000_000


@dataclass(slots=True)
class KeptRequest:
    """A request with as much of its text as is kept."""

    record: RequestRecord
    pieces: tuple[Piece, ...] | None
    pieces_total: int
    chars: int


@dataclass(slots=True)
class KeptSession:
    """A session and its latest requests."""

    tenant: str
    session_id: str
    updated_at: float
    requests: deque[KeptRequest] = field(default_factory=deque)
    requests_total: int = 0

    @property
    def chars(self) -> int:
        """Characters of text that are kept."""
        return sum(request.chars for request in self.requests)

    def summary(self) -> dict[str, Any]:
        """Its line in the list, over the requests that are kept."""
        records = [request.record for request in self.requests]
        last = records[-1]
        return {
            "tenant": self.tenant,
            "session_id": self.session_id,
            "model": last.model,
            "updated_at": self.updated_at,
            "requests": self.requests_total,
            "output_tokens": sum(r.output_tokens for r in records),
            "steps": sum(r.steps for r in records),
            "drafted": sum(r.drafted for r in records),
            "accepted": sum(r.accepted for r in records),
            "has_text": any(request.pieces for request in self.requests),
        }


class RecentSessions:
    """Kept sessions by tenant and id. Not thread-safe; the monitor's lock guards it."""

    def __init__(self, limits: SessionLimits | None = None, *, keep_text: bool) -> None:
        self.limits = limits or SessionLimits()
        self.keep_text = keep_text
        self._sessions: OrderedDict[tuple[str, str], KeptSession] = OrderedDict()
        self._chars = 0

    def add(self, record: RequestRecord, at: float) -> None:
        """Keep a request that ended ``at`` epoch seconds. O(pieces), amortised."""
        key = (record.tenant, record.session_id)
        session = self._sessions.pop(key, None) or KeptSession(*key, updated_at=at)
        self._sessions[key] = session
        session.updated_at = at
        session.requests_total += 1
        kept = self._kept(record)
        session.requests.append(kept)
        self._chars += kept.chars
        while len(session.requests) > self.limits.requests:
            self._chars -= session.requests.popleft().chars
        self._evict(record.tenant)

    def _kept(self, record: RequestRecord) -> KeptRequest:
        given = record.pieces if self.keep_text else None
        pieces = None if given is None else tuple(Piece(*p) for p in given[: self.limits.pieces])
        chars = sum(len(piece.text) for piece in pieces or ())
        # The record itself is kept too: not with the text, nor with what only counters need.
        slim = _without_text(record) if record.pieces or record.gaps_s else record
        return KeptRequest(slim, pieces, len(given or ()), chars)

    def _evict(self, tenant: str) -> None:
        own = [key for key in self._sessions if key[0] == tenant]
        for key in own[: max(0, len(own) - self.limits.per_tenant)]:
            self._drop(key)
        while len(self._sessions) > self.limits.sessions or (
            self._chars > self.limits.chars and len(self._sessions) > 1
        ):
            self._drop(next(iter(self._sessions)))

    def _drop(self, key: tuple[str, str]) -> None:
        self._chars -= self._sessions.pop(key).chars

    def summaries(self, tenant: str | None) -> list[dict[str, Any]]:
        """The list, latest first; ``tenant``: whose, ``None``: everybody's."""
        return [
            session.summary()
            for session in reversed(self._sessions.values())
            if tenant is None or session.tenant == tenant
        ]

    def get(self, tenant: str, session_id: str) -> dict[str, Any] | None:
        """A session with its requests; ``None``: not kept."""
        session = self._sessions.get((tenant, session_id))
        if session is None:
            return None
        return session.summary() | {"kept_requests": [_request(r) for r in session.requests]}

    def forget(self, tenant: str) -> int:
        """Forget all of a tenant's; how many."""
        keys = [key for key in self._sessions if key[0] == tenant]
        for key in keys:
            self._drop(key)
        return len(keys)

    @property
    def chars(self) -> int:
        """Characters of text that are kept."""
        return self._chars

    def __len__(self) -> int:
        return len(self._sessions)


def _without_text(record: RequestRecord) -> RequestRecord:
    return replace(record, pieces=None, gaps_s=())


def _request(kept: KeptRequest) -> dict[str, Any]:
    record = kept.record
    return {
        "request_id": record.request_id,
        "api": record.api,
        "status": record.status,
        "started_at": record.started_at,
        "ttft_s": record.ttft_s,
        "duration_s": record.duration_s,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "output_tokens": record.output_tokens,
        "steps": record.steps,
        "steps_with_draft": record.steps_with_draft,
        "drafted": record.drafted,
        "accepted": record.accepted,
        "by_source": {k: list(v) for k, v in record.by_source.items()},
        "pieces": None if kept.pieces is None else [list(p) for p in kept.pieces],
        "pieces_total": kept.pieces_total,
    }
