"""Errors as OpenAI's API tells them: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from suffixspec_index.errors import (
    AuthenticationError,
    CapacityError,
    ConfigError,
    ForbiddenError,
    InputError,
    LimitExceededError,
    LookupFailure,
    SuffixSpecError,
    TooLargeError,
    UnavailableError,
)
from suffixspec_service.logs import get_logger

RESPONSES: dict[int | str, dict[str, Any]] = {
    400: {"description": "The request is wrong; the error names the field."},
    401: {"description": "No valid API key."},
    403: {"description": "Not for this caller."},
    404: {"description": "Something is named that does not exist."},
    413: {"description": "The body is too large."},
    429: {"description": "A limit of the caller is reached; Retry-After says when to come again."},
    500: {"description": "The generation failed."},
    503: {"description": "The service is full, starts or stops; see Retry-After."},
}
"""What routes that generate may answer beside 200, for the OpenAPI document."""

_FIELD = re.compile(r"[a-z][a-zA-Z0-9_.\[\]]*(?=: )")
_STATUS: tuple[tuple[type[SuffixSpecError], int, str, str | None], ...] = (
    (AuthenticationError, 401, "authentication_error", "invalid_api_key"),
    (ForbiddenError, 403, "permission_error", "forbidden"),
    (LimitExceededError, 429, "rate_limit_error", "rate_limit_exceeded"),
    (UnavailableError, 503, "service_unavailable_error", "unavailable"),
    (CapacityError, 503, "service_unavailable_error", "overloaded"),
    (TooLargeError, 413, "invalid_request_error", "request_too_large"),
    (LookupFailure, 404, "invalid_request_error", "not_found"),
    (InputError, 400, "invalid_request_error", None),
    (ConfigError, 400, "invalid_request_error", None),
)
_NAME = re.compile(r"[a-z][a-z_]*(?!\S)")
_TYPE_NAMES = frozenset({"str", "int", "float", "bool", "none"})
_REMEDIES = {
    "functions": "; 'tools' has replaced it",
    "function_call": "; 'tool_choice' has replaced it",
    "store": "; nothing is stored here",
    "include_obfuscation": "; start the service with --stream-cadence-ms for that",
}
_log = get_logger(__name__)


class ApiError(SuffixSpecError):
    """An error whose place in OpenAI's shape is known already."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.param, self.code = status, kind, param, code


def install(app: FastAPI) -> None:
    """Answer every error of an application in this shape."""
    app.add_exception_handler(SuffixSpecError, _on_own)
    app.add_exception_handler(RequestValidationError, _on_validation)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_unexpected)


def body(
    message: str, kind: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """An error in OpenAI's shape."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def describe(error: Exception) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, body and headers of an error."""
    headers: dict[str, str] = {}
    if isinstance(error, ApiError):
        return (
            error.status,
            body(str(error), error.kind, param=error.param, code=error.code),
            headers,
        )
    for cls, status, kind, code in _STATUS:
        if isinstance(error, cls):
            retry = getattr(error, "retry_after", 1.0 if status == 503 else None)
            if retry is not None:
                headers["Retry-After"] = str(max(1, math.ceil(retry)))
            if status == 401:
                headers["WWW-Authenticate"] = "Bearer"
            message = str(error)
            named = _FIELD.match(message)
            param = named.group() if named and status == 400 else None
            return status, body(message, kind, param=param, code=code), headers
    return 500, body("an internal error; it has been logged", "server_error"), headers


def response(error: Exception) -> JSONResponse:
    """The answer to an error."""
    status, content, headers = describe(error)
    return JSONResponse(content, status_code=status, headers=headers)


def in_stream(error: Exception) -> dict[str, Any]:
    """An error as the last event of a stream; what was not expected is logged."""
    status, content, _ = describe(error)
    if not isinstance(error, SuffixSpecError):
        _log.error("stream failed", exc_info=error)
    content["error"]["status"] = status
    return content


async def _on_own(request: Request, error: Exception) -> JSONResponse:
    return response(error)


async def _on_unexpected(request: Request, error: Exception) -> JSONResponse:
    _log.error("request failed", path=request.url.path, exc_info=error)
    return response(error)


async def _on_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    codes = {404: "not_found", 405: "method_not_allowed"}
    return JSONResponse(
        body(
            f"{request.method} {request.url.path}: {error.detail}",
            "invalid_request_error",
            code=codes.get(error.status_code),
        ),
        status_code=error.status_code,
        headers=error.headers,
    )


async def _on_validation(request: Request, error: Exception) -> JSONResponse:
    """The first problem, in one line that names the field."""
    assert isinstance(error, RequestValidationError)
    problem = _deepest(error.errors())
    if problem["type"] == "json_invalid":
        reason = problem.get("ctx", {}).get("error", "")
        text = f"the body is not valid JSON: {reason}"
        return JSONResponse(body(text, "invalid_request_error"), status_code=400)
    param = ".".join(_place(problem)) or None
    message = f"{param}: {_explained(problem)}" if param else _explained(problem)
    return JSONResponse(body(message, "invalid_request_error", param=param), status_code=400)


def _place(problem: Mapping[str, Any]) -> list[str]:
    """The field, without the names that pydantic gives to the members of a union."""
    parts = [part for part in problem["loc"][1:] if isinstance(part, int) or _NAME.match(part)]
    return [str(part) for part in parts if part not in _TYPE_NAMES]


def _deepest(problems: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Where a value may be one of several things, the thing it comes closest to: one of the same
    type, at least."""
    return max(problems, key=lambda p: (len(p["loc"]), not p["type"].endswith("_type")))


def _explained(problem: Mapping[str, Any]) -> str:
    name = str(problem["loc"][-1]) if problem["loc"] else ""
    if problem["type"] == "extra_forbidden":
        return "unknown field; leave it out"
    if problem["type"] == "none_required" or (problem["type"] == "literal_error"):
        hint = _REMEDIES.get(name, "")
        allowed = problem.get("ctx", {}).get("expected", "null")
        return f"{problem['input']!r:.100} is not supported; use {allowed}{hint}"
    text = str(problem["msg"]).removeprefix("Value error, ")
    return text[:1].lower() + text[1:]
