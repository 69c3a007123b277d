"""``suffixspec.v1.Drafting``: every call is read, done by :class:`DraftingCalls`, and written."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc

from suffixspec_index.errors import InputError, SuffixSpecError, UnavailableError
from suffixspec_service.callers import Callers, Tenant
from suffixspec_service.drafting import DraftingCalls
from suffixspec_service.drafting.messages import as_tokens
from suffixspec_service.rpc import wire
from suffixspec_service.rpc.generated import drafting_pb2 as pb
from suffixspec_service.rpc.generated import drafting_pb2_grpc as pb_grpc
from suffixspec_service.rpc.interceptors import caller, sent_key
from suffixspec_service.rpc.metrics import CallMetrics
from suffixspec_service.rpc.statuses import code_of, retry_after

Context = grpc.aio.ServicerContext[Any, Any]
_KEY_AGAIN_S = 5.0


class DraftingServicer(pb_grpc.DraftingServicer):
    """See ``drafting.proto``. Errors are turned into statuses by the interceptors."""

    def __init__(self, calls: DraftingCalls, callers: Callers, metrics: CallMetrics) -> None:
        self._calls = calls
        self._callers = callers
        self._metrics = metrics
        self._waiting: set[asyncio.Task[Any]] = set()  # streams with nothing to answer
        self._draining = False

    async def Open(self, request: pb.OpenRequest, context: Context) -> pb.Lease:
        """Opens a lease."""
        terms = await self._calls.open(caller(), wire.read_open(request))
        return wire.write_terms(terms)

    async def KeepAlive(self, request: pb.KeepAliveRequest, context: Context) -> pb.KeepAliveReply:
        """Renews a lease."""
        return self._keep_alive(caller(), request)

    async def Close(self, request: pb.CloseRequest, context: Context) -> pb.CloseReply:
        """Ends a lease."""
        dropped = await self._calls.close(caller(), request.lease)
        return pb.CloseReply(dropped_requests=dropped)

    async def Begin(self, request: pb.BeginRequest, context: Context) -> pb.BeginReply:
        """Begins requests."""
        return await self._begin(caller(), request)

    async def Step(self, request: pb.StepRequest, context: Context) -> pb.StepReply:
        """Advances requests and drafts."""
        return await self._step(caller(), request)

    async def Finish(self, request: pb.FinishRequest, context: Context) -> pb.FinishReply:
        """Ends requests."""
        return await self._finish(caller(), request)

    async def EndSessions(
        self, request: pb.EndSessionsRequest, context: Context
    ) -> pb.EndSessionsReply:
        """Forgets sessions."""
        return await self._end_sessions(caller(), request)

    async def Ingest(self, request: pb.IngestRequest, context: Context) -> pb.IngestReply:
        """Remembers sequences."""
        return await self._ingest(caller(), request)

    async def Purge(self, request: pb.PurgeRequest, context: Context) -> pb.PurgeReply:
        """Forgets what a namespace holds."""
        await self._calls.purge(caller(), request.lease)
        return pb.PurgeReply()

    async def Statistics(
        self, request: pb.StatisticsRequest, context: Context
    ) -> pb.StatisticsReply:
        """Sizes and counts."""
        return wire.write_statistics(await self._calls.statistics(caller(), request.lease))

    async def Stream(
        self, request_iterator: AsyncIterator[pb.StreamRequest], context: Context
    ) -> AsyncIterator[pb.StreamReply]:
        """Answers messages in order. A key is looked at again now and then, so that one that was
        revoked does not live on in a stream."""
        tenant, key = caller(), sent_key()
        task = asyncio.current_task()
        assert task is not None
        looked = time.monotonic()
        messages = aiter(request_iterator)
        while True:
            message = await self._next(messages, task)
            if message is None:
                return
            started = time.perf_counter()
            if time.monotonic() - looked > _KEY_AGAIN_S:
                tenant, looked = self._callers.authenticate(key), time.monotonic()
            reply = await self._answer(tenant, message)
            self._metrics.message(time.perf_counter() - started)
            yield reply

    def drain(self) -> None:
        """End streams as soon as they have nothing to answer."""
        self._draining = True
        for task in list(self._waiting):
            task.cancel()

    async def _next(
        self, messages: AsyncIterator[pb.StreamRequest], task: asyncio.Task[Any]
    ) -> pb.StreamRequest | None:
        if self._draining:
            raise _draining()
        self._waiting.add(task)
        try:
            return await anext(messages, None)
        except asyncio.CancelledError:
            if not self._draining or not task.uncancel() == 0:
                raise
            raise _draining() from None
        finally:
            self._waiting.discard(task)

    async def _answer(self, tenant: Tenant, message: pb.StreamRequest) -> pb.StreamReply:
        kind = message.WhichOneof("message")
        try:
            if kind == "step":
                return pb.StreamReply(id=message.id, step=await self._step(tenant, message.step))
            if kind == "begin":
                return pb.StreamReply(id=message.id, begin=await self._begin(tenant, message.begin))
            if kind == "finish":
                finished = await self._finish(tenant, message.finish)
                return pb.StreamReply(id=message.id, finish=finished)
            if kind == "keep_alive":
                kept = self._keep_alive(tenant, message.keep_alive)
                return pb.StreamReply(id=message.id, keep_alive=kept)
            if kind == "end_sessions":
                ended = await self._end_sessions(tenant, message.end_sessions)
                return pb.StreamReply(id=message.id, end_sessions=ended)
            if kind == "ingest":
                taken = await self._ingest(tenant, message.ingest)
                return pb.StreamReply(id=message.id, ingest=taken)
            raise InputError("message: is empty, or of a kind that this version does not know")
        except SuffixSpecError as error:
            return pb.StreamReply(id=message.id, error=_as_message(error))

    def _keep_alive(self, tenant: Tenant, request: pb.KeepAliveRequest) -> pb.KeepAliveReply:
        return pb.KeepAliveReply(ttl_seconds=self._calls.keep_alive(tenant, request.lease))

    async def _begin(self, tenant: Tenant, request: pb.BeginRequest) -> pb.BeginReply:
        contexts = await self._calls.begin(tenant, request.lease, wire.read_begin(request))
        return pb.BeginReply(context_tokens=contexts)

    async def _step(self, tenant: Tenant, request: pb.StepRequest) -> pb.StepReply:
        drafts = await self._calls.step(tenant, request.lease, wire.read_step(request))
        return wire.write_drafts(drafts)

    async def _finish(self, tenant: Tenant, request: pb.FinishRequest) -> pb.FinishReply:
        counts = await self._calls.finish(
            tenant, request.lease, list(request.requests), discard=request.discard
        )
        return pb.FinishReply(requests=map(wire.write_acceptance, counts))

    async def _end_sessions(
        self, tenant: Tenant, request: pb.EndSessionsRequest
    ) -> pb.EndSessionsReply:
        await self._calls.end_sessions(tenant, request.lease, list(request.sessions))
        return pb.EndSessionsReply()

    async def _ingest(self, tenant: Tenant, request: pb.IngestRequest) -> pb.IngestReply:
        sequences = [
            as_tokens(data, f"sequences[{row}]") for row, data in enumerate(request.sequences)
        ]
        return pb.IngestReply(tokens=await self._calls.ingest(tenant, request.lease, sequences))


def _draining() -> UnavailableError:
    return UnavailableError("the service is stopping; open a lease with another replica")


def _as_message(error: SuffixSpecError) -> pb.Error:
    return pb.Error(
        code=code_of(error).value[0],
        reason=type(error).__name__,
        message=str(error),
        retry_after_seconds=retry_after(error),
    )
