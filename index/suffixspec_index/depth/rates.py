"""The going rate: what a unit of time gains, which is what a longer step has to be worth.

It is kept as a speed-up over plain decoding, so that it carries over between steps of different
context and between batches of different size, each of which has a rate of its own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.errors import SnapshotCorruptError

FADE = 0.998
"""Per step, of what the rate is taken from: half of it is from the last 350 steps."""

_FIRST_SPEEDUP = 1.2  # before anything is known; low, because a low rate drafts more and so learns
_FIRST_STEPS = 10.0
_BUCKETS = 20


class GoingRates:
    """Speed-ups over plain decoding by batch size: 1, 2, 3-4, 5-8, ... requests.

    A size that was never seen starts from the nearest smaller one that was, else from the nearest
    larger one.
    """

    def __init__(self) -> None:
        self._gained: NDArray[np.float64] = np.zeros(_BUCKETS)
        self._spent: NDArray[np.float64] = np.zeros(_BUCKETS)

    def speedup(self, requests: int) -> float:
        """The speed-up lately reached with so many requests. O(1)."""
        bucket = _bucket(requests)
        if self._spent[bucket] <= 0.0:
            self._start(bucket)
        return float(self._gained[bucket] / self._spent[bucket])

    def learn(self, requests: int, gained: float, spent: float) -> None:
        """Count a step.

        Args:
            gained: tokens, all requests together.
            spent: tokens that plain decoding would have gained in the same time.
        """
        bucket = _bucket(requests)
        if self._spent[bucket] <= 0.0:
            self._start(bucket)
        self._gained[bucket] = self._gained[bucket] * FADE + gained
        self._spent[bucket] = self._spent[bucket] * FADE + spent

    def to_dict(self) -> dict[str, float]:
        """Smallest batch size of each bucket that was used -> speed-up."""
        used = np.flatnonzero(self._spent)
        return {str(_least(int(b))): float(self._gained[b] / self._spent[b]) for b in used}

    def to_bytes(self) -> bytes:
        """Both sums of all sizes, as little-endian float64."""
        return self._gained.astype("<f8").tobytes() + self._spent.astype("<f8").tobytes()

    def take(self, data: bytes) -> None:
        """Go on from what :meth:`to_bytes` wrote.

        Raises:
            SnapshotCorruptError: the length is wrong, or a value is negative or not finite.
                Nothing is changed then.
        """
        if len(data) != 16 * _BUCKETS:
            raise SnapshotCorruptError(f"going rates: {len(data)} bytes, not {16 * _BUCKETS}")
        values = np.frombuffer(data, "<f8").astype(np.float64)
        gained, spent = values[:_BUCKETS].copy(), values[_BUCKETS:].copy()
        if not np.isfinite(values).all() or (values < 0).any() or (gained[spent > 0] <= 0).any():
            raise SnapshotCorruptError("going rates: a value is negative or not finite")
        self._gained, self._spent = gained, spent

    def _start(self, bucket: int) -> None:
        seen = np.flatnonzero(self._spent)
        speedup = _FIRST_SPEEDUP
        if len(seen):
            smaller = seen[seen < bucket]
            nearest = int(smaller[-1] if len(smaller) else seen[0])
            speedup = float(self._gained[nearest] / self._spent[nearest])
        weight = _FIRST_STEPS * _least(bucket)
        self._gained[bucket], self._spent[bucket] = speedup * weight, weight


def _bucket(requests: int) -> int:
    return min((requests - 1).bit_length(), _BUCKETS - 1)


def _least(bucket: int) -> int:
    return 1 if bucket == 0 else (1 << (bucket - 1)) + 1
