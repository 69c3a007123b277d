"""What every call passes on its way in: who calls, how long it took, how it ended."""

from __future__ import annotations

import contextvars
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from suffixspec_index.errors import SuffixSpecError
from suffixspec_service.callers import Callers, Tenant
from suffixspec_service.logs import get_logger
from suffixspec_service.rpc.metrics import CallMetrics
from suffixspec_service.rpc.statuses import DETAILS, code_of, details_of

_log = get_logger(__name__)
_SCHEME = "bearer "
_OPEN_TO_ALL = ("/grpc.health.", "/grpc.reflection.")
_caller: contextvars.ContextVar[tuple[Tenant, str | None]] = contextvars.ContextVar("caller")

Handler = Any  # grpc.RpcMethodHandler, whose attributes the stubs do not know


def caller() -> Tenant:
    """Whose call is being handled."""
    return _caller.get()[0]


def sent_key() -> str | None:
    """The key that the call being handled came with."""
    return _caller.get()[1]


class Authentication(grpc.aio.ServerInterceptor):
    """Finds the tenant of a call from its key: metadata ``authorization: Bearer KEY`` or
    ``x-api-key: KEY``. Health checks and reflection are open to all."""

    def __init__(self, callers: Callers) -> None:
        self._callers = callers

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """See the class."""
        if handler_call_details.method.startswith(_OPEN_TO_ALL):
            return await continuation(handler_call_details)
        key = key_of(handler_call_details.invocation_metadata)
        try:
            _caller.set((self._callers.authenticate(key), key))
        except SuffixSpecError as error:
            return _refusing(await continuation(handler_call_details), error)
        return await continuation(handler_call_details)


class Calls(grpc.aio.ServerInterceptor):
    """Turns errors of the tree into statuses, and counts calls."""

    def __init__(self, metrics: CallMetrics) -> None:
        self._metrics = metrics

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """See the class."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or method.startswith(_OPEN_TO_ALL):
            return handler
        if handler.response_streaming:
            return _replaced(handler, self._streaming(_behaviour(handler), method))
        return _replaced(handler, self._unary(_behaviour(handler), method))

    def _unary(self, inner: Callable[..., Awaitable[Any]], method: str) -> Callable[..., Any]:
        async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            started = time.perf_counter()
            code = "CANCELLED"
            try:
                answer = await inner(request, context)
                code = "OK"
                return answer
            except Exception as error:
                code = _code_name(error, context)
                await _end_with(context, error, method)
            finally:
                self._metrics.count(method, code, time.perf_counter() - started)

        return call

    def _streaming(self, inner: Callable[..., Any], method: str) -> Callable[..., Any]:
        async def call(
            request: Any, context: grpc.aio.ServicerContext[Any, Any]
        ) -> AsyncIterator[Any]:
            started = time.perf_counter()
            code = "CANCELLED"
            try:
                async for answer in inner(request, context):
                    yield answer
                code = "OK"
            except Exception as error:
                code = _code_name(error, context)
                await _end_with(context, error, method)
            finally:
                self._metrics.count(method, code, time.perf_counter() - started)

        return call


def key_of(metadata: Any) -> str | None:
    """The API key in a call's metadata; ``None``: there is none."""
    for name, value in metadata or ():
        if name == "authorization" and value.lower().startswith(_SCHEME):
            return str(value[len(_SCHEME) :].strip())
        if name == "x-api-key":
            return str(value)
    return None


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: SuffixSpecError) -> None:
    """End a call with the status of an error."""
    await context.abort(code_of(error), str(error), ((DETAILS, details_of(error)),))


def _code_name(error: Exception, context: grpc.aio.ServicerContext[Any, Any]) -> str:
    if isinstance(error, SuffixSpecError):
        return code_of(error).name
    if isinstance(error, grpc.aio.AbortError):
        code = context.code()
        return code.name if isinstance(code, grpc.StatusCode) else "UNKNOWN"
    return grpc.StatusCode.INTERNAL.name


async def _end_with(
    context: grpc.aio.ServicerContext[Any, Any], error: Exception, method: str
) -> None:
    """End a call with an error; raises what gRPC ends calls with."""
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if isinstance(error, SuffixSpecError):
        await abort(context, error)
    _log.error("call failed", method=method, exc_info=error)
    await context.abort(grpc.StatusCode.INTERNAL, "internal error; the service's log has more")


def _behaviour(handler: Handler) -> Any:
    return (
        handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    )


def _replaced(handler: Handler, behaviour: Any) -> Handler:
    """A handler of the same kind with another behaviour."""
    kinds = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    make = kinds[bool(handler.request_streaming), bool(handler.response_streaming)]
    return make(behaviour, handler.request_deserializer, handler.response_serializer)


def _refusing(handler: Handler, error: SuffixSpecError) -> Handler:
    """A handler of the same kind that ends every call with an error."""
    if handler is None:
        return None

    async def refuse(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await abort(context, error)

    async def refuse_stream(
        _: Any, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Any]:
        await abort(context, error)
        yield

    return _replaced(handler, refuse_stream if handler.response_streaming else refuse)
