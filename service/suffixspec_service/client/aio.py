"""The asynchronous client."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, TypeVar

import grpc
from numpy.typing import ArrayLike

from suffixspec_index.draft import DraftBatch
from suffixspec_index.errors import InputError, SuffixSpecError, UnavailableError
from suffixspec_service.client.calls import (
    IN_STREAM,
    ended,
    failure,
    late,
    reply_of,
    stream_message,
    stub_method,
)
from suffixspec_service.client.options import ClientOptions
from suffixspec_service.client.protocol import Call, Pause, Plan, Protocol, Resume
from suffixspec_service.client.requests import ClientRequest
from suffixspec_service.drafting.acceptance import Acceptance
from suffixspec_service.drafting.messages import DraftingStatistics, LeaseTerms
from suffixspec_service.rpc.generated import drafting_pb2 as pb
from suffixspec_service.rpc.generated import drafting_pb2_grpc as pb_grpc

T = TypeVar("T")


class AsyncDraftClient:
    """As :class:`~.blocking.DraftClient`, for an event loop, and with calls that overlap: a call
    need not wait for the one before it, and they take effect in the order in which they were made.

    ::

        async with AsyncDraftClient("127.0.0.1:50051", model="m", tokenizer="t",
                                    vocab_size=32000) as client:
            request = await client.begin("conversation-1", prompt)
            drafts = await client.step([(request, gained)], propose=[request])

    Args:
        address: ``HOST:PORT``, or ``unix:PATH``.
        options: the fields of :class:`~.options.ClientOptions`.

    Raises:
        ConfigError: an option is wrong.
    """

    def __init__(self, address: str, **options: Any) -> None:
        self.options = ClientOptions(address=address, **options)
        self._protocol = Protocol(self.options)
        self._transport: _Transport | None = None
        self._resuming = asyncio.Lock()
        self._keeper: asyncio.Task[None] | None = None
        self._used_at = time.monotonic()

    async def connect(self) -> LeaseTerms:
        """Open the lease; entering the client's ``async with`` does it.

        Raises:
            UnavailableError, AuthenticationError, InputError, ...: no lease could be opened.
        """
        self._transport = _Transport(self.options)
        try:
            terms = await self._carry_out(self._protocol.connect())
        except BaseException:
            await self._transport.close()
            self._transport = None
            raise
        self._keeper = asyncio.create_task(self._keep_alive(terms.ttl_seconds / 3))
        return terms

    @property
    def terms(self) -> LeaseTerms:
        """What the service granted."""
        terms = self._protocol.terms
        if terms is None:
            raise InputError("client: it is not connected; use it in an 'async with' block")
        return terms

    @property
    def requests(self) -> list[ClientRequest]:
        """What is open."""
        return self._protocol.requests

    async def begin(
        self,
        session_id: str,
        prompt: ArrayLike,
        *,
        max_tokens: int | None = None,
        prediction: ArrayLike | None = None,
    ) -> ClientRequest:
        """Begin a request; see :meth:`.DraftClient.begin`."""
        return await self._run(
            self._protocol.begin(session_id, prompt, max_tokens=max_tokens, prediction=prediction)
        )

    async def step(
        self,
        gained: Iterable[tuple[ClientRequest, ArrayLike]] = (),
        propose: Sequence[ClientRequest] = (),
        limits: Sequence[int] = (),
    ) -> DraftBatch:
        """Tell what requests gained and draft for requests; see :meth:`.DraftClient.step`."""
        return await self._run(self._protocol.step(gained, propose, limits))

    async def finish(
        self, requests: Sequence[ClientRequest], *, discard: bool = False
    ) -> list[Acceptance]:
        """End requests; see :meth:`.DraftClient.finish`."""
        return await self._run(self._protocol.finish(requests, discard=discard))

    @asynccontextmanager
    async def session(self, session_id: str) -> AsyncIterator[str]:
        """A session that is forgotten at the end of the block; gives its id."""
        try:
            yield session_id
        finally:
            await self.end_session(session_id)

    async def end_session(self, session_id: str) -> None:
        """Forget what is held for a session alone."""
        await self._run(self._protocol.end_session(session_id))

    async def ingest(self, sequences: Iterable[ArrayLike]) -> int:
        """Remember finished sequences from elsewhere; returns their tokens."""
        return await self._run(self._protocol.ingest(sequences))

    async def purge(self) -> None:
        """Forget everything of the namespace."""
        await self._run(self._protocol.purge())

    async def statistics(self) -> DraftingStatistics:
        """Sizes and counts."""
        return await self._run(self._protocol.statistics())

    async def close(self) -> None:
        """End the lease and what is open under it. May be called twice."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._transport is not None:
            with suppress(SuffixSpecError):
                await self._carry_out(self._protocol.close())
            await self._transport.close()
            self._transport = None

    async def __aenter__(self) -> AsyncDraftClient:
        await self.connect()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _run(self, plan: Plan[T]) -> T:
        """Carry out a plan, once nobody resumes: what requests gain meanwhile would be missed."""
        while self._resuming.locked():
            async with self._resuming:
                pass
        self._used_at = time.monotonic()
        return await self._carry_out(plan)

    async def _carry_out(self, plan: Plan[T]) -> T:
        reply: Any = None
        error: BaseException | None = None
        try:
            while True:
                step = plan.send(reply) if error is None else plan.throw(error)
                reply, error = None, None
                try:
                    reply = await self._do(step)
                except (SuffixSpecError, asyncio.CancelledError) as raised:
                    error = raised
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def _do(self, step: Call | Pause | Resume) -> Any:
        transport = self._transport
        if transport is None:
            raise InputError("client: it is not connected; use it in an 'async with' block")
        if isinstance(step, Call):
            return await transport.call(step)
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        async with self._resuming:
            if step.epoch == self._protocol.epoch:
                transport.reset()
                await self._carry_out(self._protocol.resume())
        return None

    async def _keep_alive(self, every: float) -> None:
        """Renew the lease while the engine has nothing to do."""
        while True:
            await asyncio.sleep(every)
            if time.monotonic() - self._used_at >= every and not self._resuming.locked():
                with suppress(SuffixSpecError):
                    await self._run(self._protocol.keep_alive())


class _Transport:
    """Calls over one channel."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        if options.tls:
            self._channel = grpc.aio.secure_channel(
                options.address, options.credentials(), options.channel_options
            )
        else:
            self._channel = grpc.aio.insecure_channel(options.address, options.channel_options)
        self._stub: Any = pb_grpc.DraftingStub(self._channel)
        self._stream: _Stream | None = None

    async def call(self, call: Call) -> Any:
        """Send and wait.

        Raises:
            SuffixSpecError: what the call ended with.
        """
        options = self._options
        if options.transport == "stream" and call.method in IN_STREAM:
            if self._stream is None or self._stream.broken:
                self._stream = _Stream(self._stub, options)
            return await self._stream.call(call)
        try:
            return await stub_method(self._stub, call.method)(
                call.message, timeout=options.timeout, metadata=options.metadata
            )
        except grpc.RpcError as error:
            raise failure(error, options) from error

    def reset(self) -> None:
        """Begin a new stream with the next call."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    async def close(self) -> None:
        """Close the channel."""
        if self._stream is not None:
            await self._stream.closed()
        await self._channel.close()


class _Stream:
    """A drafting stream: calls are written in order, and a task hands their replies out."""

    def __init__(self, stub: Any, options: ClientOptions) -> None:
        self._options = options
        self._call = stub.Stream(metadata=options.metadata)
        self._number = 0
        self._waiting: deque[tuple[int, str, asyncio.Future[Any]]] = deque()
        self._writing = asyncio.Lock()
        self.broken = False
        self._reader = asyncio.create_task(self._read())

    async def call(self, call: Call) -> Any:
        """Send a message and wait for its reply."""
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._options.timeout):
                async with self._writing:  # first come, first served; gRPC takes one at a time
                    await self._write(call, answered)
                return await answered
        except TimeoutError:
            self.close()
            raise late(self._options) from None
        except (grpc.RpcError, asyncio.InvalidStateError):  # InvalidState: it had ended before
            return await answered  # the reader knows why

    async def _write(self, call: Call, answered: asyncio.Future[Any]) -> None:
        self._number += 1
        self._waiting.append((self._number, call.method, answered))
        try:
            await self._call.write(stream_message(self._number, call.method, call.message))
        except asyncio.CancelledError:
            self.close()  # whether it was sent is not known
            raise

    def close(self) -> None:
        """End the stream."""
        self.broken = True
        self._call.cancel()

    async def closed(self) -> None:
        """End the stream and wait until it has."""
        self.close()
        await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self) -> None:
        error: SuffixSpecError = ended(self._options)
        try:
            while (reply := await self._call.read()) is not grpc.aio.EOF:
                self._hand_out(reply)
            code = await self._call.code()
            if code is not grpc.StatusCode.OK:
                error = UnavailableError(
                    f"{self._options.address}: the service ended the stream "
                    f"({code.name.lower()}: {await self._call.details()})"
                )
        except grpc.RpcError as raised:
            error = failure(raised, self._options)
        except asyncio.CancelledError:
            pass  # the stream was closed, or the event loop ends
        finally:
            self.broken = True
            for _, _, answered in self._waiting:
                if not answered.done():
                    answered.set_exception(error)
                    answered.exception()  # whoever was to wait may have gone
            self._waiting.clear()

    def _hand_out(self, reply: pb.StreamReply) -> None:
        number, method, answered = self._waiting.popleft()
        if answered.done():
            return  # nobody waits any more
        try:
            answered.set_result(reply_of(reply, number, method))
        except SuffixSpecError as error:
            answered.set_exception(error)
