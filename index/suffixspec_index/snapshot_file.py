"""The file of a snapshot: its layout, how it is written safely and verified when read.

```
magic "SFXSPEC\\0"   8 bytes
version              uint16
header length        uint32
header               JSON: kind, depth, vocabulary size, fingerprint, counts, created
header checksum      16 bytes, blake2b
blocks               sequences, tokens (as many as the header says), model (kind "index"),
                     calibration (version 2)
  stored, raw length   uint32 each
  checksum             16 bytes, blake2b of what is stored
  stored               zlib of little-endian arrays; of tokens first all lowest bytes, and so on
checksum             32 bytes, blake2b of everything before
```

Version 1 has no ``calibration_bytes`` in its header and no such block. It is still read, and still
what is written where there is no calibration, so that older programs read it.

A file is written beside its place and renamed, so that a crash leaves the old one. It is verified
to its last byte before anything is built from it.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.errors import SnapshotCorruptError, SnapshotError, SnapshotFormatError
from suffixspec_index.replacing import replacing
from suffixspec_index.tokens import MAX_VOCAB_SIZE
from suffixspec_index.tree import MAX_DEPTH

_ResultT = TypeVar("_ResultT")
MAGIC = b"SFXSPEC\0"
VERSION = 2
_WITHOUT_CALIBRATION = 1
_PREFIX = struct.Struct("<8sHI")
_BLOCK = struct.Struct("<II16s")
_BLOCK_TOKENS = 1 << 20
_MAX_HEADER = 1 << 16
_CHECKSUM = 16
_FINAL = 32
_LEVEL = 6
_RESTORE = "restore it from a copy, or leave it out: an index can also start empty"


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """The header of a snapshot. ``created`` is in seconds since the epoch; ``model_bytes``
    and ``calibration_bytes`` are 0 where no such tables are stored."""

    kind: str
    depth: int
    vocab_size: int | None
    fingerprint: str | None
    sequences: int
    tokens: int
    model_bytes: int
    created: float
    calibration_bytes: int = 0

    @property
    def token_blocks(self) -> int:
        """How many blocks of tokens follow."""
        return -(-self.tokens // _BLOCK_TOKENS)


@dataclass(frozen=True, slots=True)
class SnapshotContent:
    """Everything a verified file holds."""

    info: SnapshotInfo
    lengths: NDArray[np.int64]
    times: NDArray[np.float64]
    tokens: NDArray[np.int32]
    model: bytes
    calibration: bytes = b""

    def sequences(self) -> Iterator[tuple[NDArray[np.int32], float]]:
        """The sequences with their times, oldest first."""
        ends = np.cumsum(self.lengths)
        for end, length, at in zip(ends, self.lengths, self.times, strict=True):
            yield self.tokens[int(end - length) : int(end)], float(at)


def read_info(path: str | Path) -> SnapshotInfo:
    """What a snapshot says of itself, without reading (or verifying) its content. O(1).

    Raises:
        SnapshotFormatError, SnapshotCorruptError, SnapshotError: it is foreign, damaged or
            unreadable.
    """
    return _reading(Path(path), lambda file: _Reader(Path(path), file).header())


# --- writing -------------------------------------------------------------------------------------


def write_content(path: Path, content: SnapshotContent) -> None:
    """Write beside the place, flush to the disk, rename.

    Raises:
        SnapshotError: the file cannot be written. An old one is left as it was.
    """
    try:
        with replacing(path) as file:
            digest = hashlib.blake2b(digest_size=_FINAL)
            for piece in _pieces(content):
                file.write(piece)
                digest.update(piece)
            file.write(digest.digest())
    except OSError as error:
        raise SnapshotError(
            f"{path}: cannot be written: {error}; check the folder, its rights and the disk's space"
        ) from error


def _pieces(content: SnapshotContent) -> Iterator[bytes]:
    """The bytes of a file, its last checksum left out."""
    info = content.info
    fields = {name: getattr(info, name) for name in SnapshotInfo.__slots__}
    version = VERSION
    if not info.calibration_bytes:
        version = _WITHOUT_CALIBRATION
        del fields["calibration_bytes"]
    header = json.dumps(fields, sort_keys=True).encode()
    yield _PREFIX.pack(MAGIC, version, len(header))
    yield header
    yield _checksum(header)
    yield from _block(
        content.lengths.astype("<i8").tobytes() + content.times.astype("<f8").tobytes()
    )
    for start in range(0, info.tokens, _BLOCK_TOKENS):
        yield from _block(_shuffled(content.tokens[start : start + _BLOCK_TOKENS]))
    if info.model_bytes:
        yield from _block(content.model)
    if info.calibration_bytes:
        yield from _block(content.calibration)


def _block(raw: bytes) -> Iterator[bytes]:
    stored = zlib.compress(raw, _LEVEL)
    yield _BLOCK.pack(len(stored), len(raw), _checksum(stored))
    yield stored


def _checksum(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_CHECKSUM).digest()


def _shuffled(tokens: NDArray[np.int32]) -> bytes:
    """All lowest bytes first: the upper ones are nearly constant, so they compress away."""
    return tokens.astype("<i4").view(np.uint8).reshape(-1, 4).T.tobytes()


def _unshuffled(raw: bytes) -> NDArray[np.int32]:
    planes = np.frombuffer(raw, np.uint8).reshape(4, -1)
    return np.ascontiguousarray(planes.T).view("<i4").ravel().astype(np.int32)


# --- reading -------------------------------------------------------------------------------------


def read_content(path: Path, fingerprint: str | None) -> SnapshotContent:
    """Read and verify a whole file. Errors are those of :func:`read_info`."""
    return _reading(path, lambda file: _Reader(path, file).content(fingerprint))


def _reading(path: Path, read: Callable[[IO[bytes]], _ResultT]) -> _ResultT:
    try:
        with path.open("rb") as file:
            return read(file)
    except OSError as error:
        raise SnapshotError(f"{path}: cannot be read: {error}; check the path") from error


class _Reader:
    """Reads a file from its start, hashing what goes by."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path = path
        self.file = file
        self.digest = hashlib.blake2b(digest_size=_FINAL)

    def content(self, fingerprint: str | None) -> SnapshotContent:
        """All of it."""
        info = self.header()
        self._check_fingerprint(info, fingerprint)
        raw = self._block("sequences", 16 * info.sequences)
        lengths = np.frombuffer(raw, "<i8", info.sequences).astype(np.int64)
        times = np.frombuffer(raw, "<f8", offset=8 * info.sequences).astype(np.float64)
        tokens = np.empty(info.tokens, np.int32)
        for number in range(info.token_blocks):
            start = number * _BLOCK_TOKENS
            n = min(_BLOCK_TOKENS, info.tokens - start)
            name = f"tokens {number + 1} of {info.token_blocks}"
            tokens[start : start + n] = _unshuffled(self._block(name, 4 * n))
        model = self._block("model", info.model_bytes) if info.model_bytes else b""
        size = info.calibration_bytes
        calibration = self._block("calibration", size) if size else b""
        expected = self.digest.digest()
        if self._take(_FINAL, "the last checksum") != expected:
            raise self._corrupt("the checksum of the whole file is wrong")
        if self.file.read(1):
            raise self._corrupt("something follows the end")
        if (lengths < 0).any() or int(lengths.sum()) != info.tokens:
            raise self._corrupt("the lengths of the sequences do not add up")
        bound = MAX_VOCAB_SIZE if info.vocab_size is None else info.vocab_size
        if info.tokens and not 0 <= int(tokens.min()) <= int(tokens.max()) < bound:
            raise self._corrupt("a token id is outside the vocabulary")
        return SnapshotContent(info, lengths, times, tokens, model, calibration)

    def header(self) -> SnapshotInfo:
        """The head of the file."""
        prefix = self.file.read(_PREFIX.size)
        if not MAGIC.startswith(prefix[: len(MAGIC)]) or not prefix:
            raise SnapshotFormatError(
                f"{self.path}: is not a snapshot of a suffixspec index; name a file that "
                "save_tree or save_index wrote"
            )
        if len(prefix) < _PREFIX.size:
            raise self._corrupt("it ends within its head")
        _, version, length = _PREFIX.unpack(prefix)
        if version not in (_WITHOUT_CALIBRATION, VERSION):
            raise SnapshotFormatError(
                f"{self.path}: is of version {version}, this program reads versions "
                f"{_WITHOUT_CALIBRATION} to {VERSION}; "
                + ("update suffixspec" if version > VERSION else "write it anew")
            )
        if length > _MAX_HEADER:
            raise self._corrupt(f"its head says it is {length} bytes long")
        self.digest.update(prefix)
        raw = self._take(length, "its head")
        if self._take(_CHECKSUM, "its head") != _checksum(raw):
            raise self._corrupt("the checksum of its head is wrong")
        info = _parsed(raw)
        if info is None:
            raise self._corrupt("its head makes no sense")
        return info

    def _block(self, name: str, size: int) -> bytes:
        stored, raw, checksum = _BLOCK.unpack(self._take(_BLOCK.size, f"block {name}"))
        if raw != size:
            raise self._corrupt(f"block {name} is said to hold {raw} bytes, not {size}")
        if stored > size + size // 100 + 1024:  # more than zlib ever adds
            raise self._corrupt(f"block {name} is said to take {stored} bytes")
        data = self._take(stored, f"block {name}")
        if _checksum(data) != checksum:
            raise self._corrupt(f"the checksum of block {name} is wrong")
        try:
            unpacker = zlib.decompressobj()
            unpacked = unpacker.decompress(data, size + 1)
        except zlib.error as error:
            raise self._corrupt(f"block {name} cannot be unpacked ({error})") from None
        if len(unpacked) != size or not unpacker.eof:
            raise self._corrupt(f"block {name} does not hold {size} bytes")
        return unpacked

    def _take(self, n: int, what: str) -> bytes:
        data = self.file.read(n)
        if len(data) < n:
            raise self._corrupt(f"it ends within {what}")
        if what != "the last checksum":
            self.digest.update(data)
        return data

    def _check_fingerprint(self, info: SnapshotInfo, fingerprint: str | None) -> None:
        if fingerprint is not None and info.fingerprint != fingerprint:
            raise SnapshotFormatError(
                f"{self.path}: fingerprint: the file was made with the tokenizer "
                f"{info.fingerprint or '(unknown)'}, in use is {fingerprint}; ids of one mean "
                "nothing to the other. Start empty, or pass fingerprint=None if you know better"
            )

    def _corrupt(self, what: str) -> SnapshotCorruptError:
        return SnapshotCorruptError(f"{self.path}: is damaged: {what}; {_RESTORE}")


def _parsed(raw: bytes) -> SnapshotInfo | None:
    """The header, or ``None`` where a field is missing, foreign or out of range."""
    try:
        info = SnapshotInfo(**json.loads(raw))
    except (ValueError, TypeError):
        return None
    sizes = (info.model_bytes, info.calibration_bytes)
    counts = (info.sequences, info.tokens, info.depth, *sizes)
    if any(isinstance(n, bool) or not isinstance(n, int) for n in counts):
        return None
    sound = (
        info.kind in ("tree", "index")
        and 2 <= info.depth <= MAX_DEPTH
        and 0 <= info.sequences < 1 << 27
        and 0 <= info.tokens < 1 << 31
        and all(0 <= size < 1 << 31 for size in sizes)
        and (info.vocab_size is None or isinstance(info.vocab_size, int))
        and (info.fingerprint is None or isinstance(info.fingerprint, str))
        and isinstance(info.created, (int, float))
    )
    if not sound or (info.vocab_size is not None and not 1 <= info.vocab_size <= MAX_VOCAB_SIZE):
        return None
    return info
