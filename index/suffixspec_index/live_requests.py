"""The live requests of an index: their rows in the request table, what they say, what they match.

The index's write lock is held in every call; :meth:`LiveRequests.lookup` and the sizes only read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.errors import IntegrityError, UnknownRequestError
from suffixspec_index.forest import Forest
from suffixspec_index.global_tree import GlobalTree
from suffixspec_index.kernels import draft as D
from suffixspec_index.kernels import layout as L
from suffixspec_index.kernels import step as S
from suffixspec_index.kernels.cursor import CURSOR
from suffixspec_index.sessions import SessionMemory

_UNBOUNDED = 1 << 30


@dataclass(slots=True)
class LiveRequest:
    """What Python keeps of a live request; the rest is a row of the request table."""

    row: int
    session: SessionMemory
    sequence: int | None = None  # the open sequence it is shared as


class LiveRequests:
    """See the module docstring. A handle is never given out twice.

    Args:
        forest: holds the sessions' trees and the global one.
        spoken: where outputs go.

    Attributes:
        table: ``(rows, REQUEST)`` int32, what kernels know of requests; :meth:`open` may move it.
    """

    def __init__(self, forest: Forest, spoken: GlobalTree) -> None:
        self.table: NDArray[np.int32] = np.zeros((8, D.REQUEST), np.int32)
        self._forest = forest
        self._spoken = spoken
        self._by_handle: dict[int, LiveRequest] = {}
        self._free = list(range(7, -1, -1))
        self._next_handle = 1

    def lookup(self, handles: Sequence[int]) -> list[LiveRequest]:
        """The requests of handles. O(handles).

        Raises:
            UnknownRequestError: there is none of a handle.
        """
        try:
            return [self._by_handle[handle] for handle in handles]
        except (KeyError, TypeError):
            known = list(self._by_handle)  # compared, not hashed: a handle may be anything
            unknown = [h for h in handles if h not in known]
            raise UnknownRequestError(
                f"request: no request has the handle {unknown[0]!r}; it never existed or is "
                "finished"
            ) from None

    def open(self, session: SessionMemory, max_tokens: int | None) -> int:
        """Start a request at the end of a session's context; returns its handle."""
        left = _UNBOUNDED if max_tokens is None else min(max_tokens, _UNBOUNDED)
        row = self._free_row()
        start = int(self._forest.table[session.row, L.H_N_TEXT])
        entry = self.table[row]
        entry[: D.R_TOKENS] = 0
        entry[D.R_SESSION] = session.row
        entry[D.R_LEFT] = left
        entry[D.R_SHARED] = start
        own = entry[D.R_OWN : D.R_OWN + CURSOR]
        S.warm_cursor(self._forest.table, session.row, own, session.tail(session.depth - 1))
        self._warm_world(row, session)
        session.request = row
        handle = self._next_handle
        self._next_handle += 1
        self._by_handle[handle] = LiveRequest(row, session)
        return handle

    def close(self, handle: int) -> None:
        """Forget a request; its session may have another one."""
        request = self._by_handle.pop(handle)
        self._free.append(request.row)
        request.session.request = -1

    def restart_cursors(self) -> None:
        """The global tree is another one: cursors into it start anew."""
        for request in self._by_handle.values():
            self._warm_world(request.row, request.session)

    # --- what they say ---------------------------------------------------------------------------

    def share(self, request: LiveRequest, least: int) -> bool:
        """Put the output of a running request into the global tree, where at least so many tokens
        of it are not there yet; returns whether they were."""
        n = int(self._forest.table[request.session.row, L.H_N_TEXT])
        shared = int(self.table[request.row, D.R_SHARED])
        if n - shared < least:
            return False
        request.sequence = self._spoken.share(request.sequence, self._output(request, shared, n))
        self.table[request.row, D.R_SHARED] = n
        return True

    def remember(self, request: LiveRequest, *, keep: bool) -> int | None:
        """Put a finished output into the global tree; without ``keep`` returns the sequence that
        must be taken back from it, if any."""
        n = int(self._forest.table[request.session.row, L.H_N_TEXT])
        rest = self._output(request, int(self.table[request.row, D.R_SHARED]), n)
        if request.sequence is None:
            if keep and len(rest):
                self._spoken.insert(rest)
        elif keep:
            self._spoken.close(request.sequence, rest)
        else:
            return request.sequence
        return None

    def leave(self, before: float | None) -> None:
        """What was shared (before a time) is about to be forgotten: the rest goes by itself."""
        gone = set(self._spoken.tree) if before is None else set(self._spoken.older(before))
        for request in self._by_handle.values():
            if request.sequence in gone:
                self._spoken.leave(request.sequence)
                request.sequence = None

    def values(self) -> Iterable[LiveRequest]:
        """All of them, the oldest first."""
        return self._by_handle.values()

    def check_integrity(self) -> None:
        """Verify that every row is used once or free.

        Raises:
            IntegrityError: it is not so.
        """
        used = [request.row for request in self._by_handle.values()]
        if sorted(used + self._free) != list(range(len(self.table))):
            raise IntegrityError("index: request rows are lost or used twice")

    def __len__(self) -> int:
        return len(self._by_handle)

    # --- inside ----------------------------------------------------------------------------------

    def _free_row(self) -> int:
        if not self._free:
            n = len(self.table)
            self.table = np.vstack([self.table, np.zeros_like(self.table)])
            self._free = list(range(2 * n - 1, n - 1, -1))
        return self._free.pop()

    def _warm_world(self, row: int, session: SessionMemory) -> None:
        """Set a request's cursor into the global tree from the end of its context."""
        cursor = self.table[row, D.R_WORLD : D.R_WORLD + CURSOR]
        tree = self._spoken.tree
        S.warm_cursor(self._forest.table, tree.row, cursor, session.tail(tree.depth - 1))

    def _output(self, request: LiveRequest, first: int, last: int) -> NDArray[np.int32]:
        arrays = self._forest.arrays[request.session.row]
        assert arrays is not None
        return arrays.text[first:last]
