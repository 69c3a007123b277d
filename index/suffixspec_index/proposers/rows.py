"""Rows of a table through which kernels see live requests: taken, given back, taken again."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class RowTable:
    """Grows by doubling, so a row costs amortised O(1).

    Args:
        columns: of the table.

    Attributes:
        array: ``(rows, columns)`` int64; :meth:`take` may move it.
    """

    def __init__(self, columns: int) -> None:
        self.array: NDArray[np.int64] = np.zeros((8, columns), np.int64)
        self._free = list(range(8))

    def take(self) -> int:
        """A row that nobody uses, of zeros."""
        if not self._free:
            used = len(self.array)
            self.array = np.concatenate([self.array, np.zeros_like(self.array)])
            self._free = list(range(used, 2 * used))
        return self._free.pop()

    def give_back(self, row: int) -> None:
        """Say that a row is not used any more."""
        self.array[row] = 0
        self._free.append(row)
