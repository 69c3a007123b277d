"""A log as lines of JSON: to keep a copy, to look at it, to move from one kind of log to another.

```
{"format": "suffixspec log", "version": 1}
{"namespace": {"tenant": "...", "model": "...", "tokenizer": "...", "adapter": ""}}
{"kind": "sequence", "origin": 7, "number": 1, "sequence": 1, "time": 1700000000.25, "tokens": [1]}
{"kind": "chunk", ..., "offset": 320, "final": false}
```

Records belong to the namespace above them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from suffixspec_index.errors import InputError, LogFormatError
from suffixspec_index.log.base import (
    FOREVER,
    START,
    Record,
    RecordKind,
    SequenceLog,
    new_origin,
)
from suffixspec_index.log.seen import Seen
from suffixspec_index.namespaces import NamespaceKey
from suffixspec_index.tokens import as_token_array

VERSION = 1
_FORMAT = "suffixspec log"
_BATCH_TOKENS = 1 << 16


@dataclass(slots=True)
class Verified:
    """What was found in one namespace of a log."""

    records: int = 0
    tokens: int = 0
    sequences: int = 0
    unfinished: int = 0
    """Sequences whose last chunk is not there: still being said, or their replica ended."""
    orphans: int = 0
    """Chunks whose beginning was removed by the log's budget: readers leave them out."""
    duplicates: int = 0
    """Records that were sent twice: readers leave them out."""
    marks: int = 0
    damaged: int = 0


Progress = Callable[[int], None]
"""Called with how many records more were dealt with."""


def export_lines(
    log: SequenceLog, keys: Sequence[NamespaceKey], progress: Progress | None = None
) -> Iterator[str]:
    """The lines of namespaces, each as it is while it is read. Errors are those of the log."""
    yield json.dumps({"format": _FORMAT, "version": VERSION})
    for key in keys:
        yield json.dumps({"namespace": asdict(key)})
        for batch in log.records(key, START):
            for record in batch.records:
                yield json.dumps(_as_json(record))
            if progress is not None:
                progress(len(batch.records))


def import_lines(
    lines: Iterable[str], log: SequenceLog, progress: Progress | None = None
) -> dict[NamespaceKey, int]:
    """Append what lines of :func:`export_lines` say; returns the records per namespace.

    Origins are drawn anew, so that replicas which had read the records and forgotten them since
    take them in again. Records before a wrong line are written.

    Raises:
        LogFormatError: it is something else, or of another version. InputError, TokenError: a line
        is wrong; its number is named. Else the errors of the log.
    """
    writer = _Importer(log, progress)
    rest = iter(lines)
    _check_head(next(rest, ""))
    for number, line in enumerate(rest, start=2):
        if not line.strip():
            continue
        try:
            writer.take(json.loads(line))
        except InputError as error:
            raise type(error)(f"line {number}: {error}") from None
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"line {number}: is no record: {error!r}") from None
    writer.flush()
    return dict(writer.counts)


def verify(log: SequenceLog, key: NamespaceKey, progress: Progress | None = None) -> Verified:
    """Read a namespace to its end and look at everything in it. O(tokens)."""
    found = Verified()
    lengths: dict[tuple[int, int], int] = {}
    seen: defaultdict[int, Seen] = defaultdict(Seen)
    for batch in log.records(key, START):
        found.damaged += batch.damaged
        for record in batch.records:
            found.records += 1
            found.tokens += len(record.tokens)
            if seen[record.origin].add(record.number):
                _count(found, lengths, record)
            else:
                found.duplicates += 1
        if progress is not None:
            progress(len(batch.records))
    found.unfinished = len(lengths)
    return found


def _count(found: Verified, lengths: dict[tuple[int, int], int], record: Record) -> None:
    name = (record.origin, record.sequence)
    match record.kind:
        case RecordKind.PURGE:
            found.marks += 1
        case RecordKind.SEQUENCE:
            found.sequences += 1
        case RecordKind.DISCARD:
            if lengths.pop(name, None) is not None:
                found.sequences -= 1
        case RecordKind.CHUNK:
            if record.offset and lengths.get(name) != record.offset:
                lengths.pop(name, None)
                found.orphans += 1
                return
            found.sequences += not record.offset
            lengths[name] = record.offset + len(record.tokens)
            if record.final:
                del lengths[name]


def _check_head(line: str) -> None:
    try:
        head = json.loads(line)
    except ValueError:
        head = None
    if not isinstance(head, dict) or head.get("format") != _FORMAT:
        raise LogFormatError("line 1: is not the head of an exported log; name another file")
    if head.get("version") != VERSION:
        raise LogFormatError(
            f"line 1: is of version {head.get('version')!r}, this program reads version {VERSION}; "
            "update suffixspec"
        )


def _as_json(record: Record) -> dict[str, Any]:
    content: dict[str, Any] = {
        "kind": record.kind.name.lower(),
        "origin": record.origin,
        "number": record.number,
        "sequence": record.sequence,
        "time": record.time,
    }
    if record.kind is RecordKind.CHUNK:
        content |= {"offset": record.offset, "final": record.final}
    if record.kind is RecordKind.PURGE:
        content["before"] = None if record.before == FOREVER else record.before
    else:
        content["tokens"] = record.tokens.tolist()
    return content


class _Importer:
    """Collects records of one namespace and appends them in batches."""

    def __init__(self, log: SequenceLog, progress: Progress | None) -> None:
        self.counts: dict[NamespaceKey, int] = defaultdict(int)
        self._log, self._progress = log, progress
        self._key: NamespaceKey | None = None
        self._origins: dict[int, int] = defaultdict(new_origin)
        self._waiting: list[Record] = []
        self._tokens = 0

    def take(self, content: dict[str, Any]) -> None:
        """One line."""
        if "namespace" in content:
            self.flush()
            self._key = NamespaceKey(**content["namespace"])
            self._origins.clear()
            return
        if self._key is None:
            raise InputError("namespace: none was named before the first record")
        record = self._record(content)
        record.check()
        if record.kind is RecordKind.PURGE:
            self.flush()
            self._log.purge(
                self._key, before=record.before, origin=record.origin, number=record.number
            )
            self._done(1)
            return
        self._waiting.append(record)
        self._tokens += len(record.tokens)
        if self._tokens >= _BATCH_TOKENS:
            self.flush()

    def flush(self) -> None:
        """Append what waits."""
        if self._waiting and self._key is not None:
            self._log.append(self._key, self._waiting)
            self._done(len(self._waiting))
        self._waiting, self._tokens = [], 0

    def _done(self, records: int) -> None:
        assert self._key is not None
        self.counts[self._key] += records
        if self._progress is not None:
            self._progress(records)

    def _record(self, content: dict[str, Any]) -> Record:
        kind = RecordKind[str(content["kind"]).upper()]
        before = content.get("before")
        tokens = as_token_array(content.get("tokens", []), field="tokens")
        return Record(
            kind,
            self._origins[content["origin"]],
            content["number"],
            content["sequence"],
            float(content["time"]),
            np.array(tokens, np.int32),
            content.get("offset", 0),
            bool(content.get("final", True)),
            FOREVER if before is None else float(before),
        )
