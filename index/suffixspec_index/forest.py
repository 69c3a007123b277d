"""The arrays of many trees, and the header table through which kernels see them.

One forest belongs to one namespace: row 0 is usually the global tree, the others are the sessions'
own. The forest allocates, grows, shrinks and frees; kernels only read addresses. Every method must
be called under the owner's write lock, because growing an array moves it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.errors import CapacityError
from suffixspec_index.kernels import layout as L
from suffixspec_index.kernels.insert import has_room, insert_sequences, insert_text, insert_windows

_MAX_TEXT = 2**31 - 2**17  # text positions are int32
_GROWTH = 1.3  # arrays grow by this factor: little slack for little copying
_LARGE = 1 << 18  # tokens of text from which it may take more than two milliseconds to grow a tree


@dataclass(slots=True)
class TreeArrays:
    """The five arrays of one tree; see ``kernels/layout.py`` for their meaning."""

    text: NDArray[np.int32]
    nodes: NDArray[np.int32]
    leaves: NDArray[np.int32]
    keys: NDArray[np.int64]
    ids: NDArray[np.int32]

    @property
    def nbytes(self) -> int:
        """Allocated bytes."""
        return int(
            self.text.nbytes
            + self.nodes.nbytes
            + self.leaves.nbytes
            + self.keys.nbytes
            + self.ids.nbytes
        )


class Forest:
    """Allocates the trees of a namespace. See the module docstring."""

    def __init__(self) -> None:
        self.table: NDArray[np.int64] = np.zeros((8, L.HEADER), np.int64)
        self.arrays: list[TreeArrays | None] = []
        self.nbytes_total = 0
        self._free: list[int] = []

    def add(self, depth: int, tokens: int = 256) -> int:
        """Make an empty tree of window length ``depth``, sized for ``tokens``; returns its row."""
        nodes = np.zeros((max(tokens * 5 // 8, 16), L.NODE), np.int32)
        nodes[0, L.T0 : L.T0 + 3] = L.NO_TOKEN
        hash_size = max(tokens // 2, 2 * depth + 64)
        text = np.full(tokens + depth + 2, L.OPEN, np.int32)
        arrays = TreeArrays(
            text,
            nodes,
            np.zeros((max(tokens * 7 // 8, 16), 2), np.int32),
            np.full(hash_size, L.EMPTY_KEY, np.int64),
            np.zeros(hash_size, np.int32),
        )
        row = self._free_row()
        head = self.table[row]
        head[:] = 0
        head[L.H_DEPTH] = depth
        head[L.H_N_NODES] = 1
        self._install(row, arrays)
        return row

    def drop(self, row: int) -> None:
        """Free a tree's memory and its row."""
        self.nbytes_total -= self.nbytes(row)
        self.arrays[row] = None
        self.table[row] = 0
        self._free.append(row)

    def nbytes(self, row: int) -> int:
        """Allocated bytes of one tree."""
        arrays = self.arrays[row]
        assert arrays is not None
        return arrays.nbytes

    def append(self, row: int, tokens: NDArray[np.int32], *, end: bool = False) -> int:
        """Append tokens (and ``END``) to a tree's text without inserting; returns their position.

        Raises:
            CapacityError: the text would pass 2**31 tokens. Nothing is changed.
        """
        head = self.table[row]
        at = int(head[L.H_N_TEXT])
        n = at + len(tokens) + int(end)
        self.reserve_text(row, n)
        arrays = self.arrays[row]
        assert arrays is not None
        arrays.text[at : at + len(tokens)] = tokens
        if end:
            arrays.text[n - 1] = L.END
        arrays.text[n] = L.OPEN
        head[L.H_N_TEXT] = n
        return at

    def reserve_text(self, row: int, n: int) -> None:
        """Make room for ``n`` tokens of text, a mark after them, and a window beyond."""
        arrays = self.arrays[row]
        assert arrays is not None
        need = n + int(self.table[row, L.H_DEPTH]) + 2
        if need > _MAX_TEXT:
            raise CapacityError(
                f"text: {n} tokens do not fit in one tree (at most {_MAX_TEXT}); "
                "lower the namespace's byte budget so that old sequences are evicted sooner"
            )
        if need > len(arrays.text):
            text = np.full(max(need, int(len(arrays.text) * _GROWTH) + 64), L.OPEN, np.int32)
            text[: len(arrays.text)] = arrays.text
            arrays.text = text
            self._install(row, arrays)

    def reserve(self, row: int, tokens: int) -> None:
        """Make room for about ``tokens`` more of ordinary text at once, which saves the copies
        that growing step by step would make. Pages that are never used cost nothing."""
        head = self.table[row]
        arrays = self.arrays[row]
        assert arrays is not None
        self.reserve_text(row, min(int(head[L.H_N_TEXT]) + tokens, _MAX_TEXT - (1 << 16)))
        arrays.nodes = _extended(arrays.nodes, int(head[L.H_N_NODES]) + tokens // 2)
        arrays.leaves = _extended(arrays.leaves, int(head[L.H_N_LEAVES]) + tokens)
        size = (int(head[L.H_N_HASH]) + tokens * 5 // 9) * 4 // 3
        if size > len(arrays.keys):
            arrays.keys, arrays.ids = _rehashed(arrays, size)
        self._install(row, arrays)

    def begin_block(self, row: int) -> int:
        """Start a new piece of text: windows before it are done with; returns its position."""
        head = self.table[row]
        head[L.H_NEXT] = head[L.H_N_TEXT]
        head[L.H_HEAD_NODE] = head[L.H_HEAD_MATCH] = head[L.H_PENDING] = 0
        return int(head[L.H_NEXT])

    def insert_block(
        self, row: int, tokens: NDArray[np.int32], *, end: bool, careful: bool = False
    ) -> int:
        """Append a piece of text and insert its windows: all of them with ``end``, else those that
        are complete. Returns its position.

        Raises:
            CapacityError: as for :meth:`append`.
        """
        at = int(self.table[row, L.H_N_TEXT])
        left = insert_text(self.table, row, tokens, end, careful)
        if left < 0:
            self.reserve_text(row, at + len(tokens) + 1)
            left = insert_text(self.table, row, tokens, end, careful)
        if left:
            self.insert(row, int(self.table[row, L.H_NEXT]) + int(left), careful=careful)
        return at

    def insert_blocks(
        self,
        row: int,
        tokens: NDArray[np.int32],
        offsets: NDArray[np.int64],
        *,
        careful: bool = False,
    ) -> NDArray[np.int64]:
        """Insert closed pieces of text ``tokens[offsets[i]:offsets[i + 1]]`` in one kernel call.

        Returns their positions, ``(n,)``. A sixth of the cost of a call each, where they are short.

        Raises:
            CapacityError: as for :meth:`append`.
        """
        head = self.table[row]
        n = len(offsets) - 1
        self.reserve_text(row, int(head[L.H_N_TEXT]) + len(tokens) + n + 1)
        positions = np.empty(n, np.int64)
        done = 0
        while True:
            done = int(insert_sequences(self.table, row, tokens, offsets, done, positions, careful))
            if done == n:
                return positions
            self.insert(row, int(head[L.H_N_TEXT]) - 1, careful=careful)  # grows
            done += 1

    def take(self, row: int, other: Forest, other_row: int) -> None:
        """Replace a tree by one that was built in another forest."""
        self.nbytes_total -= self.nbytes(row)
        self._put(row, other, other_row)

    def adopt(self, other: Forest, other_row: int) -> int:
        """Add a tree of another forest, in the same arrays; returns its row. Only one of the two
        may be changed from then on. Where that is the new one, the other one's text stays what it
        was; its nodes do not."""
        row = self._free_row()
        self.table[row] = 0
        self._put(row, other, other_row)
        return row

    def make_room(self, row: int, tokens: int) -> None:
        """Grow a tree until ``tokens`` more can be appended and inserted without growing."""
        head = self.table[row]
        self.reserve_text(row, int(head[L.H_N_TEXT]) + tokens)
        arrays = self.arrays[row]
        assert arrays is not None
        tokens += L.BURST
        while head[L.H_N_NODES] + tokens > len(arrays.nodes):
            arrays.nodes = _enlarged(arrays.nodes, tokens)
        while head[L.H_N_LEAVES] + tokens > len(arrays.leaves):
            arrays.leaves = _enlarged(arrays.leaves, tokens)
        self._install(row, arrays)
        while not has_room(head):
            self.grow(row, tokens)

    def insert(self, row: int, stop: int, *, careful: bool = False) -> None:
        """Insert the windows up to start position ``stop`` (exclusive), growing as needed."""
        while insert_windows(self.table, row, stop, careful) < stop:
            self.grow(row, stop - int(self.table[row, L.H_NEXT]))

    def grow(self, row: int, windows: int) -> None:
        """Enlarge whichever of a tree's arrays are full, by a constant factor.

        ``windows`` (still to be inserted) bounds the growth: a small tail does not get a big array.
        """
        head = self.table[row]
        arrays = self.arrays[row]
        assert arrays is not None
        extra = min(windows, 1 << 16) + 8
        if head[L.H_N_NODES] + 1 > head[L.H_NODE_CAP]:
            arrays.nodes = _enlarged(arrays.nodes, extra)
        if head[L.H_N_LEAVES] + 1 > head[L.H_LEAF_CAP]:
            arrays.leaves = _enlarged(arrays.leaves, extra)
        if 4 * (head[L.H_N_HASH] + head[L.H_DEPTH] + 2) >= 3 * head[L.H_HASH_CAP]:
            arrays.keys, arrays.ids = _rehashed(arrays, int(head[L.H_HASH_CAP] * 1.5) + 64)
        self._install(row, arrays)

    def may_grow(self, row: int, tokens: int) -> bool:
        """Whether so many tokens more could make a large tree's arrays grow, which takes tens of
        milliseconds where there are millions of tokens. O(1)."""
        head = self.table[row].tolist()
        return bool(
            head[L.H_TEXT_CAP] >= _LARGE
            and (
                head[L.H_N_TEXT] + tokens + head[L.H_DEPTH] + 2 > head[L.H_TEXT_CAP]
                or head[L.H_N_NODES] + tokens > head[L.H_NODE_CAP]
                or head[L.H_N_LEAVES] + tokens > head[L.H_LEAF_CAP]
                or 4 * (head[L.H_N_HASH] + tokens + head[L.H_DEPTH] + 2) > 3 * head[L.H_HASH_CAP]
            )
        )

    def trim(self, row: int, *, part: int = 0) -> None:
        """Give back the slack of a tree, but for one ``part``-th; all of it with 0."""
        head = self.table[row]
        arrays = self.arrays[row]
        assert arrays is not None
        nodes, leaves, text = (int(head[n]) for n in (L.H_N_NODES, L.H_N_LEAVES, L.H_N_TEXT))
        if part:
            nodes, leaves, text = (n + n // part for n in (nodes, leaves, text))
        arrays.nodes = arrays.nodes[: nodes + 8].copy()
        arrays.leaves = arrays.leaves[: leaves + 8].copy()
        arrays.text = arrays.text[: text + int(head[L.H_DEPTH]) + 2].copy()
        self._install(row, arrays)

    def _free_row(self) -> int:
        if self._free:
            return self._free.pop()
        row = len(self.arrays)
        self.arrays.append(None)
        if row == len(self.table):
            self.table = np.vstack([self.table, np.zeros_like(self.table)])
        return row

    def _put(self, row: int, other: Forest, other_row: int) -> None:
        """Let a row hold what a row of another forest holds."""
        arrays = other.arrays[other_row]
        assert arrays is not None
        self.table[row] = other.table[other_row]
        self.table[row, L.H_TEXT_CAP : L.H_HASH_CAP + 1] = 0
        self._install(row, replace(arrays))  # a growing tree exchanges its arrays in there

    def _install(self, row: int, arrays: TreeArrays) -> None:
        """Publish a tree's arrays in the header table."""
        head = self.table[row]
        self.nbytes_total += arrays.nbytes - self._known_bytes(row)
        self.arrays[row] = arrays
        head[L.H_TEXT] = arrays.text.ctypes.data
        head[L.H_NODES] = arrays.nodes.ctypes.data
        head[L.H_LEAVES] = arrays.leaves.ctypes.data
        head[L.H_KEYS] = arrays.keys.ctypes.data
        head[L.H_IDS] = arrays.ids.ctypes.data
        head[L.H_TEXT_CAP] = len(arrays.text)
        head[L.H_NODE_CAP] = len(arrays.nodes)
        head[L.H_LEAF_CAP] = len(arrays.leaves)
        head[L.H_HASH_CAP] = len(arrays.keys)

    def _known_bytes(self, row: int) -> int:
        """What the header table says a tree's arrays take, which is what was last counted."""
        head = self.table[row]
        return int(
            4 * head[L.H_TEXT_CAP]
            + 4 * L.NODE * head[L.H_NODE_CAP]
            + 8 * head[L.H_LEAF_CAP]
            + 12 * head[L.H_HASH_CAP]
        )


def _rehashed(arrays: TreeArrays, size: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The hash of a tree in larger arrays."""
    keys = np.full(size, L.EMPTY_KEY, np.int64)
    ids = np.zeros(size, np.int32)
    L.rehash(arrays.keys, arrays.ids, keys, ids)
    return keys, ids


def _extended(array: NDArray[np.int32], rows: int) -> NDArray[np.int32]:
    """A copy of a table with at least so many rows; the table itself where it has them."""
    if rows <= len(array):
        return array
    larger = np.zeros((rows, array.shape[1]), np.int32)
    larger[: len(array)] = array
    return larger


def _enlarged(array: NDArray[np.int32], extra: int) -> NDArray[np.int32]:
    """A copy of a table with room for a constant factor more rows, at least ``extra`` of them
    while the table is small."""
    rows = len(array)
    more = max(int(rows * (_GROWTH - 1)), min(extra, rows), 16)
    larger = np.zeros((rows + more, array.shape[1]), np.int32)
    larger[:rows] = array
    return larger
