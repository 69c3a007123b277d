"""Sizes: of a tree, of a namespace's index."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TreeStatistics:
    """Sizes of a tree. ``bytes`` is what its arrays allocate, ``bytes_per_token`` their quotient
    by the tokens of its sequences."""

    sequences: int
    tokens: int
    windows: int
    nodes: int
    leaves: int
    bytes: int
    depth: int

    @property
    def bytes_per_token(self) -> float:
        """Allocated bytes per indexed token; 0 for an empty tree."""
        return self.bytes / self.tokens if self.tokens else 0.0


@dataclass(frozen=True, slots=True)
class IndexStatistics:
    """Sizes of a namespace's index. Tokens are those of the global tree."""

    sequences: int
    tokens: int
    sessions: int
    requests: int
    nodes: int
    bytes: int
    global_bytes: int
    session_bytes: int
    evicted_sequences: int
    evicted_sessions: int
