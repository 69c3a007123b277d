"""The step log: what every step of a replay drafted and what came true, as structure of arrays.

One kernel call per batch verifies the drafts against the recording and writes the log, so that a
step costs no Python objects. All figures of a report are derived from these arrays afterwards;
nothing is inferred from a maximum or an average.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

from suffixspec_index.draft import DraftBatch

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Array = TypeVar("Array", bound=NDArray[Any])


class Row(IntEnum):
    """Columns of the live rows: what the kernel must know of a request in flight."""

    TURN = 0  # index into the plan's turns
    START = 1  # where the turn's output starts in the plan's output buffer
    CURSOR = 2  # the next output token to decode
    END = 3  # where the output ends


class Step(IntEnum):
    """Columns of the step table."""

    TURN = 0
    POSITION = 1  # output tokens the turn had before the step
    GAINED = 2  # output tokens the step yielded
    DRAFTED = 3  # draft nodes
    ACCEPTED = 4  # draft tokens that equal the recording
    REACHED = 5  # depth down to which the verifier had a draft token to decide on
    MATCH_LEN = 6
    SOURCE = 7  # of the draft's first token
    BATCH = 8  # the batch it was part of, counted from 0: those steps were one forward pass


NODE_SOURCE, NODE_ACCEPTED = 0, 1


@njit(cache=True, nogil=True)
def _record(
    offsets: Longs,
    token_ids: Ints,
    parents: Ints,
    probs: NDArray[np.float32],
    claims: NDArray[np.float32],
    sources: NDArray[np.uint8],
    match_lens: Ints,
    outputs: Ints,
    rows: Longs,
    steps: Ints,
    nodes: Ints,
    node_probs: NDArray[np.float32],  # (nodes, 2): as judged, as claimed
    node_flags: NDArray[np.uint8],
    size: Longs,
    gained: Longs,
) -> int:
    """Verify every row's draft, append the steps, move the cursors. Returns the rows that ended.

    The caller has made room in ``steps`` and ``nodes``. ``gained`` becomes the offsets of what
    each row gained. O(rows + draft nodes).
    """
    ended = 0
    step, base = size[0], size[1]
    gained[0] = 0
    for r in range(len(rows)):
        first, last = offsets[r], offsets[r + 1]
        cursor, end = rows[r, 2], rows[r, 3]
        node, accepted, open_child = -1, 0, False
        for i in range(first, last):
            out = base + i
            nodes[out, 0] = token_ids[i]
            nodes[out, 1] = parents[i]
            node_probs[out, 0] = probs[i]
            node_probs[out, 1] = claims[i]
            node_flags[out, 0] = sources[i]
            node_flags[out, 1] = 0
            # Parents precede children and siblings differ, so one pass follows the right path.
            if parents[i] == node and cursor + accepted < end:
                open_child = True
                if token_ids[i] == outputs[cursor + accepted]:
                    node_flags[out, 1] = 1
                    node = i - first
                    accepted += 1
                    open_child = False
        moved = min(accepted + 1, end - cursor)
        steps[step, 0] = rows[r, 0]
        steps[step, 1] = cursor - rows[r, 1]
        steps[step, 2] = moved
        steps[step, 3] = last - first
        steps[step, 4] = accepted
        steps[step, 5] = accepted + 1 if open_child else accepted
        steps[step, 6] = match_lens[r]
        steps[step, 7] = sources[first] if last > first else 0
        steps[step, 8] = size[2]
        step += 1
        rows[r, 2] = cursor + moved
        gained[r + 1] = gained[r] + moved
        if cursor + moved >= end:
            ended += 1
    size[0] = step
    size[2] += 1
    size[1] = base + offsets[len(rows)] - offsets[0]
    return ended


@njit(cache=True, nogil=True)
def _depths(offsets: Longs, parents: Ints) -> Ints:
    depths = np.ones(len(parents), np.int32)
    for r in range(len(offsets) - 1):
        first = offsets[r]
        for i in range(first, offsets[r + 1]):
            if parents[i] >= 0:
                depths[i] = depths[first + parents[i]] + 1
    return depths


class StepLog:
    """Growing arrays of steps and draft nodes.

    Memory: 52 bytes per step and 18 per draft node; appending is amortised O(1).
    """

    def __init__(self, capacity: int = 4096) -> None:
        self._size = np.zeros(3, np.int64)  # steps, nodes, batches; the kernel advances them
        self._steps = np.empty((capacity, len(Step)), np.int32)
        self._times = np.empty((capacity, 2), np.int64)
        self._nodes = np.empty((4 * capacity, 2), np.int32)
        self._probs = np.empty((4 * capacity, 2), np.float32)
        self._flags = np.empty((4 * capacity, 2), np.uint8)
        self._gained = np.zeros(65, np.int64)

    def __len__(self) -> int:
        return int(self._size[0])

    def record(
        self,
        drafts: DraftBatch,
        outputs: Ints,
        rows: Longs,
        claims: NDArray[np.float32] | None = None,
    ) -> tuple[int, Longs]:
        """Verify one step of every row and log it.

        Args:
            drafts: one draft per row.
            outputs: the recorded output tokens of all turns, ``(n,)`` int32.
            rows: ``(rows, 4)`` int64, see :class:`Row`; the cursors are moved.
            claims: what proposers said of the draft tokens, where that was corrected; ``None``:
                the drafts' probabilities.

        Returns:
            How many rows ended, and the ``(rows + 1,)`` offsets of what each row gained (a view
            that the next call overwrites).
        """
        n = len(rows)
        self._reserve(n, int(drafts.offsets[-1]))
        if len(self._gained) <= n:
            self._gained = np.zeros(2 * n + 1, np.int64)
        ended = _record(
            drafts.offsets,
            drafts.token_ids,
            drafts.parents,
            drafts.probs,
            drafts.probs if claims is None else claims,
            drafts.sources,
            drafts.match_lens,
            outputs,
            rows,
            self._steps,
            self._nodes,
            self._probs,
            self._flags,
            self._size,
            self._gained,
        )
        return ended, self._gained[: n + 1]

    def set_times(self, rows: int, propose_ns: int, advance_ns: int) -> None:
        """Charge the last ``rows`` steps with their share of a batch's time."""
        at = int(self._size[0])
        self._times[at - rows : at] = (propose_ns // rows, advance_ns // rows)

    def _reserve(self, steps: int, nodes: int) -> None:
        """Make room; growing by halves keeps the copying linear."""
        used, nodes_used = int(self._size[0]), int(self._size[1])
        if used + steps > len(self._steps):
            capacity = max(used + steps, len(self._steps) * 3 // 2)
            self._steps = _grown(self._steps, capacity)
            self._times = _grown(self._times, capacity)
        if nodes_used + nodes > len(self._nodes):
            capacity = max(nodes_used + nodes, len(self._nodes) * 3 // 2)
            self._nodes = _grown(self._nodes, capacity)
            self._probs = _grown(self._probs, capacity)
            self._flags = _grown(self._flags, capacity)

    def column(self, column: Step) -> Ints:
        """``(steps,)`` int32 view of one column."""
        return self._steps[: len(self), column]

    @property
    def propose_ns(self) -> Longs:
        """``(steps,)`` int64 nanoseconds in ``propose``."""
        return self._times[: len(self), 0]

    @property
    def advance_ns(self) -> Longs:
        """``(steps,)`` int64 nanoseconds in ``advance``."""
        return self._times[: len(self), 1]

    @property
    def node_offsets(self) -> Longs:
        """``(steps + 1,)`` int64: the draft nodes of step ``s`` are ``[s]`` to ``[s + 1]``."""
        offsets = np.zeros(len(self) + 1, np.int64)
        np.cumsum(self.column(Step.DRAFTED), out=offsets[1:])
        return offsets

    @property
    def node_tokens(self) -> Ints:
        """``(nodes,)`` int32 token ids."""
        return self._nodes[: self._size[1], 0]

    @property
    def node_parents(self) -> Ints:
        """``(nodes,)`` int32, relative to the step's first node; -1 for a first token."""
        return self._nodes[: self._size[1], 1]

    @property
    def node_probs(self) -> NDArray[np.float32]:
        """``(nodes,)`` float32, the probability that the node is accepted, as it was judged."""
        return self._probs[: self._size[1], 0]

    @property
    def node_claims(self) -> NDArray[np.float32]:
        """``(nodes,)`` float32, the same as the proposer said it, before anything corrected it."""
        return self._probs[: self._size[1], 1]

    @property
    def node_sources(self) -> NDArray[np.uint8]:
        """``(nodes,)`` uint8, a :class:`~suffixspec_index.draft.Source` per node."""
        return self._flags[: self._size[1], NODE_SOURCE]

    @property
    def node_accepted(self) -> NDArray[np.bool_]:
        """``(nodes,)`` bool."""
        return self._flags[: self._size[1], NODE_ACCEPTED].view(np.bool_)

    @property
    def node_depths(self) -> Ints:
        """``(nodes,)`` int32, 1 for a first token. O(nodes)."""
        depths: Ints = _depths(self.node_offsets, self.node_parents)
        return depths


def _grown(array: Array, capacity: int) -> Array:
    grown = np.empty((capacity, *array.shape[1:]), array.dtype)
    grown[: len(array)] = array
    return grown  # type: ignore[return-value]
