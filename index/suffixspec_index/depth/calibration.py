"""Learned calibration: from what a proposer claims to what its drafts are worth.

Prompt lookup gives every token probability 1, a draft model its own opinion. How often such claims
come true is counted by source, match length, position in the draft and the claimed probability; a
position with few observations leans on all positions of its match length together. The suffix
proposer's probabilities are learned in its index, from more evidence (``kernels/mixture.py``), and
are left as they are; so are tokens that a grammar forces.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.draft import DraftBatch
from suffixspec_index.errors import SnapshotCorruptError
from suffixspec_index.kernels import depth as kernels

MEMORY = 200.0
"""Observations that a cell's share is taken from; older ones fade."""


class DraftCalibration:
    """The tables of one namespace and model, float64; about 150 KB.

    Attributes:
        coarse: ``(sources, match lengths, claims, 2)``: share that came true, observations.
        fine: the same by position too.
    """

    def __init__(self) -> None:
        shape = (kernels.SOURCES, kernels.MATCHES, kernels.CHANCES, 2)
        self.coarse: NDArray[np.float64] = np.zeros(shape)
        self.fine: NDArray[np.float64] = np.zeros((*shape[:2], kernels.DEPTHS, *shape[2:]))

    def probabilities(self, drafts: DraftBatch) -> NDArray[np.float32]:
        """``(n,)`` float32: of draft tokens, with all before them, as experience has it. O(n)."""
        out = np.empty(len(drafts.probs), np.float32)
        kernels.calibrated(
            drafts.offsets,
            drafts.parents,
            drafts.probs,
            drafts.sources,
            drafts.match_lens,
            self.coarse,
            self.fine,
            out,
        )
        return out

    def to_bytes(self) -> bytes:
        """The tables as little-endian float64."""
        return self.coarse.astype("<f8").tobytes() + self.fine.astype("<f8").tobytes()

    @staticmethod
    def from_bytes(data: bytes) -> DraftCalibration:
        """Read what :meth:`to_bytes` wrote.

        Raises:
            SnapshotCorruptError: the length is wrong, or a value is not a share or a count.
        """
        tables = DraftCalibration()
        expected = tables.coarse.nbytes + tables.fine.nbytes
        if len(data) != expected:
            raise SnapshotCorruptError(f"draft calibration: {len(data)} bytes, expected {expected}")
        values = np.frombuffer(data, "<f8")
        if not np.isfinite(values).all() or (values < 0).any():
            raise SnapshotCorruptError("draft calibration: a value is negative or not finite")
        tables.coarse[:] = values[: tables.coarse.size].reshape(tables.coarse.shape)
        tables.fine[:] = values[tables.coarse.size :].reshape(tables.fine.shape)
        return tables
