"""One file of a journal: frames of records, and how they are found again after damage.

```
segment   magic "SFXJRNL\\0"  8 bytes
          version            uint16
          reserved           6 bytes
          first ordinal      uint64
          checksum           8 bytes, blake2b
frames    marker             4 bytes
          gaps, payload      uint32 lengths
          records, tokens    uint32
          first, last        uint64 ordinals of the records
          oldest, newest     float64 seconds since the epoch, purge marks left out
          checksum           8 bytes, blake2b of the above and the gaps
          gaps               LEB128 differences of the ordinals, where records are missing between
          payload            a batch of records (see codec.py) with a checksum of its own
```

All numbers are little-endian. A frame is written by one call. What follows the last whole frame is
either still being written or was torn off by a crash.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

from suffixspec_index.errors import LogCorruptError, LogFormatError
from suffixspec_index.kernels.varint import MOST, decode_varints, encode_varints
from suffixspec_index.log.base import FOREVER, Record, RecordKind
from suffixspec_index.log.codec import MAX_RAW, decode_records, encode_records, is_intact

MAGIC = b"SFXJRNL\0"
VERSION = 1
_SEGMENT = struct.Struct("<8sH6xQ")
_FRAME = struct.Struct("<4sIIIIQQdd")
_CHECKSUM = 8
SEGMENT_HEAD = _SEGMENT.size + _CHECKSUM
FRAME_HEAD = _FRAME.size + _CHECKSUM
MARKER = b"\xf5SFX"
_BLOCK = 1 << 20  # bytes that are searched at once for the next frame


@dataclass(frozen=True, slots=True)
class Frame:
    """The head of a frame at ``offset`` of its file."""

    offset: int
    gaps: int
    payload: int
    records: int
    tokens: int
    first: int
    last: int
    oldest: float
    newest: float

    @property
    def size(self) -> int:
        """Bytes of the whole frame."""
        return FRAME_HEAD + self.gaps + self.payload

    @property
    def end(self) -> int:
        """Where the next frame starts."""
        return self.offset + self.size


def segment_head(first: int) -> bytes:
    """The head of a new segment."""
    head = _SEGMENT.pack(MAGIC, VERSION, first)
    return head + _digest(head)


def frame_bytes(
    ordinals: Sequence[int], records: Sequence[Record], payload: bytes | None = None
) -> bytes:
    """A frame. ``payload`` are the encoded records, where the caller has them already.

    Raises:
        InputError, TokenError: a record is wrong.
    """
    body = encode_records(records) if payload is None else payload
    first, last = ordinals[0], ordinals[-1]
    gaps = b"" if last - first + 1 == len(ordinals) else _encode_gaps(ordinals)
    times = [r.time for r in records if r.kind is not RecordKind.PURGE]
    head = _FRAME.pack(
        MARKER,
        len(gaps),
        len(body),
        len(records),
        sum(len(r.tokens) for r in records),
        first,
        last,
        min(times, default=FOREVER),
        max(times, default=-FOREVER),
    )
    return head + _digest(head, gaps) + gaps + body


def frame_of(data: bytes, offset: int) -> Frame:
    """The head of a frame that was just made, for the place where it will stand."""
    return Frame(offset, *_FRAME.unpack_from(data)[1:])


class Segment:
    """A segment opened for reading. Positions are byte offsets of the file.

    Raises:
        FileNotFoundError: it is gone. LogFormatError: it is of another version or foreign.
        LogCorruptError: its head is damaged (frames can still be looked for).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))

    def check_head(self) -> None:
        """Verify the head of the file.

        Raises:
            LogFormatError: another version wrote it. LogCorruptError: it is damaged or foreign.
        """
        head = os.pread(self.file, SEGMENT_HEAD, 0)
        if len(head) < SEGMENT_HEAD or head[_SEGMENT.size :] != _digest(head[: _SEGMENT.size]):
            raise LogCorruptError(f"{self.path}: the head of the segment is damaged")
        _, version, _ = _SEGMENT.unpack_from(head)
        if version != VERSION:
            raise LogFormatError(
                f"{self.path}: is of version {version}, this program reads version {VERSION}; "
                "update suffixspec"
            )

    def size(self) -> int:
        """Bytes of the file now."""
        return os.fstat(self.file).st_size

    def frame_at(self, offset: int) -> Frame | None:
        """The head of the frame at an offset, or ``None`` where there is no whole one.

        What the frame holds is verified when it is read.
        """
        return self._frame(os.pread(self.file, FRAME_HEAD, offset), offset, self.size())

    def frames(self, offset: int = SEGMENT_HEAD) -> Iterator[tuple[Frame, int]]:
        """Frames from an offset on, each with how many damaged places were skipped before it.

        Ends at the first place after which no whole frame follows.
        """
        while True:
            frame = self.frame_at(offset)
            damaged = 0
            if frame is None:
                following = self.next_frame(offset + 1)
                if following is None:
                    return
                # Frames are written one after the other: what stands before a whole one has been
                # written to its end, if only since it was looked at.
                frame = self.frame_at(offset)
                if frame is None:
                    frame, damaged = following, 1
            yield frame, damaged
            offset = frame.end

    def next_frame(self, offset: int) -> Frame | None:
        """The first intact frame at or after an offset, its content verified. O(bytes)."""
        size = self.size()
        while offset < size:
            block = os.pread(self.file, _BLOCK, offset)
            at = block.find(MARKER)
            while at >= 0:
                frame = self.frame_at(offset + at)
                if frame is not None and self.is_intact(frame):
                    return frame
                at = block.find(MARKER, at + 1)
            if len(block) < _BLOCK:
                return None
            offset += len(block) - len(MARKER) + 1
        return None

    def is_intact(self, frame: Frame) -> bool:
        """Whether the checksum of a frame's content is right."""
        return is_intact(os.pread(self.file, frame.payload, frame.end - frame.payload))

    def load(self, frame: Frame) -> tuple[list[int], list[Record]]:
        """The ordinals and records of a frame.

        Raises:
            LogCorruptError: they are damaged. LogFormatError: another version wrote them.
        """
        body = os.pread(self.file, frame.gaps + frame.payload, frame.offset + FRAME_HEAD)
        records = decode_records(memoryview(body)[frame.gaps :])
        if len(records) != frame.records:
            raise LogCorruptError(
                f"{self.path}: a frame at {frame.offset} holds {len(records)} records, "
                f"not {frame.records}"
            )
        if not frame.gaps:
            return list(range(frame.first, frame.last + 1)), records
        return _decode_gaps(frame.first, body[: frame.gaps], frame.records), records

    def close(self) -> None:
        """Close the file."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1

    def __enter__(self) -> Segment:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _frame(self, head: bytes, offset: int, size: int) -> Frame | None:
        if len(head) < FRAME_HEAD or not head.startswith(MARKER):
            return None
        fields = _FRAME.unpack_from(head)
        frame = Frame(offset, *fields[1:])
        if frame.end > size or frame.payload > MAX_RAW + FRAME_HEAD:
            return None
        gaps = os.pread(self.file, frame.gaps, offset + FRAME_HEAD) if frame.gaps else b""
        if head[_FRAME.size :] != _digest(head[: _FRAME.size], gaps):
            return None
        return frame


def _digest(*parts: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=_CHECKSUM, person=b"sfx-journal")
    for part in parts:
        digest.update(part)
    return digest.digest()


def _encode_gaps(ordinals: Sequence[int]) -> bytes:
    steps = np.diff(np.array(ordinals, np.int64))
    out = np.empty(len(steps) * MOST, np.uint8)
    return out[: encode_varints(steps, out)].tobytes()


def _decode_gaps(first: int, gaps: bytes, records: int) -> list[int]:
    data = np.frombuffer(gaps, np.uint8).copy()
    steps = np.empty(int(np.count_nonzero(data < 128)), np.int64)
    if decode_varints(data, steps) != records - 1:
        raise LogCorruptError("journal: the ordinals of a frame do not add up")
    found: list[int] = np.cumsum(np.concatenate([[first], steps])).tolist()
    return found
