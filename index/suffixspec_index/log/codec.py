"""Records as bytes: what one append writes, compressed and checksummed together.

```
version        1 byte
compression    1 byte   0 none, 1 zlib, 2 zstd
checksum       8 bytes  blake2b of the two bytes before and all that follows
raw length     uint32, little-endian
body           compressed; LEB128 integers:
  records, origins, each origin
  per record   kind and flags, origin's place, number, sequence, time, offset, tokens
  before       of each purge mark that is not infinite, in microseconds
  tokens       of all records, end to end
```

Numbers, sequences and times (microseconds) are differences from the record before, in zigzag form
(0, -1, 1, -2, ... as 0, 1, 2, 3, ...). Packed together, small records help to compress each other:
``docs/decisions/0008-sequence-log.md`` has the figures.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Sequence
from functools import cache
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.errors import (
    ConfigError,
    InputError,
    LogCorruptError,
    LogFormatError,
    MissingDependencyError,
)
from suffixspec_index.kernels.varint import MOST, decode_varints, encode_varints
from suffixspec_index.log.base import FOREVER, MAX_RECORD_TOKENS, Record, RecordKind
from suffixspec_index.tokens import MAX_VOCAB_SIZE

VERSION = 1
NONE, ZLIB, ZSTD = 0, 1, 2
COMPRESSIONS = {"none": NONE, "zlib": ZLIB, "zstd": ZSTD}
MAX_RAW = 1 << 28  # no batch unpacks to more: a damaged length must not take all memory

_HEAD = struct.Struct("<BB8sI")
_CHECKSUM = 8
_ZLIB_LEVEL, _ZSTD_LEVEL = 6, 3
_FIELDS = 7  # integers per record
_FINAL, _FINITE = 8, 16  # flags beside the kind
_MICRO = 1_000_000
_SMALL = 64  # bytes below which compressing only adds


@cache
def zstandard() -> ModuleType | None:
    """The package ``zstandard``, where it is installed."""
    try:
        import zstandard as package
    except ImportError:
        return None
    return package


def as_compression(name: str | None) -> int:
    """The number of a compression by name; ``None``: the best that is installed.

    Raises:
        ConfigError: there is none of this name. MissingDependencyError: it is not installed.
    """
    if name is None:
        return ZLIB if zstandard() is None else ZSTD
    if name not in COMPRESSIONS:
        raise ConfigError(f"compression: must be one of {', '.join(COMPRESSIONS)}, got {name!r}")
    if name == "zstd" and zstandard() is None:
        raise _no_zstandard("compression")
    return COMPRESSIONS[name]


def encode_records(records: Sequence[Record], compression: int | None = None) -> bytes:
    """The bytes of a batch. O(tokens), about 30 ns each.

    Times are kept to the microsecond.

    Raises:
        InputError, TokenError: a record is wrong, or all together are too large.
    """
    for record in records:
        record.check()
    raw = _pack(records)
    if len(raw) > MAX_RAW:
        raise InputError(f"records: take {len(raw)} bytes, at most {MAX_RAW}; write fewer at once")
    method = as_compression(None) if compression is None else compression
    body = _compress(raw, method)
    if len(body) >= len(raw):
        method, body = NONE, raw
    lead = bytes((VERSION, method))
    tail = struct.pack("<I", len(raw)) + body
    return lead + _checksum(lead, tail) + tail


def decode_records(data: bytes | memoryview) -> list[Record]:
    """The records of a batch. O(tokens), about 10 ns each.

    Raises:
        LogCorruptError: it is damaged. LogFormatError: another version wrote it.
        MissingDependencyError: it is compressed with zstd, which is not installed.
    """
    if len(data) < _HEAD.size:
        raise LogCorruptError(f"records: {len(data)} bytes are too few to hold any")
    view = memoryview(data)
    version, method, checksum, length = _HEAD.unpack_from(view)
    if checksum != _checksum(view[:2], view[2 + _CHECKSUM :]):  # stands there in any version
        raise LogCorruptError("records: the checksum is wrong")
    if version != VERSION:
        raise LogFormatError(
            f"records: are of version {version}, this program reads version {VERSION}; "
            + ("update suffixspec" if version > VERSION else "no such version ever was")
        )
    if length > MAX_RAW:
        raise LogCorruptError(f"records: are said to unpack to {length} bytes")
    return _unpack(_decompress(view[_HEAD.size :], method, length))


def is_intact(data: bytes | memoryview) -> bool:
    """Whether the checksum of a batch is right, whatever it holds. O(bytes), a nanosecond each."""
    view = memoryview(data)
    return (
        len(view) >= _HEAD.size
        and _checksum(view[:2], view[2 + _CHECKSUM :]) == view[2 : 2 + _CHECKSUM]
    )


def _checksum(lead: bytes | memoryview, tail: bytes | memoryview) -> bytes:
    digest = hashlib.blake2b(lead, digest_size=_CHECKSUM)
    digest.update(tail)
    return digest.digest()


def _compress(raw: bytes, method: int) -> bytes:
    if method == NONE or len(raw) < _SMALL:
        return raw
    if method == ZLIB:
        return zlib.compress(raw, _ZLIB_LEVEL)
    package = zstandard()
    if package is None:
        raise _no_zstandard("compression")
    packed: bytes = package.ZstdCompressor(
        level=_ZSTD_LEVEL, write_content_size=False, write_checksum=False
    ).compress(raw)
    return packed


def _decompress(body: memoryview, method: int, length: int) -> bytes:
    """Unpack to exactly ``length`` bytes, never to more."""
    if method == NONE:
        raw = bytes(body)
    elif method == ZLIB:
        try:
            raw = zlib.decompressobj().decompress(body, length + 1)
        except zlib.error as error:
            raise LogCorruptError(f"records: cannot be unpacked ({error})") from None
    elif method == ZSTD:
        package = zstandard()
        if package is None:
            raise _no_zstandard("the log")
        try:
            raw = package.ZstdDecompressor().decompress(body, max_output_size=max(length, 1))
        except package.ZstdError as error:
            raise LogCorruptError(f"records: cannot be unpacked ({error})") from None
    else:
        raise LogFormatError(f"records: compression {method} is unknown; update suffixspec")
    if len(raw) != length:
        raise LogCorruptError(f"records: {length} bytes expected, {len(raw)} found")
    return raw


def _no_zstandard(what: str) -> MissingDependencyError:
    return MissingDependencyError(
        f"{what}: zstd needs the package 'zstandard', which is not installed; run: "
        "pip install zstandard (or let every replica write with compression=zlib)"
    )


def _pack(records: Sequence[Record]) -> bytes:
    origins = list(dict.fromkeys(record.origin for record in records))
    places = {origin: place for place, origin in enumerate(origins)}
    rows = np.zeros((len(records), _FIELDS), np.int64)
    befores: list[int] = []
    for row, record in enumerate(records):
        flags = int(record.kind) | (_FINAL if record.final else 0)
        if record.before != FOREVER:
            flags |= _FINITE
            befores.append(_zigzag_of(_micros(record.before, "before")))
        rows[row] = (
            flags,
            places[record.origin],
            record.number,
            record.sequence,
            _micros(record.time, "time"),
            record.offset,
            len(record.tokens),
        )
    if len(rows):
        for column in (2, 3, 4):
            rows[:, column] = _zigzag(np.diff(rows[:, column], prepend=0))
    parts: list[NDArray[np.int64] | NDArray[np.int32]] = [
        np.array([len(records), len(origins), *origins], np.int64),
        rows.ravel(),
        np.array(befores, np.int64),
        *(record.tokens for record in records),
    ]
    values = np.concatenate(parts).astype(np.int64, copy=False)
    out = np.empty(len(values) * MOST, np.uint8)
    size = encode_varints(values, out)
    return out[:size].tobytes()


def _unpack(raw: bytes) -> list[Record]:
    data = np.frombuffer(raw, np.uint8)
    values = np.empty(int(np.count_nonzero(data < 128)), np.int64)
    if not len(values) or decode_varints(data.copy(), values) != len(values):
        raise LogCorruptError("records: hold something that is no number")
    count, n_origins = int(values[0]), int(values[1]) if len(values) > 1 else -1
    start = 2 + n_origins
    ends = start + count * _FIELDS
    if n_origins < 0 or ends > len(values):
        raise LogCorruptError("records: end too early")
    origins = values[2:start].tolist()
    rows = values[start:ends].reshape(count, _FIELDS)
    for column in (2, 3, 4):
        rows[:, column] = np.cumsum(_unzigzag(rows[:, column]))
    finite = int(np.count_nonzero(rows[:, 0] & _FINITE))
    befores = _unzigzag(values[ends : ends + finite]).tolist()
    tokens = values[ends + finite :]
    if int(rows[:, 6].sum()) != len(tokens) or len(befores) != finite:
        raise LogCorruptError("records: the numbers of tokens do not add up")
    if len(tokens) and int(tokens.max()) >= MAX_VOCAB_SIZE:
        raise LogCorruptError("records: hold a token id of more than 31 bits")
    return _records_of(rows, origins, befores, tokens.astype(np.int32))


def _records_of(
    rows: NDArray[np.int64], origins: list[int], befores: list[int], tokens: NDArray[np.int32]
) -> list[Record]:
    records: list[Record] = []
    at = 0
    waiting = iter(befores)
    for flags, place, number, sequence, micros, offset, length in rows.tolist():
        kind = flags & 7
        if place >= len(origins) or not 1 <= kind <= len(RecordKind) or length > MAX_RECORD_TOKENS:
            raise LogCorruptError("records: a field is out of range")
        before = next(waiting) / _MICRO if flags & _FINITE else FOREVER
        records.append(
            Record(
                RecordKind(kind),
                origins[place],
                number,
                sequence,
                micros / _MICRO,
                tokens[at : at + length],
                offset,
                bool(flags & _FINAL),
                before,
            )
        )
        at += length
    return records


def _micros(seconds: float, field: str) -> int:
    micros = round(seconds * _MICRO)
    if not -(1 << 61) < micros < 1 << 61:
        raise InputError(f"{field}: must be seconds since the epoch, got {seconds!r}")
    return micros


def _zigzag(values: NDArray[np.int64]) -> NDArray[np.int64]:
    return (values << 1) ^ (values >> 63)


def _unzigzag(values: NDArray[np.int64]) -> NDArray[np.int64]:
    return (values >> 1) ^ -(values & 1)


def _zigzag_of(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1
