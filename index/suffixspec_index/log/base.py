"""The contract of a sequence log: the record of what every replica has finished saying.

The log is the truth; an index is what somebody built from it. One log holds many namespaces that
never mix. Within a namespace records have one order, the same for every reader, and a reader keeps
its place as a *position*: an opaque text that only the log itself understands.

What an implementation promises:

1. ``append`` returns once the records are as durable as the log's settings say, and raises where
   they may not be. Then they may have been written nevertheless (a reply can be lost), so writers
   send them again and readers leave out what they know already, by ``(origin, number)``.
2. ``read`` yields records in order, each once, from any position that ``append``, ``read`` or
   ``start`` gave. It never yields a record that was damaged: those are counted and left out.
3. ``purge`` removes older records for good and leaves a mark in their place. Readers that had read
   them find the mark and forget them too.
4. Every method may be called from any thread. All of them may block, so they belong in background
   threads: never on the path of a request, nor on an event loop.

The tests of the contract are ``tests/index/log/contract.py``; every implementation passes them.
"""

from __future__ import annotations

import math
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from types import TracebackType
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.errors import InputError
from suffixspec_index.namespaces import NamespaceKey
from suffixspec_index.tokens import as_token_array

START = ""
"""The position before the first record of any namespace of any log."""

MAX_RECORD_TOKENS = 1 << 20
"""Longer sequences are published in chunks."""

FOREVER = math.inf


class RecordKind(IntEnum):
    """What a record says. Values are stored: never change one."""

    SEQUENCE = 1  # a finished sequence, whole
    CHUNK = 2  # a piece of one that was shared while it was still being said
    DISCARD = 3  # the sequence whose chunks were shared must be forgotten
    PURGE = 4  # what came before must be forgotten


def _no_tokens() -> NDArray[np.int32]:
    return np.empty(0, np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """One entry of a namespace's log.

    Attributes:
        kind: see :class:`RecordKind`.
        origin: who published it: a random number below 2**63 that a replica draws at each start.
        number: counts the origin's records upwards; gaps are fine. ``(origin, number)`` names a
            record, however often it was sent. Below 2**61, as are sequence and offset.
        sequence: names the sequence among the origin's; all chunks of one share it.
        time: seconds since the epoch when it was said; kept to the microsecond.
        tokens: ``(n,)`` int32 ids, at most :data:`MAX_RECORD_TOKENS`; empty for marks.
        offset: of a chunk: how many tokens of its sequence come before it.
        final: no chunk of this sequence will follow.
        before: of a purge mark: forget what is older than this (seconds since the epoch; infinite:
            everything that stands before the mark).
    """

    kind: RecordKind
    origin: int
    number: int
    sequence: int = 0
    time: float = 0.0
    tokens: NDArray[np.int32] = field(default_factory=_no_tokens)
    offset: int = 0
    final: bool = True
    before: float = FOREVER

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        mine, theirs = _plain(self), _plain(other)
        return mine == theirs and np.array_equal(self.tokens, other.tokens)

    __hash__ = None  # type: ignore[assignment]

    def check(self) -> None:
        """Verify the fields, tokens included. O(tokens).

        Raises:
            InputError: a field is out of range. TokenError: an id is wrong.
        """
        for name, bits in (("origin", 63), ("number", 61), ("sequence", 61), ("offset", 61)):
            value = getattr(self, name)
            if not isinstance(value, int) or not 0 <= value < 1 << bits:
                raise InputError(f"{name}: must be an integer of {bits} bits, got {value!r}")
        if not math.isfinite(self.time) or math.isnan(self.before):
            raise InputError(f"time, before: must be times, got {self.time!r}, {self.before!r}")
        if len(self.tokens) > MAX_RECORD_TOKENS:
            raise InputError(
                f"tokens: a record holds at most {MAX_RECORD_TOKENS} tokens, got "
                f"{len(self.tokens)}; publish the sequence in chunks"
            )
        as_token_array(self.tokens, field="tokens")


def _plain(record: Record) -> tuple[object, ...]:
    return (
        record.kind,
        record.origin,
        record.number,
        record.sequence,
        record.time,
        record.offset,
        record.final,
        record.before,
    )


def new_origin() -> int:
    """A random origin. Two replicas draw the same one with a chance of about 1e-19."""
    return secrets.randbits(63)


@dataclass(frozen=True, slots=True)
class Batch:
    """What a read found in one namespace.

    Attributes:
        key: the namespace.
        records: in order; may be empty where only the position moved (damaged records, say).
        position: read on from here.
        more: more records are there already.
        reset: the position that was asked for is none of this log's (it was emptied, replaced or
            set back), so this is its beginning.
        missed: records between the position that was asked for and this were removed by the log's
            byte or age budget before they were read.
        damaged: how many damaged frames were left out.
    """

    key: NamespaceKey
    records: Sequence[Record]
    position: str
    more: bool = False
    reset: bool = False
    missed: bool = False
    damaged: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of all records."""
        return sum(len(record.tokens) for record in self.records)


@dataclass(frozen=True, slots=True)
class LogStatistics:
    """Sizes of one namespace in the log; what an implementation cannot know cheaply is ``None``.

    ``bytes`` is what is stored, ``first_time`` and ``last_time`` are of the oldest and newest
    records (0.0: none), ``damaged`` the damaged frames found so far, ``trimmed`` the records that
    the log's budget removed.
    """

    records: int
    bytes: int
    tokens: int | None = None
    first_time: float = 0.0
    last_time: float = 0.0
    damaged: int = 0
    trimmed: int | None = None

    @property
    def bytes_per_token(self) -> float | None:
        """Stored bytes by tokens; ``None`` where unknown."""
        return self.bytes / self.tokens if self.tokens else None


class SequenceLog(ABC):
    """See the module docstring."""

    scheme: ClassVar[str]
    url: str
    """Where it is, without passwords: for messages, metrics and readiness."""

    @abstractmethod
    def append(self, key: NamespaceKey, records: Sequence[Record]) -> str:
        """Write records at the end of a namespace, which comes into being with the first.

        Returns the position after them. All or nothing, as far as readers can see.

        Raises:
            InputError, TokenError: a record is wrong. Nothing is written then.
            LogUnavailableError, LogRefusedError: not written, as far as is known. Send them again.
            LogClosedError: the log is closed.
        """

    @abstractmethod
    def read(
        self,
        cursors: Mapping[NamespaceKey, str],
        *,
        max_bytes: int = 1 << 20,
        wait: float = 0.0,
    ) -> list[Batch]:
        """Read what follows each namespace's position.

        Args:
            cursors: a position for each namespace that is of interest; unknown namespaces are
                empty.
            max_bytes: about how many stored bytes to take per namespace; where there is anything,
                at least one append's records.
            wait: seconds to wait where there is nothing.

        Returns:
            A batch for each namespace that has something to say; empty after the wait. Records'
            ``tokens`` belong to the caller.

        Raises:
            LogUnavailableError, LogRefusedError: cannot be read now.
            LogFormatError: something was written by another version. LogClosedError: it is closed.
        """

    @abstractmethod
    def namespaces(self) -> list[NamespaceKey]:
        """The namespaces that hold anything, in no particular order.

        Raises:
            LogUnavailableError, LogRefusedError, LogClosedError: as for :meth:`read`.
        """

    @abstractmethod
    def purge(self, key: NamespaceKey, *, before: float = FOREVER, origin: int, number: int) -> str:
        """Leave a purge mark, and remove for good what it makes obsolete.

        Args:
            key: the namespace; an unknown one gets a mark too, because replicas may know more.
            before: forget what is older (seconds since the epoch); infinite: everything so far.
            origin, number: of the mark; see :class:`Record`.

        Returns:
            The position after the mark.

        Raises:
            As for :meth:`append`. Where the mark was left and removing failed, the log tries again
            with the next purge; readers do what the mark says in any case.
        """

    @abstractmethod
    def statistics(self, key: NamespaceKey) -> LogStatistics:
        """Sizes of a namespace; zeros for an unknown one. Errors are those of :meth:`read`."""

    @abstractmethod
    def behind(self, key: NamespaceKey, position: str) -> int:
        """About how many records follow a position. Errors are those of :meth:`read`."""

    def recent(self, key: NamespaceKey, tokens: int) -> str:
        """A position after which about the newest ``tokens`` tokens stand: where to start reading
        for an index that cannot hold more. :data:`START` where they are fewer, or where the log
        cannot tell. Errors are those of :meth:`read`."""
        return START

    @staticmethod
    def life(position: str) -> str:
        """What positions have in common until the log is emptied, replaced or set back: all
        implementations write it before the first dot. Empty for :data:`START`."""
        return position.partition(".")[0]

    @abstractmethod
    def check(self) -> None:
        """Whether the log can be reached and used now; cheap enough for a readiness probe.

        Raises:
            LogUnavailableError, LogRefusedError, LogFormatError, LogClosedError: it cannot.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of files and connections; waiting reads return at once. Calling it twice is fine.
        Whatever was acknowledged stays."""

    def records(
        self, key: NamespaceKey, position: str = START, *, max_bytes: int = 1 << 20
    ) -> Iterator[Batch]:
        """All batches of a namespace from a position to the present end."""
        while True:
            batches = self.read({key: position}, max_bytes=max_bytes)
            if not batches:
                return
            yield batches[0]
            position = batches[0].position
            if not batches[0].more:
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def purge_mark(*, origin: int, number: int, before: float = FOREVER) -> Record:
    """A purge mark of the present."""
    return Record(RecordKind.PURGE, origin, number, time=time.time(), before=before)


def is_obsolete(record: Record, before: float) -> bool:
    """Whether a purge mark with this ``before`` that stands later removes a record. A mark is
    removed by any later one that reaches as far."""
    if record.kind is RecordKind.PURGE:
        return record.before <= before
    return record.time < before
