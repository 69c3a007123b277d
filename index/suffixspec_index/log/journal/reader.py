"""Reading one namespace of a journal, while it is written to, rotated and purged."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from suffixspec_index.errors import LogCorruptError
from suffixspec_index.log.base import FOREVER, Record
from suffixspec_index.log.journal.layout import read_json, segment_path, segments
from suffixspec_index.log.journal.segment import SEGMENT_HEAD, Frame, Segment
from suffixspec_index.log.journal.writer import SegmentInfo, inspect
from suffixspec_index.log.positions import ordinal_of, position_of


@dataclass(slots=True)
class Found:
    """What a read brought: records after the ordinal that was asked for, up to ``end``."""

    end: int
    records: list[Record] = field(default_factory=list)
    more: bool = False
    damaged: int = 0


class _Place:
    """Where a reader stands: an open segment and the offset of its next frame."""

    def __init__(self, segment: Segment, first: int, ordinal: int) -> None:
        self.segment = segment
        self.first = first
        self.ordinal = ordinal  # what was read up to
        self.offset = SEGMENT_HEAD


class NamespaceReader:
    """Reads a namespace's folder; knows nothing but the files. Thread-safe.

    A file may be replaced (packed, purged) or removed at any time: whoever has it open reads the
    old one to its end, and ordinals tell what is known already.
    """

    def __init__(self, folder: Path, epoch: str) -> None:
        self.folder = folder
        self.epoch = epoch
        self.damaged = 0
        self._lock = threading.Lock()
        self._place: _Place | None = None
        self._infos: dict[tuple[int, int, int], SegmentInfo] = {}  # (first, inode, size)

    def read(self, after: int, max_bytes: int) -> Found:
        """The records after an ordinal: whole frames, at least one, up to about ``max_bytes``.

        Raises:
            LogFormatError: another version wrote a segment.
        """
        with self._lock:
            found = Found(after)
            taken = 0
            for frame, segment in self._frames(after, found):
                if taken and taken + frame.size > max_bytes:
                    found.more = True
                    break
                if not self._take(frame, segment, after, found):
                    break
                taken += frame.size
            self.damaged += found.damaged
            return found

    def _take(self, frame: Frame, segment: Segment, after: int, found: Found) -> bool:
        """Add a frame's records; false where it is still being written."""
        place = self._place
        assert place is not None
        loaded = _loaded(segment, frame)
        if loaded is None:
            if not self._is_sealed(place) and segment.next_frame(frame.end) is None:
                return False
            loaded = _loaded(segment, frame)  # it may have been written to its end since
        if loaded is None:
            found.damaged += 1
        else:
            pairs = zip(*loaded, strict=True)
            found.records += [record for ordinal, record in pairs if ordinal > after]
        found.end = max(found.end, frame.last)
        place.offset, place.ordinal = frame.end, found.end
        return True

    def _frames(self, after: int, found: Found) -> Iterator[tuple[Frame, Segment]]:
        """Frames that hold anything after an ordinal, segment after segment."""
        place = self._placed(after)
        while place is not None:
            sealed = self._is_sealed(place)  # looked at first: what it holds then is all of it
            for frame, damaged in place.segment.frames(place.offset):
                found.damaged += damaged
                if frame.last > after:
                    yield frame, place.segment
                else:
                    place.offset = frame.end
            if not sealed:
                return
            if place.segment.frame_at(place.offset) is None and (
                place.segment.size() > place.offset
            ):
                found.damaged += 1  # a sealed segment that ends within a frame
            place = self._next(place)

    def _placed(self, after: int) -> _Place | None:
        """Where reading goes on: the place of the last read, or one that is looked for."""
        place = self._place
        if place is not None and place.ordinal == after:
            return place
        firsts = segments(self.folder)
        at = max((first for first in firsts if first <= after + 1), default=None)
        if at is None:
            at = firsts[0] if firsts else None
        return self._move(at, after)

    def _next(self, place: _Place) -> _Place | None:
        later = [first for first in segments(self.folder) if first > place.first]
        return self._move(later[0], place.ordinal) if later else None

    def _move(self, first: int | None, ordinal: int) -> _Place | None:
        while first is not None:
            try:
                segment = Segment(segment_path(self.folder, first))
            except FileNotFoundError:  # removed in this moment
                first = next((f for f in segments(self.folder) if f > first), None)
                continue
            try:
                segment.check_head()
            except LogCorruptError:
                if segment.size() >= SEGMENT_HEAD:  # else it is being made
                    self.damaged += 1
            self._drop_place()
            self._place = _Place(segment, first, ordinal)
            return self._place
        return None

    def _is_sealed(self, place: _Place) -> bool:
        return any(first > place.first for first in segments(self.folder))

    def _drop_place(self) -> None:
        if self._place is not None:
            self._place.segment.close()
            self._place = None

    # --- sizes -----------------------------------------------------------------------------------

    def infos(self) -> list[SegmentInfo]:
        """What each segment holds, oldest first. O(frames) of what changed since the last call."""
        with self._lock:
            known: dict[tuple[int, int, int], SegmentInfo] = {}
            for first in segments(self.folder):
                path = segment_path(self.folder, first)
                try:
                    status = path.stat()
                    stamp = (first, status.st_ino, status.st_size)
                    known[stamp] = self._infos.get(stamp) or inspect(path, first)
                except FileNotFoundError:
                    continue
            self._infos = known
            return list(known.values())

    def behind(self, after: int) -> int:
        """Records after an ordinal. O(segments), and O(frames) of the one it lies in."""
        count = 0
        for info in self.infos():
            if info.first > after:
                count += info.records
            elif info.last > after:
                count += self._behind_in(info.first, after)
        return count

    def recent(self, tokens: int) -> int:
        """The ordinal after which the newest ``tokens`` stand; 0 where they are fewer."""
        for info in reversed(self.infos()):
            if info.tokens > tokens:
                with contextlib.suppress(FileNotFoundError):
                    return self._recent_in(info.first, info.tokens - tokens)
            tokens -= info.tokens
        return 0

    def _recent_in(self, first: int, skip: int) -> int:
        """The last ordinal of the frame in which the first ``skip`` tokens of a segment end."""
        with Segment(segment_path(self.folder, first)) as segment:
            for frame, _ in segment.frames():
                skip -= frame.tokens
                if skip <= 0:
                    return frame.last
        return first - 1

    def _behind_in(self, first: int, after: int) -> int:
        try:
            with Segment(segment_path(self.folder, first)) as segment:
                count = 0
                for frame, _ in segment.frames():
                    if frame.first > after:
                        count += frame.records
                    elif frame.last > after:
                        count += min(frame.records, frame.last - after)
                return count
        except FileNotFoundError:
            return 0

    def known_ordinal(self, position: str) -> int | None:
        """The ordinal of a position; ``None`` where it is none of this namespace's.

        Where the last read ended is known to exist; anything else is compared with what is stored.
        """
        place = self._place
        if place is not None and position == position_of(self.epoch, place.ordinal):
            return place.ordinal
        return ordinal_of(position, self.epoch, self.last())

    def trimmed_to(self, records: list[Record]) -> int:
        """Up to which ordinal the byte budget removed records; only looked up where it matters."""
        return self.trimmed()[0] if records else 0

    def trimmed(self) -> tuple[int, int]:
        """Up to which ordinal the byte budget removed records, and how many."""
        known = read_json(self.folder / "trimmed.json") or {}
        return int(known.get("ordinal", 0)), int(known.get("records", 0))

    def times(self) -> tuple[float, float]:
        """When the oldest and the newest record were said; zeros where there is none."""
        infos = self.infos()
        oldest = min((info.oldest for info in infos), default=FOREVER)
        newest = max((info.newest for info in infos), default=-FOREVER)
        return (0.0, 0.0) if oldest == FOREVER else (oldest, newest)

    def last(self) -> int:
        """The newest ordinal that is stored."""
        infos = self.infos()
        return max((info.last for info in infos), default=0)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._drop_place()


def _loaded(segment: Segment, frame: Frame) -> tuple[list[int], list[Record]] | None:
    """The ordinals and records of a frame, ``None`` where they are damaged or not all there yet."""
    try:
        return segment.load(frame)
    except LogCorruptError:
        return None
