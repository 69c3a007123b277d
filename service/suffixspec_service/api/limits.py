"""What stands before every route: the size of bodies, and a line in the log."""

from __future__ import annotations

import contextlib
import secrets
import time

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from suffixspec_service.api.problems import body
from suffixspec_service.logs import get_logger

_log = get_logger(__name__)


class _TooLargeError(Exception):
    """The body is larger than allowed."""


class BodyLimit:
    """Refuses bodies of more than ``most`` bytes with 413, before they are read into memory."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app, self._most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        read = 0
        started = False

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._most and not started:
                raise _TooLargeError
            return message

        async def noted(message: Message) -> None:
            nonlocal started
            if read > self._most and not started:
                return  # what the application makes of the broken body
            started = True
            await send(message)

        if _declared(scope) > self._most:
            read = self._most + 1
        else:
            with contextlib.suppress(_TooLargeError):
                await self._app(scope, counted, noted)
        if read > self._most and not started:
            text = f"the body is larger than {self._most} bytes; send less"
            answer = JSONResponse(
                body(text, "invalid_request_error", code="request_too_large"),
                status_code=413,
                headers={"Connection": "close"},
            )
            await answer(scope, receive, send)


class AccessLog:
    """One event per request: what, for whom, how it ended and how long it took; never what was
    said. Gives every request an id, which the answer carries as ``X-Request-Id``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        name = f"req-{secrets.token_hex(8)}"
        status = 0

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", name.encode())]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            _log.info(
                "answered",
                http_request_id=name,
                method=scope["method"],
                path=scope["path"],
                tenant=scope.get("state", {}).get("tenant"),
                status=status,
                seconds=round(time.perf_counter() - began, 4),
            )


def _declared(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0
