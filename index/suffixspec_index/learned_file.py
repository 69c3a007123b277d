"""A small file of what was learned: named pieces of bytes that notice any damage.

```
magic "SFXLEARN"    8 bytes
version             uint16
checksum            32 bytes, blake2b of everything after it
names and lengths   uint32 length, then JSON: [[name, bytes], ...]
pieces              one after the other; names and pieces are one zlib stream
```

It is written beside its place and renamed, so that a crash leaves the old one. What a piece means
is the matter of whoever wrote it: acceptance of an index, calibration, rates, costs of steps.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

from suffixspec_index.errors import SnapshotCorruptError, SnapshotError, SnapshotFormatError
from suffixspec_index.replacing import replacing

_MAGIC, _VERSION = b"SFXLEARN", 1
_HEAD = struct.Struct("<8sH32s")
_LENGTH = struct.Struct("<I")
_MOST = 1 << 30  # bytes unpacked; no more than this is ever written


def write_learned(path: Path, pieces: Mapping[str, bytes]) -> None:
    """Write the pieces, in the order given. O(bytes).

    Raises:
        SnapshotError: the file cannot be written. An old one is left as it was.
    """
    names = json.dumps([[name, len(piece)] for name, piece in pieces.items()]).encode()
    body = zlib.compress(b"".join((_LENGTH.pack(len(names)), names, *pieces.values())), 6)
    try:
        with replacing(path) as file:
            file.write(_HEAD.pack(_MAGIC, _VERSION, _digest(body)))
            file.write(body)
    except OSError as error:
        raise SnapshotError(
            f"{path}: cannot be written: {error}; check the folder, its rights and the disk's space"
        ) from error


def read_learned(path: Path) -> dict[str, bytes]:
    """The pieces of a file, verified to its last byte. O(bytes).

    Raises:
        SnapshotFormatError: it is not such a file, or of another version.
        SnapshotCorruptError: it is truncated or damaged. SnapshotError: it cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SnapshotError(f"{path}: cannot be read: {error}; check the path") from error
    if not data.startswith(_MAGIC):
        raise SnapshotFormatError(f"{path}: is not a file of what suffixspec learned; remove it")
    if len(data) < _HEAD.size:
        raise SnapshotCorruptError(f"{path}: it ends within its head; remove it")
    _, version, digest = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise SnapshotFormatError(
            f"{path}: is of version {version}, this program reads {_VERSION}; remove it, or update"
        )
    body = data[_HEAD.size :]
    if _digest(body) != digest:
        raise SnapshotCorruptError(f"{path}: its checksum is wrong; remove it")
    try:
        return _pieces(zlib.decompressobj().decompress(body, _MOST))
    except (zlib.error, ValueError, TypeError, struct.error) as error:
        raise SnapshotCorruptError(f"{path}: its content makes no sense ({error})") from None


def _pieces(raw: bytes) -> dict[str, bytes]:
    (length,) = _LENGTH.unpack_from(raw)
    at = _LENGTH.size + length
    found: dict[str, bytes] = {}
    for name, size in json.loads(raw[_LENGTH.size : at]):
        found[str(name)] = raw[at : at + int(size)]
        at += int(size)
    if at != len(raw):
        raise ValueError(f"{len(raw)} bytes where {at} were announced")
    return found


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=32).digest()
