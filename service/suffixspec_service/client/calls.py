"""What both clients know about calls: their methods, and what errors they end with."""

from __future__ import annotations

from typing import Any

import grpc

from suffixspec_index.errors import DeadlineError, SuffixSpecError, UnavailableError
from suffixspec_service.client.options import ClientOptions
from suffixspec_service.rpc.generated import drafting_pb2 as pb
from suffixspec_service.rpc.statuses import error_of, named_error

IN_STREAM = frozenset({"begin", "step", "finish", "end_sessions", "ingest"})
"""Methods that go through the stream, where there is one."""

_METHODS = {
    "open": "Open",
    "keep_alive": "KeepAlive",
    "close": "Close",
    "begin": "Begin",
    "step": "Step",
    "finish": "Finish",
    "end_sessions": "EndSessions",
    "ingest": "Ingest",
    "purge": "Purge",
    "statistics": "Statistics",
}
_BROKEN = (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN)


def stub_method(stub: Any, method: str) -> Any:
    """The stub's callable of a :class:`~.protocol.Call`'s method."""
    return getattr(stub, _METHODS[method])


def stream_message(number: int, method: str, message: Any) -> pb.StreamRequest:
    """A message of the stream."""
    return pb.StreamRequest(id=number, **{method: message})


def reply_of(reply: pb.StreamReply, number: int, method: str) -> Any:
    """What a stream's reply holds.

    Raises:
        SuffixSpecError: the error that the message ended with.
        UnavailableError: it is the reply to another message: the stream cannot be used further.
    """
    kind = reply.WhichOneof("message")
    if reply.id != number or kind not in (method, "error"):
        raise UnavailableError(
            f"stream: got reply {reply.id} ({kind}) to message {number} ({method})"
        )
    if kind == "error":
        error = reply.error
        raise named_error(error.code, error.reason, error.message, error.retry_after_seconds)
    return getattr(reply, method)


def failure(error: grpc.RpcError, options: ClientOptions) -> SuffixSpecError:
    """The error of our tree for a call that failed. A call that was cut off means that the service
    went away."""
    found = error_of(error)
    code: grpc.StatusCode = error.code()
    if code in _BROKEN or type(found) is UnavailableError:
        return UnavailableError(
            f"{options.address}: the service cannot be reached or went away ({found})"
        )
    if isinstance(found, DeadlineError):
        return late(options)
    return found


def late(options: ClientOptions) -> DeadlineError:
    """The error where an answer took too long."""
    return DeadlineError(
        f"{options.address}: no answer within {options.timeout:g} s; whether the call was carried "
        "out is not known, and the next one begins everything again under a new lease"
    )


def ended(options: ClientOptions) -> UnavailableError:
    """The error where the service ended the stream."""
    return UnavailableError(f"{options.address}: the service ended the stream")
