"""Keeps other web sites out of a service that a browser on the same machine can reach.

Where there are no keys, whoever can connect may do everything. A web page that somebody looks at
on this machine can connect too: by a form or script aimed at the loopback address, or by a name of
its own that it lets resolve to that address (DNS rebinding). The first is seen by what browsers say
of a request's origin, the second by the name in ``Host``.
"""

from __future__ import annotations

from fastapi import Request

from suffixspec_index.errors import ForbiddenError
from suffixspec_service.config import is_loopback


async def same_site(request: Request) -> None:
    """Refuse what another web site lets a browser ask.

    Raises:
        ForbiddenError: the request comes from another site's page, or there are no keys and the
            service listens on loopback only, yet is called by another machine's name.
    """
    if request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        raise ForbiddenError("this page is for the service's own site, not for other web sites")
    runtime = request.app.state.runtime
    if runtime.callers.needs_key or not is_loopback(runtime.config.host):
        return
    host = request.headers.get("host", "")
    name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.split(":")[0]
    if not is_loopback(name):
        raise ForbiddenError(
            f"host: {name!r} is not a name of this machine's loopback address; open the page by "
            "the address that the service prints, or make API keys"
        )
