"""One trace file as readers see it: a sample to recognise it by, and its records.

A file is either lines of JSON, read one at a time, or one JSON document, loaded whole; a Parquet
file is its rows. Which of them it is follows from the content, never from the name.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from itertools import islice
from pathlib import PurePath
from typing import BinaryIO

from suffixspec_index.errors import NoCompletionsError, TraceError
from suffixspec_traces.model import SkippedLine
from suffixspec_traces.readers.nodes import Node, parse_json
from suffixspec_traces.readers.streams import PARQUET_MAGIC, STREAM_ERRORS, open_plain

_SAMPLE_RECORDS = 64
_SAMPLE_BYTES = 1 << 20
_STDIN = "<stdin>"
_PAGE = {"data", "meta", "object", "total", "page", "page_size", "total_pages", "has_more"}
_SUFFIXES = {".gz", ".zst", ".json", ".jsonl", ".ndjson", ".traj", ".parquet"}


@dataclass(frozen=True, slots=True)
class Sample:
    """The beginning of a file. ``records`` holds the parsed lines (broken ones left out) or the
    one document, ``text`` the first lines as they stand, at least one of them complete."""

    records: tuple[object, ...]
    text: str = ""

    def objects(self) -> list[dict[str, object]]:
        """The first objects, those inside a top-level list or a ``data`` page included."""
        nodes = (item for record in self.records for item in _unwrapped(Node(record)))
        found = (n.value for n in islice(nodes, 4 * _SAMPLE_RECORDS))
        return [value for value in found if isinstance(value, dict)]


@dataclass(frozen=True, slots=True)
class Record:
    """One line or document, or one element of a list in it. ``line`` is 1-based, ``None`` where
    the file is one document."""

    node: Node
    line: int | None


class Source:
    """A trace file being read.

    Args:
        raw: the bytes, compressed or not; read once, forward only.
        path: shown in errors and kept in ``Session.path``; ``-`` is standard input.
        skipped: where invalid records are noted; ``None`` makes them raise.

    Raises:
        TraceError: the file is empty, or not text.
    """

    def __init__(
        self, raw: BinaryIO, path: str, *, skipped: list[SkippedLine] | None = None
    ) -> None:
        self.path = _STDIN if path == "-" else path
        self.stem = _stem(path)
        self._skipped = skipped
        self._failure: TraceError | None = None  # the stream broke while the head was taken
        self._rows: Iterator[dict[str, object]] | None = None
        try:
            self._stream, magic = open_plain(raw)
        except TraceError as error:
            raise TraceError(error.reason, path=self.path) from None
        except STREAM_ERRORS as error:
            raise TraceError(_damaged(error), path=self.path) from error
        self._head: list[tuple[int, bytes]] = []
        self._document: bytes | None = None
        if magic == PARQUET_MAGIC:
            self._rows = self._parquet_rows()
            self.sample = self._sample_of_rows()
        else:
            self._take_head()
            self.sample = self._sample_of_text()

    @property
    def skips_invalid(self) -> bool:
        """Whether invalid records are noted and left out instead of raising."""
        return self._skipped is not None

    @contextmanager
    def checked(self, line: int | None) -> Iterator[None]:
        """Give a TraceError raised inside its path and line, or note it and go on.

        Raises:
            TraceError: unless invalid records are skipped.
            NoCompletionsError: always; a format is not a record.
        """
        try:
            yield
        except RecursionError:
            self._reject(TraceError("a value is nested too deeply"), line)
        except TraceError as error:
            self._reject(error, line)

    def _reject(self, error: TraceError, line: int | None) -> None:
        where = line if line is not None else error.line
        if self._skipped is None or isinstance(error, NoCompletionsError):
            raise type(error)(error.reason, path=self.path, line=where) from error
        self._skipped.append(SkippedLine(self.path, where, error.reason))

    def records(self) -> Iterator[Record]:
        """The lines, parsed one at a time, or the one document. Can be consumed once."""
        if self._rows is not None:
            for number, row in enumerate(self._rows, start=1):
                yield Record(Node(row), number)
        elif self._document is not None:
            with self.checked(None):
                if not self.sample.records:
                    parse_json(self._document)  # says what is wrong with it
                yield from (Record(Node(value), None) for value in self.sample.records)
        else:
            yield from self._line_records()

    def items(self) -> Iterator[Record]:
        """Like :meth:`records`, with the elements of top-level lists and ``data`` pages each as a
        record of its own."""
        for record in self.records():
            for node in _unwrapped(record.node):
                yield Record(node, record.line)

    def _line_records(self) -> Iterator[Record]:
        with self.checked(None):  # the stream itself may break
            for number, line in self._all_lines():
                node = None
                with self.checked(number):
                    node = Node(parse_json(line))
                if node is not None:
                    yield Record(node, number)

    def _all_lines(self) -> Iterator[tuple[int, bytes]]:
        yield from self._head
        if self._failure is not None:
            raise self._failure
        yield from self._stream_lines(self._head[-1][0] if self._head else 0)

    def _stream_lines(self, number: int) -> Iterator[tuple[int, bytes]]:
        """Numbered lines that are not blank, from the stream's position on."""
        while True:
            try:
                line = self._stream.readline()
            except STREAM_ERRORS as error:
                raise TraceError(_damaged(error), line=number + 1) from error
            if not line:
                return
            number += 1
            if line := line.strip():
                yield number, line

    def _take_head(self) -> None:
        size = 0
        try:
            for number, line in self._stream_lines(0):
                self._head.append((number, line))
                size += len(line)
                full = size >= _SAMPLE_BYTES and len(self._head) >= 2
                if full or len(self._head) >= _SAMPLE_RECORDS:
                    break
        except TraceError as error:
            self._failure = error
        if not self._head:
            reason = self._failure.reason if self._failure else "the file is empty"
            raise TraceError(reason, path=self.path)
        if _is_document([line for _, line in self._head[:2]]):
            self._document = self._load_document()

    def _load_document(self) -> bytes:
        if self._failure is not None:
            raise TraceError(self._failure.reason, path=self.path, line=self._failure.line)
        try:
            rest = self._stream.read()
        except STREAM_ERRORS as error:
            raise TraceError(_damaged(error), path=self.path) from error
        # blank lines were dropped: put them back, so that an error names the right line
        parts: list[bytes] = []
        for number, line in self._head:
            parts.extend([b""] * (number - 1 - len(parts)))
            parts.append(line)
        return b"\n".join(parts) + b"\n" + rest

    def _sample_of_text(self) -> Sample:
        candidates = [line for _, line in self._head]
        text = b"\n".join(candidates)[: 1 << 16].decode("utf-8", "replace")
        if self._document is not None:
            candidates = [self._document]
        records: list[object] = []
        for candidate in candidates:
            try:
                records.append(parse_json(candidate))
            except TraceError:
                continue  # reading it will say so
        return Sample(tuple(records), text)

    def _parquet_rows(self) -> Iterator[dict[str, object]]:
        import pyarrow  # slow to import, and seldom needed
        import pyarrow.parquet

        try:
            table = pyarrow.parquet.ParquetFile(io.BytesIO(self._stream.read()))
            for batch in table.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    yield {str(key): _plain(value) for key, value in row.items()}
        except (pyarrow.ArrowException, ValueError, *STREAM_ERRORS) as error:
            raise TraceError(f"the Parquet file is damaged: {error}", path=self.path) from error

    def _sample_of_rows(self) -> Sample:
        assert self._rows is not None
        first = list(islice(self._rows, _SAMPLE_RECORDS))
        if not first:
            raise TraceError("the file is empty", path=self.path)
        self._rows = iter(_chained(first, self._rows))
        return Sample(tuple(first))


def _chained(
    first: list[dict[str, object]], rest: Iterable[dict[str, object]]
) -> Iterator[dict[str, object]]:
    yield from first
    yield from rest


def _plain(value: object) -> object:
    """A Parquet cell as JSON would have it."""
    match value:
        case datetime() | date():
            return value.isoformat()
        case bytes():
            return value.decode("utf-8", "replace")
        case Decimal():
            return float(value)
        case list():
            return [_plain(item) for item in value]
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case _:
            return value


def _is_document(lines: list[bytes]) -> bool:
    """Whether a file that begins with these lines is one JSON document, not a line each.

    A first line that is no JSON by itself opens an indented document, except where the second
    line is a whole object at the left margin: then the first line is just broken.
    """
    first = lines[0]
    if _parses(first):
        return len(lines) == 1 and first.startswith(b"[")
    if first[:1] not in (b"{", b"["):
        return False
    return not (len(lines) > 1 and lines[1].startswith(b"{") and _parses(lines[1]))


def _parses(line: bytes) -> bool:
    try:
        parse_json(line)
    except TraceError:
        return False
    return True


def _unwrapped(node: Node) -> Iterator[Node]:
    if isinstance(node.value, list):
        yield from node.elements()
    elif _is_page(node.value):
        yield from node["data"].elements()
    else:
        yield node


def _is_page(value: object) -> bool:
    """Whether this is an API's answer around a list of records."""
    return isinstance(value, dict) and isinstance(value.get("data"), list) and value.keys() <= _PAGE


def _damaged(error: BaseException) -> str:
    return f"the file cannot be read to its end, it is damaged or cut off: {error}"


def _stem(path: str) -> str:
    """The file's name without the suffixes that say how it is stored."""
    name = PurePath(path).name
    if path == "-":
        return "stdin"
    while (suffix := PurePath(name).suffix.lower()) in _SUFFIXES:
        name = name[: -len(suffix)]
    return name
