"""The learned acceptance of a namespace: how votes of the memories come true.

The arithmetic is in ``kernels/mixture.py``; this file owns the tables and their starting values.
A new model knows nothing of the namespace: cells start from a rule of thumb on match length, count
and share, worth three observations, and are overruled within a few hundred steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.errors import SnapshotCorruptError
from suffixspec_index.kernels import evidence as E
from suffixspec_index.kernels import mixture as M

_SHARES = np.array([0.0, 0.05, 0.17, 0.37, 0.62, 0.85, 0.99])
_COUNTS = np.array([1, 2, 3, 6, 16, 64])
_FIRST_WEIGHT, _FIRST_HASHED_WEIGHT, _FIRST_BIAS = 0.35, 0.2, -0.3


@dataclass(slots=True)
class AcceptanceModel:
    """Tables of one namespace, float32: ``cells (CELLS, 2)`` holding mean and observations,
    ``odds (CELLS,)`` their log-odds, ``weights (WEIGHT_SETS, WEIGHTS)``. About 0.6 MB."""

    cells: NDArray[np.float32]
    odds: NDArray[np.float32]
    weights: NDArray[np.float32]

    @staticmethod
    def new() -> AcceptanceModel:
        """A model that has seen nothing."""
        share = _SHARES[np.arange(E.SHARES) // 2]
        length = np.arange(E.LENGTHS)[:, None, None]
        count = _COUNTS[None, :, None]
        mean = (share * count + 0.02) / (count + 1.5 / (length + 1))
        mean = np.clip(mean, 0.005, 0.98).astype(np.float32)
        cells = np.zeros((E.CELLS, 2), np.float32)
        voted = E.SLOTS * E.CELLS_PER_SLOT
        cells[:voted, M.CELL_MEAN] = np.tile(mean.ravel(), E.SLOTS)
        cells[:voted, M.CELL_SEEN] = 3.0
        cells[voted:, M.CELL_MEAN] = 0.5
        cells[voted:, M.CELL_SEEN] = 0.5
        p = cells[:, M.CELL_MEAN]
        odds = np.log(p / (1 - p))
        weights = np.zeros((M.WEIGHT_SETS, M.WEIGHTS), np.float32)
        weights[: M.LENGTH_SETS, : E.SLOTS] = _FIRST_WEIGHT
        weights[: M.LENGTH_SETS, E.SLOTS : E.FEATURES] = _FIRST_HASHED_WEIGHT
        weights[: M.LENGTH_SETS, E.FEATURES] = _FIRST_BIAS
        return AcceptanceModel(cells, odds, weights)

    @staticmethod
    def from_bytes(data: bytes) -> AcceptanceModel:
        """Read what :meth:`to_bytes` wrote.

        Raises:
            SnapshotCorruptError: the length is wrong or a value is not finite.
        """
        model = AcceptanceModel.new()
        if len(data) != model.nbytes:
            raise SnapshotCorruptError(
                f"acceptance model: {len(data)} bytes, expected {model.nbytes}"
            )
        values = np.frombuffer(data, "<f4")
        if not np.isfinite(values).all():
            raise SnapshotCorruptError("acceptance model: a value is not finite")
        for table in (model.cells, model.odds, model.weights):
            table[:] = values[: table.size].reshape(table.shape)
            values = values[table.size :]
        return model

    def to_bytes(self) -> bytes:
        """The tables as little-endian float32."""
        return b"".join(t.astype("<f4").tobytes() for t in (self.cells, self.odds, self.weights))

    def reset(self) -> None:
        """Forget everything learned, in place."""
        fresh = AcceptanceModel.new()
        self.cells[:], self.odds[:], self.weights[:] = fresh.cells, fresh.odds, fresh.weights

    @property
    def nbytes(self) -> int:
        """Bytes of the tables."""
        return int(self.cells.nbytes + self.odds.nbytes + self.weights.nbytes)
