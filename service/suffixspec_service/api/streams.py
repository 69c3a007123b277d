"""Server-sent events, plain or at a fixed cadence, and noticing that the client has gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import orjson
from fastapi import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from suffixspec_service.generation import Generation

T = TypeVar("T")

FRAME_BYTES = 1024
"""Size of every packet of a stream with a fixed cadence."""

DONE = b"data: [DONE]\n\n"
_CLIENT_CLOSED_REQUEST = 499


def event(value: Any, name: str | None = None) -> bytes:
    """One event with a JSON value."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + orjson.dumps(value) + b"\n\n"


class EventStream(Response):
    """Sends events as they come, until they end or the client has gone.

    Args:
        events: the bytes of whole events.
        close: awaited at the end, whatever the end was.
        cadence_ms: 0: each event at once; else one packet of :data:`FRAME_BYTES` per so many
            milliseconds, whatever there is to say, so that neither sizes nor times of packets tell
            how many tokens came when.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes],
        *,
        close: Callable[[], Awaitable[None]],
        cadence_ms: int = 0,
    ) -> None:
        super().__init__(
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
            media_type=self.media_type,
        )
        del self.headers["content-length"]
        self._events, self._close, self._cadence_ms = events, close, cadence_ms

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the response."""
        writing = self._write_paced if self._cadence_ms else self._write
        try:
            head: Message = {
                "type": "http.response.start",
                "status": 200,
                "headers": self.raw_headers,
            }
            await send(head)
            await _first_of(writing(send), _disconnected(receive))
        finally:
            await self._close()

    async def _write(self, send: Send) -> None:
        async for data in self._events:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write_paced(self, send: Send) -> None:
        pending = bytearray()
        over = asyncio.Event()

        async def collect() -> None:
            async for data in self._events:
                pending.extend(data)
            over.set()

        collecting = asyncio.create_task(collect())
        loop = asyncio.get_running_loop()
        next_at = loop.time()
        try:
            while not (over.is_set() and not pending):
                if collecting.done():
                    collecting.result()  # raise what it raised
                next_at += self._cadence_ms / 1000
                await asyncio.sleep(next_at - loop.time())
                frame = padded(bytes(pending[:FRAME_BYTES]))
                del pending[:FRAME_BYTES]
                await send({"type": "http.response.body", "body": frame, "more_body": True})
        finally:
            collecting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await collecting
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def streamed(
    generation: Generation,
    events: Callable[[Generation], AsyncIterator[bytes]],
    cadence_ms: int,
) -> EventStream:
    """A stream of what a generation gives. It is admitted before anything is sent, so that a
    refusal has its status, and ends with the stream, whatever the end was.

    Raises:
        SuffixSpecError: it is not admitted.
    """
    stack = contextlib.AsyncExitStack()
    admitted = await stack.enter_async_context(generation)
    return EventStream(events(admitted), close=stack.aclose, cadence_ms=cadence_ms)


def padded(data: bytes) -> bytes:
    """``data``, which ends with an event unless it is full, made :data:`FRAME_BYTES` long by a
    comment that clients ignore."""
    missing = FRAME_BYTES - len(data)
    if missing < 2:
        return data + b"\n" * missing
    return data + b":" + b" " * (missing - 2) + b"\n"


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T | Response:
    """What ``work`` returns; where the client goes away before, ``work`` is cancelled."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        return Response(status_code=_CLIENT_CLOSED_REQUEST)
    finally:
        await _end(task, gone)


async def _first_of(work: Coroutine[Any, Any, None], other: Coroutine[Any, Any, None]) -> None:
    """Run both until one ends; raise what ``work`` raised."""
    task, watcher = asyncio.ensure_future(work), asyncio.ensure_future(other)
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        await _end(task, watcher)


async def _end(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
