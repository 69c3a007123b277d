"""The budget of an index: its bytes and the number of sequences its global tree remembers.

The index's write lock is held in every call; what only tells sizes reads.
"""

from __future__ import annotations

from suffixspec_index.acceptance import AcceptanceModel
from suffixspec_index.forest import Forest
from suffixspec_index.index_config import IndexConfig
from suffixspec_index.live_requests import LiveRequests
from suffixspec_index.sessions import Sessions
from suffixspec_index.tree import SuffixTree


class Budget:
    """Forgets the oldest where there is too much.

    Args:
        config: says how much there may be.
        forest: of the index, like what follows.
        world: the global tree.
        sessions: the sessions' memories.
        requests: the live requests.
        model: the learned tables.

    Attributes:
        rebuilding: threads that build the global tree anew beside it. They see to the budget.
        evicted_sequences, evicted_sessions: how many were forgotten.
    """

    def __init__(
        self,
        config: IndexConfig,
        forest: Forest,
        world: SuffixTree,
        sessions: Sessions,
        requests: LiveRequests,
        model: AcceptanceModel,
    ) -> None:
        self.rebuilding = 0
        self.evicted_sequences = 0
        self.evicted_sessions = 0
        self._most_bytes = config.max_bytes
        self._most_sequences = config.max_cached_requests
        self._forest = forest
        self._world = world
        self._sessions = sessions
        self._requests = requests
        self._model = model

    @property
    def nbytes(self) -> int:
        """Allocated bytes: trees, request table, learned tables."""
        return int(self._forest.nbytes_total + self._requests.table.nbytes + self._model.nbytes)

    def is_near(self, requests: int) -> bool:
        """Whether so many requests more could exceed it."""
        return self.nbytes > self._most_bytes - self._most_bytes // 8 or bool(
            self._most_sequences and len(self._world) + requests > self._most_sequences
        )

    def enforce(self) -> bool:
        """Forget idle sessions where the index is too large and they weigh the most.

        Returns whether sequences must be forgotten too: that takes long, so the caller does it
        without the lock, with :func:`~suffixspec_index.rebuilding.evict_aside`.
        """
        if self.rebuilding:
            return False  # whoever does that sees to it
        if len(self._world) > self._most_sequences and self._claim():
            return True
        while self.nbytes > self._most_bytes:
            world_bytes = self._forest.nbytes(self._world.row)
            idle = self._sessions.oldest_idle()
            own_bytes = self._forest.nbytes_total - world_bytes
            if (idle is None or own_bytes < world_bytes) and self._claim():
                return True
            if idle is None:
                break  # what is left is in use
            self._sessions.end(idle)
            self.evicted_sessions += 1
        return False

    def oldest(self) -> set[int]:
        """The sequences to forget: a tenth more than are too many, or a quarter of all. None that
        is open. O(sequences)."""
        count, most = len(self._world), self._most_sequences
        n = count - most + most // 10 if count > most else max(count // 4, 1)
        closed = [s.id for s in self._world.sequences.values() if not s.is_open]
        return set(closed[:n])

    def evicted(self, sequences: int) -> bool:
        """They were forgotten, as :meth:`enforce` demanded; returns what that says now."""
        self.rebuilding -= 1
        self.evicted_sequences += sequences
        return self.enforce()

    def _claim(self) -> bool:
        """Whether there is a sequence that could be forgotten; others leave it to the caller."""
        if all(s.is_open for s in self._world.sequences.values()):
            return False
        self.rebuilding += 1
        return True
