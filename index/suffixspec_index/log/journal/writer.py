"""Writing one namespace of a journal: appending, group commit, rotation, rewriting."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suffixspec_index.errors import LogCorruptError
from suffixspec_index.log.base import FOREVER, Record, is_obsolete
from suffixspec_index.log.codec import encode_records
from suffixspec_index.log.journal.layout import (
    io_errors,
    read_json,
    segment_path,
    segments,
    write_json,
)
from suffixspec_index.log.journal.segment import (
    SEGMENT_HEAD,
    Frame,
    Segment,
    frame_bytes,
    frame_of,
    segment_head,
)
from suffixspec_index.replacing import sync_folder

PACKED_TOKENS = 1 << 16
"""Sealed segments are packed anew into frames of about this many tokens, which compress better."""

_MICRO = 1e-6  # times are stored to the microsecond


@dataclass(slots=True)
class SegmentInfo:
    """What is known of a segment without reading its records."""

    first: int
    last: int = 0
    size: int = SEGMENT_HEAD
    frames: int = 0
    records: int = 0
    tokens: int = 0
    oldest: float = FOREVER
    newest: float = -FOREVER
    damaged: int = 0

    def count(self, frame: Frame) -> None:
        """Add a frame."""
        self.last = max(self.last, frame.last)
        self.size = frame.end
        self.frames += 1
        self.records += frame.records
        self.tokens += frame.tokens
        self.oldest = min(self.oldest, frame.oldest)
        self.newest = max(self.newest, frame.newest)

    @property
    def is_loose(self) -> bool:
        """Whether packing it anew would save much."""
        return self.frames > 4 * (self.tokens // PACKED_TOKENS + 1)


def inspect(path: Path, first: int) -> SegmentInfo:
    """Look through the heads of a segment's frames. O(frames)."""
    info = SegmentInfo(first, last=first - 1)
    with Segment(path) as segment:
        for frame, damaged in segment.frames():
            info.count(frame)
            info.damaged += damaged
    return info


class NamespaceWriter:
    """Appends to one namespace's folder. Thread-safe.

    Args:
        folder: of the namespace, made already.
        segment_bytes: a segment that reaches this is sealed and a new one begun.
        durable: sync to the disk before :meth:`append` returns.
    """

    def __init__(self, folder: Path, epoch: str, *, segment_bytes: int, durable: bool) -> None:
        self.folder = folder
        self.epoch = epoch
        self.durable = durable
        self.infos: dict[int, SegmentInfo] = {}  # by first ordinal, rising; the last is written to
        self.repaired = 0  # bytes of a torn tail that were cut off at the start
        self._segment_bytes = segment_bytes
        self._lock = threading.Lock()  # guards appending and everything below
        self._syncing = threading.Lock()  # one sync at a time; taken before _lock
        self._maintaining = threading.Lock()  # rewriting and deleting; taken before the others
        self._file = -1
        self._retired: list[int] = []  # files to be closed once no sync uses them
        self._written = self._synced = 0  # frames
        self._broken = False
        with io_errors(folder, "opened"):
            self._open()

    @property
    def last(self) -> int:
        """The newest ordinal there ever was."""
        return max(next(reversed(self.infos.values())).last, 0)

    @property
    def nbytes(self) -> int:
        """Bytes of all segments."""
        return sum(info.size for info in list(self.infos.values()))

    # --- appending -------------------------------------------------------------------------------

    def append(self, records: Sequence[Record], *, seal: bool = False) -> int:
        """Write a frame; returns its last ordinal. ``seal``: it begins a new segment.

        Raises:
            InputError, TokenError: a record is wrong. LogRefusedError, LogUnavailableError: it
            could not be written, or not made durable.
        """
        payload = encode_records(records)
        with io_errors(self.folder, "written to"):
            with self._lock:
                first = self.last + 1
                last = first + len(records) - 1
                data = frame_bytes(range(first, last + 1), records, payload)
                info = self._active()
                full = info.size + len(data) > self._segment_bytes
                if self._broken or ((seal or full) and info.frames):
                    self._rotate()
                    info = self._active()
                self._write(info, data)
                self._written += 1
                ticket = self._written
            if self.durable:
                self.sync(ticket)
        return last

    def sync_quietly(self) -> None:
        """As :meth:`sync`, with errors of ours."""
        with io_errors(self.folder, "synced"):
            self.sync()

    def sync(self, ticket: int | None = None) -> None:
        """Make what was written durable: those who wait share one sync (group commit)."""
        with self._syncing:
            with self._lock:
                wanted = self._written if ticket is None else ticket
                if self._synced >= wanted or self._file < 0:
                    return
                target, file = self._written, self._file
                retired, self._retired = self._retired, []
            for old in retired:
                os.close(old)
            try:
                os.fsync(file)
            except OSError:
                self._broken = True  # the system may have dropped what it could not write
                raise
            self._synced = max(self._synced, target)

    def _write(self, info: SegmentInfo, data: bytes) -> None:
        offset = info.size
        try:
            done = 0
            while done < len(data):
                done += os.pwrite(self._file, memoryview(data)[done:], offset + done)
        except OSError:
            os.ftruncate(self._file, offset)  # a torn frame would hide what comes after it
            raise
        info.count(frame_of(data, offset))

    def _rotate(self) -> None:
        """Begin a new segment. The lock is held."""
        if self._file >= 0:
            os.fsync(self._file)
            self._retired.append(self._file)
        self._synced = max(self._synced, self._written)
        self._begin(self.last + 1)
        self._broken = False

    def _begin(self, first: int) -> None:
        path = segment_path(self.folder, first)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, segment_head(first), 0)
        os.fsync(self._file)
        sync_folder(self.folder)
        self.infos[first] = SegmentInfo(first, last=first - 1)

    def _active(self) -> SegmentInfo:
        return next(reversed(self.infos.values()))

    # --- opening ---------------------------------------------------------------------------------

    def _open(self) -> None:
        """Look through all segments, cut off a torn tail, finish a purge that was not finished."""
        found = segments(self.folder)
        for first in found[:-1]:
            self.infos[first] = inspect(segment_path(self.folder, first), first)
        if not found:
            self._begin(self._next_ordinal())
            return
        self._reopen(found[-1])
        unfinished = read_json(self.folder / "purging.json")
        if unfinished is not None:
            self._finish_purge(unfinished)

    def _next_ordinal(self) -> int:
        trimmed = read_json(self.folder / "trimmed.json") or {}
        return int(trimmed.get("ordinal", 0)) + 1

    def _reopen(self, first: int) -> None:
        """Go on with the last segment, verified to its last byte."""
        path = segment_path(self.folder, first)
        info = SegmentInfo(first, last=first - 1)
        with Segment(path) as segment:
            size = segment.size()
            if size < SEGMENT_HEAD:
                segment.close()
                self.repaired = size
                self._begin(first)
                return
            for frame, damaged in segment.frames():
                if segment.is_intact(frame):
                    info.count(frame)
                    info.damaged += damaged
                elif segment.next_frame(frame.end) is None:
                    break  # written in part, and nothing after it: torn off
                else:
                    info.damaged += 1
                    info.last = max(info.last, frame.last)
                    info.size = frame.end
        self.infos[first] = info
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        if size > info.size:
            self.repaired = size - info.size
            os.ftruncate(self._file, info.size)
        os.fsync(self._file)

    # --- forgetting ------------------------------------------------------------------------------

    def purge(self, mark: Record) -> int:
        """Write a mark, then remove what it makes obsolete; returns the mark's ordinal."""
        with self._maintaining, io_errors(self.folder, "purged"):
            ordinal = self.append([mark], seal=True)
            if not self.durable:
                self.sync()
            before = None if mark.before == FOREVER else mark.before
            unfinished = {"ordinal": ordinal, "before": before}
            write_json(self.folder / "purging.json", unfinished)
            self._finish_purge(unfinished)
        return ordinal

    def _finish_purge(self, unfinished: dict[str, Any]) -> None:
        ordinal, before = int(unfinished["ordinal"]), unfinished["before"]
        limit = FOREVER if before is None else float(before)
        for first in [f for f, i in self.infos.items() if i.last < ordinal and f < ordinal]:
            if limit == FOREVER:
                self._remove(first)
            elif self._may_hold_older(self.infos[first], limit):
                self._rewrite(first, lambda record: not is_obsolete(record, limit))
        (self.folder / "purging.json").unlink(missing_ok=True)
        sync_folder(self.folder)

    def _may_hold_older(self, info: SegmentInfo, limit: float) -> bool:
        """Marks count in no segment's times, so one that holds nothing else is looked at too."""
        return info.oldest < limit + _MICRO or info.oldest == FOREVER or info.frames == 1

    def trim(self) -> bool:
        """Remove the oldest segment for the byte budget; whether there was one that may go."""
        with self._maintaining, io_errors(self.folder, "trimmed"):
            if len(self.infos) == 1:
                with self._lock:
                    if not self._active().records:
                        return False
                    self._rotate()
            info = next(iter(self.infos.values()))
            known = read_json(self.folder / "trimmed.json") or {"records": 0}
            write_json(
                self.folder / "trimmed.json",
                {"ordinal": info.last, "records": known["records"] + info.records},
            )
            self._remove(info.first)
            return True

    def pack(self) -> bool:
        """Pack one loose sealed segment anew; whether there was one."""
        with self._maintaining, io_errors(self.folder, "packed"):
            sealed = list(self.infos.values())[:-1]
            loose = next((info for info in sealed if info.is_loose), None)
            if loose is None:
                return False
            self._rewrite(loose.first, lambda record: True)
            return True

    def _remove(self, first: int) -> None:
        segment_path(self.folder, first).unlink(missing_ok=True)
        with self._lock:
            del self.infos[first]

    def _rewrite(self, first: int, keep: Callable[[Record], bool]) -> None:
        """Replace a sealed segment by one that holds what is to be kept, in large frames."""
        path = segment_path(self.folder, first)
        temporary = path.with_suffix(".tmp")
        file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        kept = 0
        try:
            os.write(file, segment_head(first))
            for ordinals, records in _packed(path, keep):
                kept += len(records)
                _write_all(file, frame_bytes(ordinals, records))
            os.fsync(file)
        finally:
            os.close(file)
        if not kept:
            temporary.unlink()
            self._remove(first)
            return
        temporary.replace(path)
        sync_folder(self.folder)
        info = inspect(path, first)
        with self._lock:
            self.infos[first] = info

    def close(self) -> None:
        """Sync and close the file."""
        with self._maintaining, io_errors(self.folder, "closed"):
            if self._file < 0:
                return
            try:
                self.sync()
            finally:
                with self._syncing, self._lock:
                    for file in (*self._retired, self._file):
                        os.close(file)
                    self._file = -1
                    self._retired = []


def _packed(path: Path, keep: Callable[[Record], bool]) -> Any:
    """What is kept of a segment, ``(ordinals, records)``, in groups of ``PACKED_TOKENS``."""
    ordinals: list[int] = []
    records: list[Record] = []
    tokens = 0
    with Segment(path) as segment:
        for frame, _ in segment.frames():
            try:
                found = segment.load(frame)
            except LogCorruptError:
                continue  # whatever it was, it cannot be read: it was counted when it was found
            for ordinal, record in zip(*found, strict=True):
                if not keep(record):
                    continue
                if records and tokens + len(record.tokens) > PACKED_TOKENS:
                    yield ordinals, records
                    ordinals, records, tokens = [], [], 0
                ordinals.append(ordinal)
                records.append(record)
                tokens += len(record.tokens)
    if records:
        yield ordinals, records


def _write_all(file: int, data: bytes) -> None:
    done = 0
    while done < len(data):
        done += os.write(file, memoryview(data)[done:])
