"""Arrays behind addresses, so that one kernel call can serve many requests.

Numba takes an array argument apart in about a fifth of a microsecond, and cannot take a list of
arrays cheaply at all. A batch kernel therefore gets one ``int64`` table with a row per request
that holds the *addresses* of the request's own arrays, and opens them inside the kernel.

Whoever writes an address into such a table must keep the array alive and in place for as long as
the row is used: see how :class:`~suffixspec_index.proposers.ngram.NgramProposer` holds both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import carray, njit, types  # type: ignore[attr-defined]
from numba.extending import intrinsic
from numpy.typing import NDArray


@intrinsic
def _as_pointer(typing_context: Any, address: Any) -> tuple[Any, Callable[..., Any]]:
    """``int64`` address -> ``int32*``."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    pointer = types.CPointer(types.int32)  # type: ignore[no-untyped-call]
    return pointer(types.int64), codegen


@njit(cache=True, nogil=True)
def int32_at(address: int, length: int) -> NDArray[np.int32]:
    """The ``(length,)`` int32 array at ``address``; a view that owns nothing. Kernels only."""
    return carray(_as_pointer(address), (length,))  # type: ignore[call-arg]


def address_of(array: NDArray[np.int32]) -> int:
    """The address to hand to a kernel. The array must be a contiguous int32 array."""
    assert array.dtype == np.int32
    assert array.flags.c_contiguous
    return int(array.ctypes.data)
