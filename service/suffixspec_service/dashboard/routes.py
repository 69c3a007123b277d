"""The dashboard's page and assets, and the data it shows."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import RedirectResponse, Response

from suffixspec_index.errors import LookupFailure
from suffixspec_service.api.callers import AnyRuntime, Caller
from suffixspec_service.callers import Tenant
from suffixspec_service.dashboard.page_files import ASSETS, Asset
from suffixspec_service.monitor.alerts import Acceptance
from suffixspec_service.monitor.monitor import Monitor
from suffixspec_service.monitor.probes import NamespaceState
from suffixspec_service.runtime import Runtime
from suffixspec_service.same_site import same_site
from suffixspec_service.version import version
from suffixspec_traces.report.visible import visible_text

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}
Range = Literal["5m", "1h", "24h"]
_FOLD = {"5m": 5, "1h": 6, "24h": 20}
"""Buckets per point of a chart: about 60 points, whatever the range."""

pages = APIRouter(include_in_schema=False)
data = APIRouter(prefix="/dashboard/api", tags=["dashboard"], dependencies=[Depends(same_site)])
router = APIRouter()


# -- page and assets -------------------------------------------------------------------------------


@pages.get("/")
def page(request: Request) -> Response:
    """The page. It holds no data, so it needs no key."""
    return _asset(request, ASSETS["index.html"])


@pages.get("/dashboard")
def old_habit() -> Response:
    """Where people also look."""
    return RedirectResponse("/")


@pages.get("/dashboard/assets/{name}")
def asset(request: Request, name: str) -> Response:
    """A script or style."""
    found = ASSETS.get(name)
    if found is None:
        raise LookupFailure(f"assets: there is no {name!r}")
    return _asset(request, found)


def _asset(request: Request, found: Asset) -> Response:
    headers = _HEADERS | {"ETag": found.etag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == found.etag:
        return Response(status_code=304, headers=headers)
    return Response(found.body, media_type=found.media_type, headers=headers)


# -- data ------------------------------------------------------------------------------------------


def _visible_tenant(caller: Tenant) -> str | None:
    """Whose data a caller sees; ``None``: everybody's."""
    return None if caller.admin else caller.name


@data.get("/me")
def me(runtime: AnyRuntime, caller: Caller) -> dict[str, Any]:
    """Who looks, and what at."""
    return {
        "tenant": caller.name,
        "admin": caller.admin,
        "needs_key": runtime.callers.needs_key,
        "keeps_text": runtime.monitor.keeps_text,
        "version": version(),
        "model": runtime.model.name if runtime.model is not None else None,
        "method": runtime.spaces.speculative.method,
        "started_at": runtime.started_at,
    }


@data.get("/overview")
async def overview(
    runtime: AnyRuntime, caller: Caller, range: Annotated[Range, Query()] = "5m"
) -> dict[str, Any]:
    """Everything on the first page: time series, indexes, acceptance, alerts."""
    monitor, tenant = runtime.monitor, _visible_tenant(caller)
    indexes = await asyncio.to_thread(monitor.namespaces, tenant)
    return {
        "now": time.time(),
        "state": _state(runtime),
        "engine": _engine(monitor) if caller.admin else None,
        "window": await asyncio.to_thread(monitor.window, range, tenant, fold=_FOLD[range]),
        "namespaces": _namespaces(indexes, monitor.acceptance(tenant)),
        "alerts": [
            {"namespace": a.namespace, "tenant": a.tenant} | dataclasses.asdict(a.event)
            for a in monitor.alerts(tenant)[:50]
        ],
        "sharing": [
            dataclasses.asdict(s)
            for s in (await asyncio.to_thread(_sharing, monitor) if caller.admin else ())
        ],
    }


def _state(runtime: Runtime) -> str:
    if runtime.draining:
        return "draining"
    return "ready" if runtime.ready else "starting"


def _engine(monitor: Monitor) -> dict[str, Any] | None:
    probe = monitor.probe()
    state = probe.engine() if probe is not None else None
    return dataclasses.asdict(state) if state is not None else None


def _sharing(monitor: Monitor) -> Sequence[Any]:
    probe = monitor.probe()
    return probe.sharing() if probe is not None else ()


def _namespaces(
    indexes: Sequence[NamespaceState], acceptance: Sequence[Acceptance]
) -> list[dict[str, Any]]:
    """Index and acceptance of every namespace that has either; alarms first, then by size."""
    found: dict[str, dict[str, Any]] = {
        state.namespace: {"index": dataclasses.asdict(state), "acceptance": None}
        for state in indexes
    }
    for state in acceptance:
        entry = found.setdefault(state.namespace, {"index": None})
        entry["acceptance"] = dataclasses.asdict(state)
    rows = [{"namespace": name} | entry for name, entry in found.items()]

    def rank(row: dict[str, Any]) -> tuple[bool, int, str]:
        alarmed = row["acceptance"] is not None and row["acceptance"]["alarmed_since"] is not None
        size = row["index"]["bytes"] if row["index"] is not None else 0
        return (not alarmed, -size, row["namespace"])

    return sorted(rows, key=rank)[:200]


@data.get("/sessions")
def sessions(runtime: AnyRuntime, caller: Caller) -> dict[str, Any]:
    """Recent sessions, latest first."""
    listed = runtime.monitor.sessions(_visible_tenant(caller))
    return {
        "keeps_text": runtime.monitor.keeps_text,
        "data": [s | {"label": visible_text(s["session_id"])} for s in listed],
    }


@data.get("/session")
def session(
    runtime: AnyRuntime, caller: Caller, id: str, tenant: str | None = None
) -> dict[str, Any]:
    """A recent session with its requests, and their text where it is kept."""
    owner = tenant if tenant is not None and caller.admin else caller.name
    found = runtime.monitor.session(owner, id)
    if found is None:
        raise LookupFailure(f"session: there is no recent session {id!r}")
    for request in found["kept_requests"]:
        for piece in request["pieces"] or ():
            piece[0] = visible_text(piece[0])
    return found | {"label": visible_text(id)}


router.include_router(pages)
router.include_router(data)
