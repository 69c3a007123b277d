"""The contract of a trace reader and the registry of all of them.

A reader turns one format into sessions. It says by content whether a file is of its format
(:meth:`TraceReader.sniff`), and reads it record by record (:meth:`TraceReader.read`). To add a
format, write one file with one class under :func:`register` and import it at the package's door.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, TypeVar

from suffixspec_index.errors import TraceFormatError
from suffixspec_traces.model import Session
from suffixspec_traces.readers.source import Sample, Source


class TraceReader(ABC):
    """Reads one trace format.

    Attributes: ``name`` (what ``--format`` takes and ``Session.format`` holds), ``description``
    (one line for people), ``empty_hint`` (why a file of this format may hold no model output, and
    what to do about it).
    """

    name: ClassVar[str]
    description: ClassVar[str]
    empty_hint: ClassVar[str] = "no assistant message in it was written by a model"

    @abstractmethod
    def sniff(self, sample: Sample) -> bool:
        """Whether the beginning of a file is of this format.

        Readers exclude one another: at most one says yes. Must not raise, whatever the content.
        """

    @abstractmethod
    def read(self, source: Source) -> Iterator[Session]:
        """Yield the sessions of a file in recorded order.

        Every assistant message the model wrote in a session is flagged ``generated``, once.

        Raises:
            TraceError: a field is missing or of the wrong type; with path, line and field. Where
                the source skips invalid records, it is told instead and reading goes on.
            NoCompletionsError: the format holds no model output.
        """


_READERS: dict[str, TraceReader] = {}

_Reader = TypeVar("_Reader", bound=type[TraceReader])


def register(reader: _Reader) -> _Reader:
    """Class decorator: make a reader known under its ``name``."""
    assert reader.name not in _READERS, f"two readers are called {reader.name}"
    _READERS[reader.name] = reader()
    return reader


def readers() -> tuple[TraceReader, ...]:
    """All readers, sorted by name."""
    return tuple(_READERS[name] for name in sorted(_READERS))


def reader_named(name: str) -> TraceReader:
    """The reader of this name.

    Raises:
        TraceFormatError: there is none; the message lists the names.
    """
    if name not in _READERS:
        raise TraceFormatError(
            f"format: no reader is called {name!r}; use one of {', '.join(sorted(_READERS))}"
        )
    return _READERS[name]


def detect(sample: Sample) -> TraceReader | None:
    """The reader whose format the sample is of, by content; ``None`` where no reader knows it."""
    for reader in readers():
        if reader.sniff(sample):
            return reader
    return None
