"""Opening what a trace may be stored in: plain, gzip or zstd, from a file or standard input.

Compression is found by magic bytes, not by name: ``.json`` files that are gzip inside are common
in result archives.
"""

from __future__ import annotations

import gzip
import io
import zlib
from typing import TYPE_CHECKING, Protocol

import zstandard

from suffixspec_index.errors import TraceError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_BOM = b"\xef\xbb\xbf"
_WIDE_BOMS = (b"\xff\xfe", b"\xfe\xff")
_BLOCK = 1 << 18

PARQUET_MAGIC = b"PAR1"

STREAM_ERRORS = (OSError, EOFError, zlib.error, zstandard.ZstdError)
"""What reading a damaged compressed stream may raise."""


class _Readable(Protocol):
    def read(self, size: int = ..., /) -> bytes: ...


class _Chained(io.RawIOBase):
    """Bytes already taken from a stream, then the rest of it."""

    def __init__(self, head: bytes, rest: _Readable) -> None:
        self._head = head
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        data = self._head[: len(view)] or self._rest.read(len(view))
        self._head = self._head[len(view) :]
        view[: len(data)] = data
        return len(data)


class _Zstd(io.RawIOBase):
    """Decompresses one zstd frame after another, and notices when the last one is cut off.

    ``zstandard``'s own stream reader ends silently there.
    """

    def __init__(self, compressed: _Readable) -> None:
        self._compressed = compressed
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._inside = False  # a frame has begun and not ended
        self._pending = b""  # compressed bytes behind the end of a frame
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        while not self._ready:
            data = self._pending or self._compressed.read(_BLOCK)
            self._pending = b""
            if not data:
                if self._inside:
                    raise EOFError("the zstd stream ends before its end marker")
                return 0
            self._ready = self._frame.decompress(data)
            self._inside = not self._frame.eof
            if self._frame.eof:
                self._pending = self._frame.unused_data
                self._frame = zstandard.ZstdDecompressor().decompressobj()
        size = min(len(view), len(self._ready))
        view[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size


def _take(stream: _Readable, size: int) -> bytes:
    """Read ``size`` bytes, fewer only at the end (a pipe may give them in small pieces)."""
    data = b""
    while len(data) < size:
        more = stream.read(size - len(data))
        if not more:
            break
        data += more
    return data


def open_plain(raw: _Readable) -> tuple[io.BufferedReader[_Chained], bytes]:
    """Decompress where needed and strip a byte order mark.

    Returns the plain stream and its first four bytes (still in the stream).

    Raises:
        TraceError: the text is UTF-16.
        OSError, EOFError, zlib.error, zstandard.ZstdError: the compressed stream is damaged.
    """
    head = _take(raw, 4)
    stored = io.BufferedReader(_Chained(head, raw), _BLOCK)
    if head.startswith(_GZIP):
        return _opened(gzip.GzipFile(fileobj=stored, mode="rb"))
    if head == _ZSTD:
        return _opened(io.BufferedReader(_Zstd(stored), _BLOCK))
    return _without_mark(stored, head)


def _opened(plain: _Readable) -> tuple[io.BufferedReader[_Chained], bytes]:
    head = _take(plain, 4)
    return _without_mark(io.BufferedReader(_Chained(head, plain), _BLOCK), head)


def _without_mark(
    stream: io.BufferedReader[_Chained], head: bytes
) -> tuple[io.BufferedReader[_Chained], bytes]:
    if head.startswith(_WIDE_BOMS):
        raise TraceError("the text is UTF-16; save it as UTF-8")
    if head.startswith(_BOM):
        stream.read(len(_BOM))
        head = head[len(_BOM) :]
    return stream, head
