"""Where a request's body is read: checked, rendered and made tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fastapi import Request

from suffixspec_service.runtime import Runtime

_SHORT_BYTES = 2048
"""A body of so many bytes is made tokens in about half a millisecond, the time of two changes of
threads on a machine that has just woken up."""

T = TypeVar("T")


async def reading(request: Request, runtime: Runtime, read: Callable[[], T]) -> T:
    """What ``read`` returns: called in the event loop where the body is short, else in a thread."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) <= _SHORT_BYTES:
        return read()
    return await runtime.in_pool(read)
