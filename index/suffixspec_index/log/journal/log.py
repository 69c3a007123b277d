"""The journal as a sequence log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from suffixspec_index.errors import (
    ConfigError,
    LogClosedError,
    LogError,
    LogRefusedError,
    LogUnavailableError,
)
from suffixspec_index.log.base import (
    FOREVER,
    START,
    Batch,
    LogStatistics,
    Record,
    SequenceLog,
    purge_mark,
)
from suffixspec_index.log.journal.layout import (
    ChangeCounter,
    WriterLock,
    io_errors,
    namespace_folders,
    prepare_folder,
    read_namespace,
    write_namespace,
)
from suffixspec_index.log.journal.reader import NamespaceReader
from suffixspec_index.log.journal.writer import NamespaceWriter
from suffixspec_index.log.options import Option, choice, read_options, size, span
from suffixspec_index.log.positions import ordinal_of, position_of
from suffixspec_index.namespaces import NamespaceKey

_POLL = 0.002  # seconds between two looks at the counter of another process
_PACK_EVERY = 5.0  # seconds between two looks for segments to pack
_OPTIONS: Mapping[str, Option] = {
    "fsync": choice("fsync", ("always", "interval", "never")),
    "fsync_interval": span("fsync_interval", least=0.001),
    "max_bytes": size("max_bytes", least=1 << 16),
    "segment_bytes": size("segment_bytes", least=1 << 12),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalSettings:
    """Checked on construction.

    Attributes:
        fsync: when what was appended is made durable against a loss of power. ``always``: before
            it is acknowledged. ``interval``: every ``fsync_interval`` seconds. ``never``: when the
            system likes. The end of the process alone, by ``kill -9`` too, never loses anything
            that was acknowledged.
        fsync_interval: seconds.
        max_bytes: of the whole journal; the namespace that takes most loses its oldest segment.
        segment_bytes: size of a segment; by default a 64th of ``max_bytes``, at most 8 MiB.

    Raises:
        ConfigError: a value is out of range.
    """

    fsync: str = "interval"
    fsync_interval: float = 1.0
    max_bytes: int = 4 << 30
    segment_bytes: int = 0

    def __post_init__(self) -> None:
        for name, option in _OPTIONS.items():
            value = getattr(self, name)
            if name == "segment_bytes" and value == 0:
                value = max(min(self.max_bytes // 64, 8 << 20), 1 << 12)
            object.__setattr__(self, name, option(value))
        if self.segment_bytes > self.max_bytes // 2:
            raise ConfigError(
                f"segment_bytes: must be at most half of max_bytes ({self.max_bytes}), got "
                f"{self.segment_bytes}"
            )


def open_journal(url: str, *, read_only: bool = False, **options: object) -> JournalLog:
    """``journal:FOLDER``; settings: see :class:`JournalSettings`.

    Raises:
        ConfigError: a setting is wrong. LogFormatError: the folder is something else.
        LogRefusedError: another process writes to it. LogUnavailableError: it cannot be read.
    """
    place, values = read_options(url, "journal:", _OPTIONS, options)
    if not place:
        raise ConfigError(f"journal: {url!r} names no folder; write journal:FOLDER")
    settings = JournalSettings(**values)  # type: ignore[arg-type]
    return JournalLog(Path(place).expanduser(), settings, read_only=read_only)


class JournalLog(SequenceLog):
    """See the package's docstring. Open one for writing per folder, any number read-only."""

    scheme: ClassVar[str] = "journal"

    def __init__(
        self, folder: Path, settings: JournalSettings | None = None, *, read_only: bool = False
    ) -> None:
        self.folder = folder
        self.settings = settings or JournalSettings()
        self.url = f"journal:{folder}"
        self.repaired = 0
        """Bytes of torn tails that were cut off when the journal was opened."""
        self._read_only = read_only
        self._lock = threading.RLock()
        self._changed = threading.Condition()
        self._closed = False
        self._writers: dict[NamespaceKey, NamespaceWriter] = {}
        self._readers: dict[NamespaceKey, NamespaceReader] = {}
        prepare_folder(folder, read_only=read_only)
        self._writer_lock = None if read_only else WriterLock(folder)
        self._counter: ChangeCounter | None = None
        self._janitor: threading.Thread | None = None
        self._janitor_fault: str | None = None
        try:
            if not read_only:
                with io_errors(folder, "opened"):
                    self._counter = ChangeCounter(folder, writable=True)
                self._open_writers()
        except BaseException:
            self.close()
            raise

    # --- the contract ----------------------------------------------------------------------------

    def append(self, key: NamespaceKey, records: Sequence[Record]) -> str:
        """Append a frame; acknowledged as ``fsync`` says."""
        self._check_writable()
        for record in records:
            record.check()
        writer = self._writer(key)
        if not records:
            return position_of(writer.epoch, writer.last)
        ordinal = writer.append(records)
        self._tell()
        if len(writer.infos) > 1 or writer.nbytes > self.settings.segment_bytes // 2:
            self._keep_budget()
        return position_of(writer.epoch, ordinal)

    def read(
        self, cursors: Mapping[NamespaceKey, str], *, max_bytes: int = 1 << 20, wait: float = 0.0
    ) -> list[Batch]:
        """Read frames from the files; where another process writes, looks every 2 ms."""
        ends = time.monotonic() + wait
        while True:
            self._check_open()
            seen = self._count()
            found = [b for k, p in cursors.items() if (b := self._after(k, p, max_bytes))]
            if found or time.monotonic() >= ends:
                return found
            self._wait(seen, ends)

    def namespaces(self) -> list[NamespaceKey]:
        """Those whose folders hold records."""
        self._check_open()
        known = [read_namespace(folder) for folder in namespace_folders(self.folder)]
        return [
            found[0]
            for found in known
            if found and any(info.records for info in self._reader_of(*found).infos())
        ]

    def purge(self, key: NamespaceKey, *, before: float = FOREVER, origin: int, number: int) -> str:
        """Leave a mark; remove whole segments, or pack those anew that hold something older."""
        self._check_writable()
        mark = purge_mark(origin=origin, number=number, before=before)
        mark.check()
        writer = self._writer(key)
        try:
            return position_of(writer.epoch, writer.purge(mark))
        finally:
            self._tell()

    def statistics(self, key: NamespaceKey) -> LogStatistics:
        """Exact sizes, from the heads of the frames."""
        self._check_open()
        reader = self._reader(key)
        if reader is None:
            return LogStatistics(records=0, bytes=0, tokens=0, trimmed=0)
        infos = reader.infos()
        first_time, last_time = reader.times()
        return LogStatistics(
            records=sum(info.records for info in infos),
            bytes=sum(info.size for info in infos),
            tokens=sum(info.tokens for info in infos),
            first_time=first_time,
            last_time=last_time,
            damaged=max(reader.damaged, sum(info.damaged for info in infos)),
            trimmed=reader.trimmed()[1],
        )

    def behind(self, key: NamespaceKey, position: str) -> int:
        """How many records follow."""
        self._check_open()
        reader = self._reader(key)
        if reader is None:
            return 0
        return reader.behind(ordinal_of(position, reader.epoch, reader.last()) or 0)

    def recent(self, key: NamespaceKey, tokens: int) -> str:
        """Counted from the end, in whole frames."""
        self._check_open()
        reader = self._reader(key)
        if reader is None:
            return START
        ordinal = reader.recent(tokens)
        return position_of(reader.epoch, ordinal) if ordinal else START

    def check(self) -> None:
        """Whether the folder is there, and what is done in the background works."""
        self._check_open()
        prepare_folder(self.folder, read_only=True)
        if self._janitor_fault is not None:
            raise LogUnavailableError(self._janitor_fault)

    def close(self) -> None:
        """Sync, close the files, let others write."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        with self._changed:
            self._changed.notify_all()
        if self._janitor is not None and self._janitor is not threading.current_thread():
            self._janitor.join()
        with self._lock:
            try:
                for writer in self._writers.values():
                    writer.close()
            finally:
                for reader in self._readers.values():
                    reader.close()
                if self._counter is not None:
                    self._counter.close()
                    self._counter = None
                if self._writer_lock is not None:
                    self._writer_lock.release()

    # --- inside ----------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise LogClosedError(f"{self.url}: is closed; open it again")

    def _check_writable(self) -> None:
        self._check_open()
        if self._read_only:
            raise LogRefusedError(f"{self.url}: is opened read-only; open it for writing")

    def _open_writers(self) -> None:
        for folder in namespace_folders(self.folder):
            known = read_namespace(folder)
            if known is not None:
                self._writers[known[0]] = self._new_writer(folder, known[1])
                self.repaired += self._writers[known[0]].repaired

    def _new_writer(self, folder: Path, epoch: str) -> NamespaceWriter:
        return NamespaceWriter(
            folder,
            epoch,
            segment_bytes=self.settings.segment_bytes,
            durable=self.settings.fsync == "always",
        )

    def _writer(self, key: NamespaceKey) -> NamespaceWriter:
        with self._lock:
            self._check_open()
            writer = self._writers.get(key)
            if writer is None:
                folder = self.folder / key.digest
                with io_errors(folder, "made"):
                    epoch = write_namespace(folder, key)
                writer = self._writers[key] = self._new_writer(folder, epoch)
            if self._janitor is None:
                self._janitor = threading.Thread(
                    target=self._tidy, name="suffixspec-journal", daemon=True
                )
                self._janitor.start()
            return writer

    def _reader(self, key: NamespaceKey) -> NamespaceReader | None:
        with self._lock:
            reader = self._readers.get(key)
        if reader is not None:
            return reader
        known = read_namespace(self.folder / key.digest)
        return None if known is None else self._reader_of(*known)

    def _reader_of(self, key: NamespaceKey, epoch: str) -> NamespaceReader:
        with self._lock:
            self._check_open()
            folder = self.folder / key.digest
            return self._readers.setdefault(key, NamespaceReader(folder, epoch))

    def _after(self, key: NamespaceKey, position: str, max_bytes: int) -> Batch | None:
        reader = self._reader(key)
        if reader is None:
            return None
        at = reader.known_ordinal(position)
        reset = at is None
        found = reader.read(at or 0, max_bytes)
        if not found.records and not found.damaged and not reset and found.end == at:
            return None
        return Batch(
            key,
            found.records,
            position_of(reader.epoch, found.end),
            more=found.more,
            reset=reset,
            missed=(at or 0) < reader.trimmed_to(found.records),
            damaged=found.damaged,
        )

    def _keep_budget(self) -> None:
        """Drop oldest segments, of whichever namespace takes most, until the journal fits."""
        with self._lock:
            writers = list(self._writers.values())
        while sum(writer.nbytes for writer in writers) > self.settings.max_bytes:
            largest = max(writers, key=lambda writer: writer.nbytes)
            if not largest.trim():
                return

    # --- waiting, tidying ------------------------------------------------------------------------

    def _count(self) -> int:
        """Changes when anything was written by any process."""
        if self._counter is None:
            try:
                self._counter = ChangeCounter(self.folder, writable=False)
            except (OSError, ValueError):
                return -1  # the writer has made none yet
        try:
            return self._counter.value()
        except ValueError:  # closed in this moment
            return -1

    def _wait(self, seen: int, ends: float) -> None:
        """Until something was written, or the time is over."""
        while not self._closed and self._count() == seen:
            left = ends - time.monotonic()
            if left <= 0:
                return
            with self._changed:
                if self._read_only:
                    self._changed.wait(min(left, _POLL))
                elif self._count() == seen and not self._closed:
                    self._changed.wait(left)

    def _tell(self) -> None:
        with self._changed:
            if self._counter is not None:
                self._counter.move()
            self._changed.notify_all()

    def _tidy(self) -> None:
        """Sync at intervals, pack sealed segments."""
        syncs = self.settings.fsync == "interval"
        pause = self.settings.fsync_interval if syncs else _PACK_EVERY
        pack_at = time.monotonic() + _PACK_EVERY
        while True:
            ends = time.monotonic() + pause
            with self._changed:
                while not self._closed and (left := ends - time.monotonic()) > 0:
                    self._changed.wait(left)
            if self._closed:
                return
            with self._lock:
                writers = list(self._writers.values())
            fault = None
            for writer in writers:
                if syncs:
                    fault = self._attempt(writer.sync_quietly) or fault
                if time.monotonic() >= pack_at:
                    fault = self._attempt(writer.pack) or fault
            if time.monotonic() >= pack_at:
                pack_at = time.monotonic() + _PACK_EVERY
            self._janitor_fault = fault

    def _attempt(self, work: Callable[[], object]) -> str | None:
        try:
            work()
        except LogError as error:
            return str(error)
        return None
