"""What an interrupted recording has so far: one file that finished sessions are added to.

The first line says how the recording is made; every other line is a session, written as
:func:`~suffixspec_traces.record.writer.session_record` does. A session is one write, flushed to the
disk, so that a killed process leaves at worst one broken line at the end, which is dropped.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import orjson

from suffixspec_index.errors import ConfigError

Record = dict[str, Any]


class RecordingJournal:
    """The finished sessions of a recording under way.

    Args:
        path: the file; made with its folder at the first :meth:`add`.
        settings: how the recording is made, JSON-ready. A journal made otherwise is not gone on
            with: its sessions would not be those that this recording makes.

    Attributes:
        records: session id -> record, in the order of ending; those of an earlier run included.

    Raises:
        ConfigError: the file is there and belongs to a recording made otherwise, or to none.
    """

    def __init__(self, path: Path, settings: Mapping[str, object]) -> None:
        self.path = path
        self.records: dict[str, Record] = {}
        self._head = orjson.dumps({"recording": dict(settings)})
        self._file: IO[bytes] | None = None
        self._whole = 0  # bytes up to the end of the last whole line
        if path.exists():
            self._read()

    def _read(self) -> None:
        lines = self.path.read_bytes().splitlines(keepends=True)
        if not lines or lines[0].rstrip(b"\n") != self._head:
            raise ConfigError(
                f"{self.path}: an interrupted recording made with other settings; finish it with "
                "those, or remove the file to begin anew"
            )
        for line in lines:
            if not line.endswith(b"\n"):
                break  # the process was killed while it wrote
            self._whole += len(line)
            record = orjson.loads(line)
            if "id" in record:
                self.records[record["id"]] = record

    def add(self, record: Record) -> None:
        """Keep a finished session. One write and one ``fsync``."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("r+b" if self._whole else "wb")
            self._file.truncate(self._whole)
            self._file.seek(self._whole)
            if not self._whole:
                self._file.write(self._head + b"\n")
        self._file.write(orjson.dumps(record) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.records[record["id"]] = record

    def close(self) -> None:
        """Close the file; it stays."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def remove(self) -> None:
        """The recording is complete and written elsewhere: the file goes."""
        self.close()
        self.path.unlink(missing_ok=True)
