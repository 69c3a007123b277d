"""Where a request's body is read: checked, rendered and made tokens."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from fastapi import Request

from suffixspec_service.runtime import Runtime

_SHORT_BYTES = 2048
"""A body of so many bytes is made tokens in about half a millisecond, the time of two changes of
threads on a machine that has just woken up."""

_PAUSE_S = 0.005
"""Between two such bodies. Of many that come at once all but one go to a thread: together they
would stop the event loop."""

T = TypeVar("T")


class Reading:
    """Decides where bodies are read. One per event loop."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._free_at = 0.0

    async def __call__(self, request: Request, read: Callable[[], T]) -> T:
        """What ``read`` returns: called in the event loop where the body is short and none was read
        there just now, else in a thread."""
        length = request.headers.get("content-length", "")
        short = length.isdecimal() and int(length) <= _SHORT_BYTES
        if not short or time.monotonic() < self._free_at:
            return await self._runtime.in_pool(read)
        try:
            return read()
        finally:
            self._free_at = time.monotonic() + _PAUSE_S


async def reading(request: Request, read: Callable[[], T]) -> T:
    """As the application's :class:`Reading` decides."""
    decide: Reading = request.app.state.reading
    return await decide(request, read)
