"""How a caller waits for a request: as an asynchronous stream of events, or blocking."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Generator
from types import TracebackType

from suffixspec_engine.request import Request, RequestOutput, StepEvent


class RequestStream:
    """The events of one request, for one asynchronous consumer.

    ``async for event in stream`` ends after the event that carries the finish reason. Leaving an
    ``async with stream`` block early, or cancelling the task that waits, cancels the request.

    Args:
        cancel: ends a request.
        loop: the event loop it is read in; ``None``: the running one.
    """

    def __init__(
        self,
        cancel: Callable[[Request], None],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._loop = loop or asyncio.get_running_loop()
        self._events: asyncio.Queue[StepEvent] = asyncio.Queue()
        self._cancel = cancel
        self._request: Request | None = None
        self._over = False

    def attach(self, request: Request) -> None:
        """The request that the stream belongs to; called once, before it is submitted."""
        self._request = request

    def put(self, event: StepEvent) -> None:
        """Called in the engine's thread."""
        try:
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)
        except RuntimeError:  # the caller's event loop is closed: nobody waits any more
            self.request.cancelled = True

    @property
    def request(self) -> Request:
        """The request."""
        assert self._request is not None
        return self._request

    @property
    def request_id(self) -> str:
        """The request's name."""
        return self.request.request_id

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> StepEvent:
        if self._over:
            raise StopAsyncIteration
        try:
            event = await self._events.get()
        except asyncio.CancelledError:
            self.cancel()
            raise
        self._over = event.finish_reason is not None
        return event

    async def output(self) -> RequestOutput:
        """Wait for the end and return the whole output."""
        async for _ in self:
            pass
        return self.request.output()

    def cancel(self) -> None:
        """End the request at the next step; other requests notice nothing. May be called at any
        moment, from any thread, more than once."""
        self._cancel(self.request)

    async def __aenter__(self) -> RequestStream:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._over:
            self.cancel()


class BlockingStream:
    """The events of one request, for a caller without an event loop.

    Iterating ends after the event that carries the finish reason; leaving the loop early cancels
    the request.
    """

    def __init__(self, cancel: Callable[[Request], None]) -> None:
        self._events: queue.SimpleQueue[StepEvent] = queue.SimpleQueue()
        self._cancel = cancel
        self._request: Request | None = None
        self._over = False

    def attach(self, request: Request) -> None:
        """The request that the stream belongs to; called once, before it is submitted."""
        self._request = request

    def put(self, event: StepEvent) -> None:
        """Called in the engine's thread."""
        self._events.put(event)

    @property
    def request(self) -> Request:
        """The request."""
        assert self._request is not None
        return self._request

    def __iter__(self) -> Generator[StepEvent]:
        try:
            while not self._over:
                event = self._events.get()
                self._over = event.finish_reason is not None
                yield event
        finally:
            if not self._over:
                self.cancel()

    def output(self) -> RequestOutput:
        """Wait for the end and return the whole output."""
        while not self._over:
            self._over = self._events.get().finish_reason is not None
        return self.request.output()

    def cancel(self) -> None:
        """End the request at the next step. May be called from any thread, more than once."""
        self._cancel(self.request)
