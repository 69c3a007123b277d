"""What every proposer's requests have in common: handles, limits and the checks on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from suffixspec_index.errors import InputError, UnknownRequestError
from suffixspec_index.proposers.base import RequestHandle
from suffixspec_index.tokens import as_token_array

RequestT = TypeVar("RequestT")

UNBOUNDED = 2**62
"""Stands for "no limit" where kernels need a number."""


class RequestTable(Generic[RequestT]):
    """The live requests of a proposer by handle. A handle is never given out twice. O(1) each."""

    def __init__(self) -> None:
        self._requests: dict[RequestHandle, RequestT] = {}
        self._next: RequestHandle = 1

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: RequestT) -> RequestHandle:
        """Keep a request and return its handle."""
        handle = self._next
        self._next += 1
        self._requests[handle] = request
        return handle

    def get(self, handle: RequestHandle) -> RequestT:
        """The request of a handle.

        Raises:
            UnknownRequestError: no such request.
        """
        try:
            return self._requests[handle]
        except (KeyError, TypeError):  # TypeError: not hashable
            raise UnknownRequestError(
                f"request: no request has the handle {handle!r}; it never existed or is finished"
            ) from None

    def remove(self, handle: RequestHandle) -> RequestT:
        """Drop and return the request of a handle.

        Raises:
            UnknownRequestError: no such request.
        """
        request = self.get(handle)
        del self._requests[handle]
        return request

    def values(self) -> Iterable[RequestT]:
        """All live requests."""
        return self._requests.values()


def as_session_id(session_id: object) -> str:
    """Check a session id.

    Raises:
        InputError: not a text.
    """
    if not isinstance(session_id, str):
        raise InputError(f"session_id: must be a text, got {session_id!r}")
    return session_id


def as_max_tokens(max_tokens: int | None) -> int:
    """Check ``max_tokens``; ``None`` becomes :data:`UNBOUNDED`.

    Raises:
        InputError: not an integer, or negative.
    """
    return _as_count(max_tokens, "max_tokens")


def as_limit(limit: int | None) -> int:
    """Check a draft's ``limit``; ``None`` becomes :data:`UNBOUNDED`.

    Raises:
        InputError: not an integer, or negative.
    """
    return _as_count(limit, "limit")


def as_limits(limits: Sequence[int] | NDArray[np.int32] | None, rows: int) -> NDArray[np.int64]:
    """Check the limits of a batch and return them as ``(rows,)`` int64.

    Raises:
        InputError: not one non-negative integer per row.
    """
    if limits is None:
        return np.full(rows, UNBOUNDED, np.int64)
    array = np.asarray(limits)
    if array.shape != (rows,) or (rows and array.dtype.kind not in "iu"):
        raise InputError(
            f"limits: must be one integer per request ({rows}), got shape {array.shape} "
            f"of {array.dtype}"
        )
    if rows and int(array.min()) < 0:
        raise InputError(f"limits: must not be negative, got {int(array.min())}")
    return np.ascontiguousarray(array, dtype=np.int64)


def as_ragged(
    token_ids: ArrayLike, offsets: ArrayLike, rows: int, vocab_size: int | None
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Check the tokens of a batch: row ``r`` is ``token_ids[offsets[r]:offsets[r + 1]]``.

    Raises:
        TokenError: as for :func:`~suffixspec_index.tokens.as_token_array`.
        InputError: the offsets do not start at 0, fall, or do not end at the number of tokens.
    """
    ids = as_token_array(token_ids, vocab_size, field="token_ids")
    bounds = np.asarray(offsets)
    if bounds.shape != (rows + 1,) or bounds.dtype.kind not in "iu":
        raise InputError(
            f"offsets: must be {rows + 1} integers for {rows} requests, got shape {bounds.shape} "
            f"of {bounds.dtype}"
        )
    bounds = np.ascontiguousarray(bounds, dtype=np.int64)
    if not bounds.flags.writeable:
        bounds = bounds.copy()  # kernels would be compiled anew for such a type of array
    if bounds[0] != 0 or bounds[-1] != len(ids) or bool((bounds[1:] < bounds[:-1]).any()):
        raise InputError(
            f"offsets: must rise from 0 to the number of tokens ({len(ids)}), got {bounds.tolist()}"
        )
    return ids, bounds


def _as_count(value: int | None, field: str) -> int:
    if value is None:
        return UNBOUNDED
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise InputError(f"{field}: must be an integer or None, got {value!r}")
    if value < 0:
        raise InputError(f"{field}: must not be negative, got {value}")
    return min(int(value), UNBOUNDED)
