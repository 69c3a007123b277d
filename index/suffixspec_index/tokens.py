"""Checking token ids at the border, so that nothing behind it has to check again.

Every public call that takes token ids sends them through :func:`as_token_array` first. What comes
out is a contiguous int32 array of ids in ``[0, vocab_size)``; kernels hold arithmetic only.
"""

from __future__ import annotations

from collections.abc import Set

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from suffixspec_index.errors import ConfigError, TokenError

MAX_VOCAB_SIZE = 2**31 - 1
"""Ids are stored as int32: every vocabulary must be smaller than 2**31."""

_REMEDY = "pass token ids as the tokenizer returned them: one flat list of integers"
_INT32 = np.dtype(np.int32)


def as_token_array(
    token_ids: ArrayLike, vocab_size: int | None = None, *, field: str
) -> NDArray[np.int32]:
    """Check token ids and return them as a contiguous ``(n,)`` int32 array.

    O(n), a few hundred nanoseconds plus the two vectorised passes for an int32 array. An int32
    array that is contiguous and writable is returned as it is, without a copy: callers that keep it
    must copy.

    Args:
        token_ids: ``(n,)`` integers in a list, tuple, array or anything else NumPy can convert.
            An empty list is fine.
        vocab_size: ids must be below it; ``None`` allows everything below 2**31 - 1.
        field: what the ids are called in the error message, e.g. ``"prompt"``.

    Raises:
        TokenError: not one-dimensional, not integers (floats, booleans, strings, ``None``), or an
            id is negative or too large. The message names the field, the first bad position, its
            value and the remedy.
    """
    array = token_ids if isinstance(token_ids, np.ndarray) else _from_sequence(token_ids, field)
    if array.ndim != 1:
        raise TokenError(
            f"{field}: token ids must be one-dimensional, got shape {array.shape}; {_REMEDY}"
        )
    if array.dtype.kind not in "iu":
        raise _wrong_type(array, field)
    if not (array.flags.writeable and array.flags.c_contiguous):
        array = array.copy()  # kernels would be compiled anew for such a type of array
    if len(array):
        _check_range(array, vocab_size, field)
    return np.ascontiguousarray(array, dtype=_INT32)


def as_vocab_size(vocab_size: int | None) -> int | None:
    """Check a vocabulary size; ``None`` (unknown) passes.

    Raises:
        ConfigError: not an integer, or not in ``[1, 2**31 - 1]``.
    """
    if vocab_size is None:
        return None
    if isinstance(vocab_size, bool) or not isinstance(vocab_size, (int, np.integer)):
        raise ConfigError(f"vocab_size: must be an integer, got {vocab_size!r}")
    if not 1 <= vocab_size <= MAX_VOCAB_SIZE:
        raise ConfigError(
            f"vocab_size: must be between 1 and {MAX_VOCAB_SIZE} (ids are stored in 32 bits), "
            f"got {vocab_size}"
        )
    return int(vocab_size)


def as_forbidden_array(
    forbidden: ArrayLike | Set[int], *, field: str = "forbidden"
) -> NDArray[np.int32]:
    """Check ids that drafts must never hold and return them sorted and distinct. O(n log n).

    Ids outside the vocabulary are harmless here and kept: a padded vocabulary often lists some.

    Raises:
        TokenError: as for :func:`as_token_array`.
    """
    ids: ArrayLike = list(forbidden) if isinstance(forbidden, Set) else forbidden
    return np.unique(as_token_array(ids, field=field))


@njit(cache=True, nogil=True)
def is_forbidden(forbidden: NDArray[np.int32], token: int) -> bool:
    """Whether the sorted ``forbidden`` holds ``token``; for kernels. O(log n)."""
    low, high = 0, len(forbidden)
    while low < high:
        middle = (low + high) >> 1
        if forbidden[middle] < token:
            low = middle + 1
        else:
            high = middle
    return bool(low < len(forbidden) and forbidden[low] == token)


def _from_sequence(token_ids: ArrayLike, field: str) -> NDArray[np.generic]:
    """Convert what is not an array. NumPy turns ``[1, True]`` into integers, so look for bools."""
    try:
        array = np.asarray(token_ids)
    except (ValueError, TypeError, OverflowError) as error:  # ragged lists, foreign objects
        raise TokenError(f"{field}: cannot be read as token ids ({error}); {_REMEDY}") from None
    if array.size == 0 and array.ndim == 1 and not hasattr(token_ids, "dtype"):
        return np.empty(0, _INT32)  # NumPy makes [] a float array
    if (
        array.dtype.kind in "iu"
        and isinstance(token_ids, (list, tuple))
        and bool in {type(value) for value in token_ids}
    ):
        position = next(i for i, value in enumerate(token_ids) if isinstance(value, bool))
        raise TokenError(
            f"{field}: position {position} is {token_ids[position]!r}, not an integer; {_REMEDY}"
        )
    return array


def _wrong_type(array: NDArray[np.generic], field: str) -> TokenError:
    """The error for an array whose dtype is not integral, naming the first value to blame."""
    for position, value in enumerate(array.tolist()):
        if isinstance(value, bool) or not isinstance(value, int):
            return TokenError(
                f"{field}: position {position} is {value!r}, not an integer; {_REMEDY}"
            )
        if not 0 <= value < MAX_VOCAB_SIZE:  # an int too large for int64 makes an object array
            return _out_of_range(position, value, None, field)
    return TokenError(f"{field}: dtype {array.dtype} is not an integer type; {_REMEDY}")


def _check_range(array: NDArray[np.generic], vocab_size: int | None, field: str) -> None:
    bound = MAX_VOCAB_SIZE if vocab_size is None else vocab_size
    if array.dtype == _INT32:
        sound = bool(_all_below(array.view(np.uint32), bound))
    else:
        sound = int(array.min()) >= 0 and int(array.max()) < bound
    if not sound:
        position = int(np.flatnonzero((array < 0) | (array >= bound))[0])  # type: ignore[operator]
        raise _out_of_range(position, int(array[position]), vocab_size, field)


@njit(cache=True, nogil=True)
def _all_below(ids: NDArray[np.uint32], bound: int) -> bool:
    """Whether all ids are below ``bound``; negative ids, seen as unsigned, are the largest.

    A call costs a tenth of a NumPy reduction on the few tokens of one step.
    """
    top = np.uint32(0)
    for i in range(len(ids)):
        top = max(top, ids[i])
    return bool(top < np.uint32(bound))


def _out_of_range(position: int, value: int, vocab_size: int | None, field: str) -> TokenError:
    if value < 0:
        return TokenError(
            f"{field}: position {position} is {value}, a negative id; remove padding and "
            "sentinels before passing token ids"
        )
    if vocab_size is None:
        return TokenError(
            f"{field}: position {position} is {value}, but ids must be below {MAX_VOCAB_SIZE} "
            "(they are stored in 32 bits)"
        )
    return TokenError(
        f"{field}: position {position} is {value}, but the vocabulary has {vocab_size} ids "
        f"(0 to {vocab_size - 1}); check that the tokenizer is the model's"
    )
