"""Reading traces: files, directories, globs and standard input, whatever format they are in."""

from __future__ import annotations

import dataclasses
import glob
import io
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from suffixspec_index.errors import NoCompletionsError, TraceError, TraceFormatError
from suffixspec_traces.model import ReadReport, Session, SkippedLine
from suffixspec_traces.readers import Source, TraceReader, detect, reader_named, readers

_PLAUSIBLE = {".json", ".jsonl", ".ndjson", ".traj", ".parquet", ".gz", ".zst", ".log"}
_GLOB_CHARACTERS = "*?["
STDIN = "-"


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """How far reading has come. Bytes are counted as stored (compressed) and over all files;
    ``total_bytes`` is ``None`` where standard input is among them."""

    path: str
    read_bytes: int
    total_bytes: int | None
    sessions: int


def read_traces(
    paths: Iterable[str | Path],
    *,
    format: str | None = None,
    skip_invalid: bool = False,
    report: ReadReport | None = None,
    progress: Callable[[ReadProgress], None] | None = None,
) -> Iterator[Session]:
    """Read every session under ``paths``, in order.

    Formats and compression (gzip, zstd) are recognised by content. Line formats are streamed: a
    file of any size takes the memory of one line (of one conversation where a format spreads it
    over lines; of the distinct messages where it records single calls). A file that is one JSON
    document is loaded whole.

    Args:
        paths: files, directories (searched recursively, in sorted order, for names that traces
            usually have), glob patterns, and ``-`` for standard input.
        format: the name of a reader to use instead of recognising the format.
        skip_invalid: note records and files that cannot be read in ``report.skipped`` and go on.
        report: filled in while reading.
        progress: called after every session and every file.

    Yields:
        Sessions with distinct ids: one that came before gets ``#2``, ``#3``...

    Raises:
        TraceError: a path does not exist or holds no trace file, or a record cannot be read; with
            path, 1-based line and field.
        TraceFormatError: a file is of no known format, or ``format`` names none.
        NoCompletionsError: nothing in a file was written by a model, and why. With
            ``skip_invalid`` only if that is so of every file.
    """
    forced = reader_named(format) if format is not None else None
    files = _files(paths)
    reading = _Reading(
        files, forced, report if report is not None else ReadReport(), skip_invalid, progress
    )
    return reading.sessions()


class _Reading:
    """One pass over the files."""

    def __init__(
        self,
        files: list[str],
        forced: TraceReader | None,
        report: ReadReport,
        skip_invalid: bool,
        progress: Callable[[ReadProgress], None] | None,
    ) -> None:
        self._files = files
        self._forced = forced
        self._report = report
        self._skip_invalid = skip_invalid
        self._progress = progress
        self._ids: dict[str, int] = {}
        self._before = 0  # bytes of the files already read
        self._total = None if STDIN in files else sum(Path(f).stat().st_size for f in files)
        self._empty: NoCompletionsError | None = None

    def sessions(self) -> Iterator[Session]:
        generated, already = 0, len(self._report.skipped)
        for file in self._files:
            with self._noted(), _opened(file) as raw:
                self._report.files += 1
                for session in self._file(file, raw):
                    generated += session.generated_messages
                    yield session
                    self._advance(file, raw)
                self._advance(file, raw)
                self._before += _position(raw)
        skipped = self._report.skipped[already:]
        if not generated and skipped:
            raise self._empty or _all_skipped(skipped)

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """Note a file that cannot be read at all, where that is asked for."""
        try:
            yield
        except TraceError as error:
            if not self._skip_invalid:
                raise
            if isinstance(error, NoCompletionsError):
                self._empty = self._empty or error
            path = "" if error.path is None else str(error.path)
            self._report.skipped.append(SkippedLine(path, error.line, error.reason))

    def _file(self, file: str, raw: BinaryIO) -> Iterator[Session]:
        skipped = self._report.skipped if self._skip_invalid else None
        source = Source(raw, file, skipped=skipped)
        found = detect(source.sample)
        reader = self._forced or found
        if reader is None:
            raise _unknown_format(source)
        doubt = ""
        if found is not None and found is not reader:
            doubt = f" (the content looks like {found.name}, not {reader.name})"
        generated = sessions = 0
        skipped_before = len(self._report.skipped)
        try:
            for session in reader.read(source):
                sessions += 1
                generated += session.generated_messages
                yield self._counted(session)
        except TraceError as error:
            if not doubt or sessions:
                raise
            reason = error.reason + doubt
            raise TraceFormatError(reason, path=error.path, line=error.line) from error
        if generated:
            return
        if not sessions and len(self._report.skipped) > skipped_before:
            raise _all_skipped(self._report.skipped[skipped_before:])
        reason = f"no generated message found ({sessions} sessions of the format {reader.name}): "
        raise NoCompletionsError(reason + reader.empty_hint + doubt, path=source.path)

    def _counted(self, session: Session) -> Session:
        self._report.sessions += 1
        self._report.formats[session.format] = self._report.formats.get(session.format, 0) + 1
        return dataclasses.replace(session, id=self._distinct(session.id))

    def _distinct(self, name: str) -> str:
        candidate = name
        while candidate in self._ids:
            self._ids[name] += 1
            candidate = f"{name}#{self._ids[name]}"
        self._ids[candidate] = 1
        return candidate

    def _advance(self, file: str, raw: BinaryIO) -> None:
        if self._progress is not None:
            done = self._before + _position(raw)
            self._progress(ReadProgress(file, done, self._total, self._report.sessions))


def _all_skipped(skipped: list[SkippedLine]) -> NoCompletionsError:
    first = skipped[0]
    return NoCompletionsError(
        f"nothing could be read: {len(skipped)} records or files are invalid, the first one: "
        f"{first.reason}",
        path=first.path,
        line=first.line,
    )


def _unknown_format(source: Source) -> TraceError:
    """Why no reader knows the file: broken JSON says more than an unknown shape."""
    if not source.sample.records:
        try:
            for _ in source.records():
                pass
        except TraceError as error:
            return TraceFormatError(error.reason, path=error.path, line=error.line)
    names = ", ".join(reader.name for reader in readers())
    return TraceFormatError(
        f"the format is not recognised; force one with --format ({names})", path=source.path
    )


@contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    if file == STDIN:
        yield sys.stdin.buffer
        return
    with ExitStack() as stack:
        try:
            raw = stack.enter_context(Path(file).open("rb"))
        except OSError as error:
            raise TraceError(f"cannot be opened: {error.strerror}", path=file) from error
        yield raw


def _position(raw: BinaryIO) -> int:
    try:
        return raw.tell()
    except (OSError, io.UnsupportedOperation):
        return 0  # a pipe


def _files(paths: Iterable[str | Path]) -> list[str]:
    """The files that the paths stand for, each once.

    Raises:
        TraceError: a path matches nothing, or a directory holds no file with a plausible name.
    """
    found: dict[str, None] = {}
    for path in paths:
        name = str(path)
        if name == STDIN:
            found[STDIN] = None
            continue
        for file in _expanded(name):
            found[str(file)] = None
    if not found:
        raise TraceError("no path was given; pass a file, a directory, a glob pattern or -")
    return list(found)


def _expanded(name: str) -> list[Path]:
    path = Path(name)
    if path.is_dir():
        return _inside(path)
    if path.exists():
        return [path]
    if not any(character in name for character in _GLOB_CHARACTERS):
        raise TraceError("does not exist", path=name)
    matches = [Path(match) for match in sorted(_matches(name))]
    files = [file for match in matches for file in ([match] if match.is_file() else _inside(match))]
    if not files:
        raise TraceError("the pattern matches no file", path=name)
    return files


def _matches(pattern: str) -> list[str]:
    return glob.glob(pattern, recursive=True)  # noqa: PTH207  # Path.glob takes no absolute pattern


def _inside(directory: Path) -> list[Path]:
    files = [
        file
        for file in sorted(directory.rglob("*"))
        if file.suffix.lower() in _PLAUSIBLE and file.is_file()
    ]
    if not files:
        suffixes = ", ".join(sorted(_PLAUSIBLE))
        raise TraceError(f"the directory holds no file ending in {suffixes}", path=directory)
    return files
