"""The error tree as gRPC statuses, and back: both ends of a call raise the same errors.

The details are google.rpc's, as in Google's services: ``ErrorInfo`` with the error's name,
``RetryInfo`` where trying again later makes sense.
"""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from suffixspec_index import errors
from suffixspec_index.errors import (
    AuthenticationError,
    CapacityError,
    ConfigError,
    DeadlineError,
    ForbiddenError,
    GenerationError,
    InputError,
    LimitExceededError,
    LookupFailure,
    MissingDependencyError,
    OutOfStepError,
    SuffixSpecError,
    TooLargeError,
    UnavailableError,
)

DOMAIN = "suffixspec"
DETAILS = "grpc-status-details-bin"

_CODES: tuple[tuple[type[SuffixSpecError], grpc.StatusCode], ...] = (
    (AuthenticationError, grpc.StatusCode.UNAUTHENTICATED),
    (ForbiddenError, grpc.StatusCode.PERMISSION_DENIED),
    (OutOfStepError, grpc.StatusCode.FAILED_PRECONDITION),
    (TooLargeError, grpc.StatusCode.OUT_OF_RANGE),
    (InputError, grpc.StatusCode.INVALID_ARGUMENT),
    (ConfigError, grpc.StatusCode.INVALID_ARGUMENT),
    (LookupFailure, grpc.StatusCode.NOT_FOUND),
    (UnavailableError, grpc.StatusCode.UNAVAILABLE),
    (CapacityError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (DeadlineError, grpc.StatusCode.DEADLINE_EXCEEDED),
    (MissingDependencyError, grpc.StatusCode.UNIMPLEMENTED),
    (GenerationError, grpc.StatusCode.INTERNAL),
)  # the first that fits
_WITHOUT_NAME: dict[grpc.StatusCode, type[SuffixSpecError]] = {
    grpc.StatusCode.UNAUTHENTICATED: AuthenticationError,
    grpc.StatusCode.PERMISSION_DENIED: ForbiddenError,
    grpc.StatusCode.INVALID_ARGUMENT: InputError,
    grpc.StatusCode.OUT_OF_RANGE: TooLargeError,
    grpc.StatusCode.NOT_FOUND: LookupFailure,
    grpc.StatusCode.RESOURCE_EXHAUSTED: CapacityError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineError,
}
_BY_NUMBER = {code.value[0]: code for code in grpc.StatusCode}


def code_of(error: SuffixSpecError) -> grpc.StatusCode:
    """The status code of an error."""
    return next(
        (code for kind, code in _CODES if isinstance(error, kind)), grpc.StatusCode.INTERNAL
    )


def retry_after(error: SuffixSpecError) -> float:
    """Seconds after which trying again makes sense; 0: it does not."""
    return error.retry_after if isinstance(error, (LimitExceededError, UnavailableError)) else 0.0


def details_of(error: SuffixSpecError) -> bytes:
    """A serialized google.rpc.Status, the value of :data:`DETAILS` in the trailing metadata."""
    status = status_pb2.Status(code=code_of(error).value[0], message=str(error))
    info = error_details_pb2.ErrorInfo(reason=type(error).__name__, domain=DOMAIN)
    _pack(status, info)
    seconds = retry_after(error)
    if seconds:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(seconds * 1e9))
        _pack(status, error_details_pb2.RetryInfo(retry_delay=delay))
    return bytes(status.SerializeToString())


def error_of(call_error: Any) -> SuffixSpecError:
    """The error that a failed call (a ``grpc.RpcError``, of either kind of client) stands for.
    ``__cause__`` is left to the caller to set."""
    code: grpc.StatusCode = call_error.code()
    text: str = call_error.details() or code.name.lower()
    name, seconds = "", 0.0
    for key, value in call_error.trailing_metadata() or ():
        if key == DETAILS:
            name, seconds = _read_details(value)
    return named_error(code.value[0], name, text, seconds)


def named_error(code: int, name: str, text: str, seconds: float = 0.0) -> SuffixSpecError:
    """An error of our tree from what travelled.

    Args:
        code: the status code's number.
        name: the error's; where it is not one of ours, the code decides.
        text: the message.
        seconds: see :func:`retry_after`.
    """
    kind: Any = getattr(errors, name, None) if name.endswith(("Error", "Failure")) else None
    if not (isinstance(kind, type) and issubclass(kind, SuffixSpecError)):
        kind = _WITHOUT_NAME.get(_BY_NUMBER.get(code, grpc.StatusCode.UNKNOWN), SuffixSpecError)
    patient = seconds and issubclass(kind, (LimitExceededError, UnavailableError))
    error: SuffixSpecError = kind(text, retry_after=seconds) if patient else kind(text)
    return error


def _pack(status: status_pb2.Status, message: Any) -> None:
    packed = any_pb2.Any()
    packed.Pack(message)
    status.details.append(packed)


def _read_details(value: bytes) -> tuple[str, float]:
    name, seconds = "", 0.0
    for packed in status_pb2.Status.FromString(value).details:
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        if packed.Unpack(info) and info.domain == DOMAIN:
            name = info.reason
        elif packed.Unpack(retry):
            seconds = retry.retry_delay.ToNanoseconds() / 1e9
    return name, seconds
