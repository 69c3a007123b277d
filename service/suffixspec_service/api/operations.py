"""What operators and their load balancers ask: alive, ready."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from suffixspec_service.api.callers import AnyRuntime

router = APIRouter(tags=["operation"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Whether the process answers."""
    return {"status": "ok"}


@router.get("/readyz", responses={503: {"description": "Starting or stopping."}})
async def readyz(runtime: AnyRuntime) -> JSONResponse:
    """Whether requests are taken now."""
    if runtime.ready:
        return JSONResponse({"status": "ready"})
    status = "draining" if runtime.draining else "starting"
    return JSONResponse({"status": status}, status_code=503, headers={"Retry-After": "5"})
