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
        *,
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

    def is_exceeded(self) -> bool:
        """Whether the global tree should give something back."""
        return self.nbytes > self._most_bytes or len(self._world) > self._most_sequences

    def is_near(self, requests: int) -> bool:
        """Whether so many requests more could exceed it."""
        return self.nbytes > self._most_bytes - self._most_bytes // 8 or bool(
            self._most_sequences and len(self._world) + requests > self._most_sequences
        )

    def enforce(self) -> None:
        """Forget the oldest until the index fits."""
        if self.rebuilding:
            return
        most = self._most_sequences
        if most and len(self._world) > most:
            self._evict_oldest(len(self._world) - most + most // 10)
        while self.nbytes > self._most_bytes:
            world_bytes = self._forest.nbytes(self._world.row)
            idle = self._sessions.oldest_idle()
            own_bytes = self._forest.nbytes_total - world_bytes
            if idle is not None and own_bytes >= world_bytes:
                self._evict_session(idle)
            elif self._evict_oldest(max(len(self._world) // 4, 1)):
                continue
            elif idle is not None:
                self._evict_session(idle)
            else:
                break  # what is left is in use

    def _evict_session(self, session_id: str) -> None:
        self._sessions.end(session_id)
        self.evicted_sessions += 1

    def _evict_oldest(self, n: int) -> int:
        """Evict the ``n`` oldest sequences that are closed; returns how many there were."""
        closed = [s.id for s in self._world.sequences.values() if not s.is_open]
        if not closed:
            return 0
        evicted = self._world.evict(closed[:n])
        self.evicted_sequences += evicted
        self._requests.restart_cursors()
        return evicted
