"""The one decorator of all kernels: compiled, without the GIL, cached on disk.

Numba's cache notices when the file of a cached function changes, but not when a function that it
calls, in another file, does; and wheels carry fixed time stamps. A stale kernel would read arrays
laid out by a newer version. So the stamp of every cache entry holds a digest of all kernel sources.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba as nb
from numba.core.caching import FunctionCache


@cache
def sources_digest() -> str:
    """A digest of the sources of the index, kernels included. Read once per process."""
    digest = hashlib.blake2b(nb.__version__.encode(), digest_size=16)
    for path in sorted(Path(__file__).resolve().parent.parent.rglob("*.py")):
        source = path.read_bytes()
        if b"jit import kernel" in source or path.name == "draft.py":
            digest.update(len(source).to_bytes(8, "big"))
            digest.update(source)
    return digest.hexdigest()


class _StampedCache(FunctionCache):
    """Numba's cache with the digest of all kernel sources in its stamp."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        file = self._cache_file
        file._source_stamp = (file._source_stamp, sources_digest())


def kernel(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """``numba.njit(nogil=True)`` with an on-disk cache that knows about all kernels.

    Use it plain or with numba's options: ``@kernel`` or ``@kernel(inline="always")``.
    """
    if function is None:
        return lambda wrapped: kernel(wrapped, **options)
    dispatcher = nb.njit(nogil=True, **options)(function)
    dispatcher._cache = _StampedCache(function)
    return dispatcher
