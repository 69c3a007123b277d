"""``/metrics``, for Prometheus."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST

from suffixspec_service.api.callers import AnyRuntime, Caller
from suffixspec_service.callers import require_admin

router = APIRouter(tags=["operation"])


@router.get("/metrics", response_class=Response)
async def metrics(runtime: AnyRuntime, caller: Caller) -> Response:
    """All metrics in Prometheus' text format. Where there are keys, it takes an administrator's:
    the figures are those of all tenants."""
    require_admin(caller, "metrics")
    body = await asyncio.to_thread(runtime.monitor.exposition)
    return Response(body, media_type=CONTENT_TYPE_LATEST)
