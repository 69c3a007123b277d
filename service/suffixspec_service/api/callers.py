"""What routes depend on: the runtime, and who calls.

All of it is ``async``, although nothing waits: FastAPI calls other functions in threads, which
costs more than they do and stands in the queue behind whatever else threads are busy with.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from suffixspec_index.errors import UnavailableError
from suffixspec_service.callers import Tenant
from suffixspec_service.runtime import Runtime

_SCHEME = "bearer "


async def runtime_of(request: Request) -> Runtime:
    """The runtime of the application."""
    return _runtime(request)


async def ready_runtime(request: Request) -> Runtime:
    """The runtime, if it takes requests.

    Raises:
        UnavailableError: it starts or stops.
    """
    runtime = _runtime(request)
    if not runtime.ready:
        doing = "stopping" if runtime.draining else "starting"
        raise UnavailableError(f"the service is {doing}; come again")
    return runtime


def sent_key(request: Request) -> str | None:
    """The API key that came with a request: ``Authorization: Bearer KEY`` or ``X-API-Key: KEY``."""
    header = request.headers.get("authorization", "")
    if header.lower().startswith(_SCHEME):
        return header[len(_SCHEME) :].strip()
    return request.headers.get("x-api-key")


async def authenticated(request: Request) -> Tenant:
    """Whose request it is.

    Raises:
        AuthenticationError: no key, or nobody's.
    """
    tenant = _runtime(request).callers.authenticate(sent_key(request))
    request.state.tenant = tenant.name
    return tenant


def _runtime(request: Request) -> Runtime:
    runtime: Runtime = request.app.state.runtime
    return runtime


AnyRuntime = Annotated[Runtime, Depends(runtime_of)]
ReadyRuntime = Annotated[Runtime, Depends(ready_runtime)]
Caller = Annotated[Tenant, Depends(authenticated)]
