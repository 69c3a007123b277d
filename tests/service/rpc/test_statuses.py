from __future__ import annotations

import inspect
from typing import Any

import grpc
import pytest

from suffixspec_index import errors
from suffixspec_index.errors import SuffixSpecError
from suffixspec_service.rpc.statuses import DETAILS, code_of, details_of, error_of, named_error

KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, SuffixSpecError)
]
CLIENTS_FAULT = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.FAILED_PRECONDITION,
}


class FailedCall(grpc.RpcError):
    """What a client sees."""

    def __init__(self, error: SuffixSpecError, *, details: bytes | None) -> None:
        self._error, self._details = error, details

    def code(self) -> grpc.StatusCode:
        return code_of(self._error)

    def details(self) -> str:
        return str(self._error)

    def trailing_metadata(self) -> Any:
        return () if self._details is None else ((DETAILS, self._details),)


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_comes_back_as_itself(kind: type[SuffixSpecError]) -> None:
    error = kind("field: what is wrong, and what to do")
    found = error_of(FailedCall(error, details=details_of(error)))
    assert type(found) is kind
    assert str(found) == str(error)
    if issubclass(kind, errors.InputError):
        assert code_of(error) in CLIENTS_FAULT


def test_when_to_come_again_travels() -> None:
    error = errors.LimitExceededError("requests: too many", retry_after=2.5)
    found = error_of(FailedCall(error, details=details_of(error)))
    assert isinstance(found, errors.LimitExceededError)
    assert found.retry_after == 2.5


@pytest.mark.parametrize("kind", [errors.InputError, errors.UnavailableError, errors.CapacityError])
def test_without_details_the_code_decides(kind: type[SuffixSpecError]) -> None:
    assert type(error_of(FailedCall(kind("x"), details=None))) is kind


@pytest.mark.parametrize("name", ["KeyError", "SystemExit", "Any", "no_such", "Path", ""])
def test_a_name_that_is_not_ours_is_not_trusted(name: str) -> None:
    found = named_error(grpc.StatusCode.NOT_FOUND.value[0], name, "text")
    assert type(found) is errors.LookupFailure
    assert type(named_error(99, name, "text")) is SuffixSpecError
