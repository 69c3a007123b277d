"""What the monitor looks at instead of being told: the engine's queue and the indexes' sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class EngineState:
    """An engine at one moment.

    Attributes:
        running, waiting: requests that advance, and that wait for their turn.
        cache_used_bytes: keys and values reserved or kept.
        steps: forward passes since it began.
        seconds: where its time went since it began, by part.
        proposer_failures: drafts that were not made because a proposer raised.
    """

    running: int
    waiting: int
    cache_used_bytes: int = 0
    steps: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    proposer_failures: int = 0


@dataclass(frozen=True, slots=True)
class NamespaceState:
    """A namespace's index at one moment. Bytes are allocated ones; tokens, nodes and sequences
    are those of the global tree.

    Attributes:
        max_bytes: its budget; ``None``: none.
    """

    namespace: str
    tenant: str
    model: str
    sequences: int
    tokens: int
    nodes: int
    sessions: int
    requests: int
    bytes: int
    global_bytes: int
    session_bytes: int
    evicted_sequences: int
    evicted_sessions: int
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class SharingState:
    """How far a namespace's sharing is behind.

    Attributes:
        namespace: which.
        lag_seconds: how long ago everything in the log had been read; 0: just now.
        behind_sequences: sequences in the log that were not read yet; ``None``: not known.
        unsent_sequences: own sequences that wait for the log to come back.
        resent_sequences: own sequences that were sent again since the start, after the log had
            lost them.
        dropped_sequences: own sequences that were given up since the start, because too much
            waited.
    """

    namespace: str
    lag_seconds: float
    behind_sequences: int | None = None
    unsent_sequences: int = 0
    resent_sequences: int = 0
    dropped_sequences: int = 0


class Probe(Protocol):
    """Read by the monitor, from any thread, at most about once a second and at each scrape."""

    def engine(self) -> EngineState | None:
        """The engine; ``None``: this process has none. Must not block."""

    def namespaces(self) -> Sequence[NamespaceState]:
        """The indexes; may wait for their locks, so it is called outside the event loop."""

    def sharing(self) -> Sequence[SharingState]:
        """The namespaces that share; may take as long as :meth:`namespaces`."""

    def jobs(self) -> Mapping[tuple[str, str], int]:
        """Jobs that are kept, by kind and state. Must not block."""
