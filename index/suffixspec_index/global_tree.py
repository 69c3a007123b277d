"""What requests put into a namespace's global tree, told to whoever listens.

A listener is how an index is shared: it hears of everything that was said *here*, in the order in
which it entered the tree and under the index's write lock, so that what it is told and what the
tree holds never disagree. What came from elsewhere enters the tree by another door
(:mod:`suffixspec_index.sharing.incoming`) and is not told again.
"""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.tree import SuffixTree

_NOTHING = np.empty(0, np.int32)


class Listener(Protocol):
    """Is called under the index's write lock: be quick, never block, never call the index.

    ``tokens`` are only lent: copy them. ``sequence`` names a sequence that is shared in pieces.
    """

    def sequence(self, tokens: NDArray[np.int32], at_time: float) -> None:
        """A finished sequence entered the tree."""

    def chunk(
        self, sequence: int, offset: int, tokens: NDArray[np.int32], at_time: float, *, final: bool
    ) -> None:
        """A piece of a live sequence entered it, ``offset`` tokens after its start."""

    def discard(self, sequence: int) -> None:
        """A sequence that was shared in pieces was taken back."""

    def purge(self, before: float | None) -> None:
        """Everything, or everything said before a time, was forgotten."""


class GlobalTree:
    """The writing side of the global tree. The index's write lock is held in every call.

    Args:
        tree: the tree.

    Attributes:
        listener: is told what is said here; ``None``: nobody listens.
    """

    def __init__(self, tree: SuffixTree) -> None:
        self.tree = tree
        self.listener: Listener | None = None

    def insert(self, tokens: NDArray[np.int32]) -> None:
        """A finished sequence. Errors are those of :meth:`SuffixTree.insert`."""
        now = _now()
        self.tree.insert(tokens, at_time=now)
        if self.listener is not None:
            self.listener.sequence(tokens, now)

    def share(self, sequence: int | None, tokens: NDArray[np.int32]) -> int:
        """A piece of a live sequence, the first where ``sequence`` is ``None``; returns its id."""
        now = _now()
        if sequence is None:
            offset = 0
            sequence = self.tree.open(tokens, at_time=now)
        else:
            offset = self.tree.sequences[sequence].tokens
            self.tree.extend(sequence, tokens)
        if self.listener is not None:
            self.listener.chunk(sequence, offset, tokens, now, final=False)
        return sequence

    def close(self, sequence: int, tokens: NDArray[np.int32]) -> None:
        """The last piece of a live sequence."""
        offset = self.tree.sequences[sequence].tokens
        self.tree.extend(sequence, tokens)
        self.tree.close(sequence)
        if self.listener is not None:
            self.listener.chunk(sequence, offset, tokens, _now(), final=True)

    def discarded(self, sequence: int) -> None:
        """Say that what was shared of a live sequence is taken back."""
        if self.listener is not None:
            self.listener.discard(sequence)

    def leave(self, sequence: int) -> None:
        """Say that no further piece of a sequence will come; it is about to be forgotten."""
        if self.listener is not None:
            offset = self.tree.sequences[sequence].tokens
            self.listener.chunk(sequence, offset, _NOTHING, _now(), final=True)

    def purged(self, before: float | None) -> None:
        """Say that everything, or what was said before a time, is forgotten."""
        if self.listener is not None:
            self.listener.purge(before)

    def older(self, before: float) -> list[int]:
        """The sequences that were said before a time. O(sequences)."""
        return [s.id for s in self.tree.sequences.values() if s.time < before]


def _now() -> float:
    """To the microsecond, as logs keep it: every replica forgets at the same moment."""
    return round(time.time(), 6)
