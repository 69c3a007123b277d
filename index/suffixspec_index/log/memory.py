"""A log in memory: for tests, and for several indexes of one process."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import ClassVar
from weakref import WeakValueDictionary

from suffixspec_index.errors import ConfigError, LogClosedError, LogRefusedError
from suffixspec_index.log.base import (
    FOREVER,
    START,
    Batch,
    LogStatistics,
    Record,
    SequenceLog,
    is_obsolete,
    purge_mark,
)
from suffixspec_index.log.options import Option, read_options, size
from suffixspec_index.log.positions import new_epoch, ordinal_of, position_of
from suffixspec_index.namespaces import NamespaceKey

_OVERHEAD = 128  # bytes of a record beside its tokens, roughly

_OPTIONS: Mapping[str, Option] = {"max_bytes": size("max_bytes", least=1 << 10)}


@dataclass(slots=True)
class _Stream:
    """One namespace: records with their ordinals, oldest first."""

    entries: deque[tuple[int, Record]] = field(default_factory=deque)
    last: int = 0  # ordinal of the newest record there ever was
    trimmed_to: int = 0  # ordinal of the newest record that the budget removed
    trimmed: int = 0
    bytes: int = 0
    tokens: int = 0

    def add(self, record: Record) -> None:
        self.last += 1
        self.entries.append((self.last, record))
        self._count(record, 1)

    def drop_oldest(self) -> None:
        self.trimmed_to, record = self.entries.popleft()
        self.trimmed += 1
        self._count(record, -1)

    def keep(self, wanted: Callable[[Record], bool]) -> None:
        for _, record in self.entries:
            if not wanted(record):
                self._count(record, -1)
        self.entries = deque(entry for entry in self.entries if wanted(entry[1]))

    def _count(self, record: Record, sign: int) -> None:
        self.tokens += sign * len(record.tokens)
        self.bytes += sign * record_bytes(record)


class _Store:
    """What all logs of one name share."""

    def __init__(self) -> None:
        self.epoch = new_epoch()
        self.streams: dict[NamespaceKey, _Stream] = {}
        self.changed = threading.Condition()


_named: WeakValueDictionary[str, _Store] = WeakValueDictionary()
_named_lock = threading.Lock()


def record_bytes(record: Record) -> int:
    """What a record takes in memory, roughly."""
    return int(record.tokens.nbytes) + _OVERHEAD


def open_memory_log(url: str, *, read_only: bool = False, **options: object) -> MemoryLog:
    """``memory:`` is a log of its own; all ``memory:NAME`` of a process that are open at the same
    time are one.

    Settings: ``max_bytes``, of each namespace (default: no limit).

    Raises:
        ConfigError: a setting is unknown or out of range.
    """
    name, values = read_options(url, "memory:", _OPTIONS, options)
    with _named_lock:
        store = _named.setdefault(name, _Store()) if name else _Store()
    return MemoryLog(store, name=name, read_only=read_only, **values)  # type: ignore[arg-type]


class MemoryLog(SequenceLog):
    """Records in memory, uncompressed. Durable as long as somebody has it open.

    Args:
        store: what to look at; by default a new one.
        name: of the store.
        read_only: refuse to write.
        max_bytes: of each namespace: the oldest records go first. ``None``: no limit.
    """

    scheme: ClassVar[str] = "memory"

    def __init__(
        self,
        store: _Store | None = None,
        *,
        name: str = "",
        read_only: bool = False,
        max_bytes: int | None = None,
    ) -> None:
        if max_bytes is not None and max_bytes < 1:
            raise ConfigError(f"max_bytes: must be positive, got {max_bytes!r}")
        self.url = f"memory:{name}"
        self._store = store or _Store()
        self._read_only = read_only
        self._max_bytes = max_bytes
        self._closed = False

    def append(self, key: NamespaceKey, records: Sequence[Record]) -> str:
        """Keep copies of the records."""
        for record in records:
            record.check()
        with self._changing():
            stream = self._stream(key)
            for record in records:
                stream.add(replace(record, tokens=record.tokens.copy()))
            self._trim(stream)
            return position_of(self._store.epoch, stream.last)

    def read(
        self, cursors: Mapping[NamespaceKey, str], *, max_bytes: int = 1 << 20, wait: float = 0.0
    ) -> list[Batch]:
        """Copies of what follows the positions."""
        ends = time.monotonic() + wait
        with self._store.changed:
            while True:
                self._check_open()
                found = [b for k, p in cursors.items() if (b := self._after(k, p, max_bytes))]
                left = ends - time.monotonic()
                if found or left <= 0:
                    return found
                self._store.changed.wait(left)

    def namespaces(self) -> list[NamespaceKey]:
        """Those that hold records."""
        with self._open():
            return [key for key, stream in self._store.streams.items() if stream.entries]

    def purge(self, key: NamespaceKey, *, before: float = FOREVER, origin: int, number: int) -> str:
        """Remove what is obsolete and leave a mark."""
        mark = purge_mark(origin=origin, number=number, before=before)
        mark.check()
        with self._changing():
            stream = self._stream(key)
            stream.keep(lambda record: not is_obsolete(record, before))
            stream.add(mark)
            return position_of(self._store.epoch, stream.last)

    def statistics(self, key: NamespaceKey) -> LogStatistics:
        """Exact sizes."""
        with self._open():
            stream = self._store.streams.get(key, _Stream())
            entries = stream.entries
            return LogStatistics(
                records=len(entries),
                bytes=stream.bytes,
                tokens=stream.tokens,
                first_time=entries[0][1].time if entries else 0.0,
                last_time=entries[-1][1].time if entries else 0.0,
                trimmed=stream.trimmed,
            )

    def behind(self, key: NamespaceKey, position: str) -> int:
        """Exactly how many records follow."""
        with self._open():
            stream = self._store.streams.get(key, _Stream())
            at = ordinal_of(position, self._store.epoch, stream.last) or 0
            return sum(1 for ordinal, _ in reversed(stream.entries) if ordinal > at)

    def recent(self, key: NamespaceKey, tokens: int) -> str:
        """Counted from the end."""
        with self._open():
            stream = self._store.streams.get(key, _Stream())
            for ordinal, record in reversed(stream.entries):
                tokens -= len(record.tokens)
                if tokens < 0:
                    return position_of(self._store.epoch, ordinal)
        return START

    def check(self) -> None:
        """Raises only once it is closed."""
        with self._open():
            pass

    def close(self) -> None:
        """Let go of the records; they go with the last log of this name."""
        with self._store.changed:
            self._closed = True
            self._store.changed.notify_all()

    @contextmanager
    def _open(self) -> Iterator[None]:
        with self._store.changed:
            self._check_open()
            yield

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._open():
            if self._read_only:
                raise LogRefusedError(f"{self.url}: is opened read-only; open it for writing")
            yield
            self._store.changed.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise LogClosedError(f"{self.url}: is closed; open it again")

    def _stream(self, key: NamespaceKey) -> _Stream:
        return self._store.streams.setdefault(key, _Stream())

    def _trim(self, stream: _Stream) -> None:
        if self._max_bytes is not None:
            while stream.bytes > self._max_bytes and len(stream.entries) > 1:
                stream.drop_oldest()

    def _after(self, key: NamespaceKey, position: str, max_bytes: int) -> Batch | None:
        stream = self._store.streams.get(key, _Stream())
        at = ordinal_of(position, self._store.epoch, stream.last)
        reset = at is None
        at = at or 0
        if at >= stream.last:
            if not reset:
                return None
            return Batch(key, [], position_of(self._store.epoch, 0), reset=True)
        records: list[Record] = []
        taken = 0
        more = False
        # Readers are mostly near the end: count from there where that is nearer.
        behind = min(stream.last - at, len(stream.entries))
        for ordinal, record in islice(stream.entries, len(stream.entries) - behind, None):
            if ordinal <= at:
                continue
            if records and taken + record_bytes(record) > max_bytes:
                more = True
                break
            records.append(replace(record, tokens=record.tokens.copy()))
            taken += record_bytes(record)
            end = ordinal
        if not records:
            end = stream.last
        missed = at < stream.trimmed_to
        return Batch(
            key, records, position_of(self._store.epoch, end), more=more, reset=reset, missed=missed
        )
