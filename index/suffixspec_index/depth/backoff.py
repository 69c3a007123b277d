"""Backing off: requests whose drafts keep coming to nothing are drafted for ever more rarely.

Where drafting costs next to nothing (a suffix tree: microseconds) there is nothing to save, and
nobody waits; it is for proposers that take time, and for saturated engines, in which no draft is
worth verifying whoever made it. The waiting grows from one step to a bound, and ends with the first
draft token that is chosen, so a request that begins to repeat itself is found again soon.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_PATIENCE = 6  # drafts in a row of which nothing was chosen, before the waiting begins
_CHEAP = 0.003  # of a step's time: proposers this quick are always asked


class BackOff:
    """See the module docstring.

    Args:
        longest: most steps between two probes; 0: nobody ever waits.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._vain: NDArray[np.int64] = np.zeros(16, np.int64)
        self._wait: NDArray[np.int64] = np.zeros(16, np.int64)
        self._price = 0.0
        self._asked: NDArray[np.bool_] | None = None  # of the step under way; None: everybody

    @property
    def active(self) -> bool:
        """Whether proposers are slow enough for waiting to save anything."""
        return self._longest > 0 and self._price > _CHEAP

    def price(self, share: float) -> None:
        """What the proposers took in a step in which they were asked, of a plain step's time."""
        if share > 0.0:
            self._price += 0.05 * (share - self._price) if self._price else share

    def limits(self, slots: NDArray[np.int64], limits: NDArray[np.int64]) -> NDArray[np.int64]:
        """The limits, 0 for those who wait. Counts a step of their waiting."""
        self._asked = None
        if not self.active:
            return limits
        self._reserve(slots)
        waiting = self._wait[slots] > 0
        self._wait[slots] -= waiting
        self._asked = ~waiting
        return np.where(waiting, 0, limits)

    def count(
        self, slots: NDArray[np.int64], offered: NDArray[np.int64], chosen: NDArray[np.int64]
    ) -> None:
        """Learn how much of each request's draft was chosen, from the offsets of both batches.

        A request without a draft, of which nothing can be chosen either, is drafted for in vain
        too, unless it was not asked.
        """
        if self._asked is None:
            return
        asked = self._asked
        some = np.diff(chosen) > 0
        vain = np.where(some, 0, self._vain[slots] + asked)
        over = np.clip(vain - _PATIENCE, -1, 30)
        wait = np.minimum(1 << np.maximum(over, 0), self._longest)
        self._vain[slots] = vain
        self._wait[slots] = np.where(asked & (over >= 0), wait, self._wait[slots])

    def forget(self, slot: int) -> None:
        """The slot is somebody else's from now on."""
        if slot < len(self._vain):
            self._vain[slot] = self._wait[slot] = 0

    def _reserve(self, slots: NDArray[np.int64]) -> None:
        need = int(slots.max(initial=0)) + 1
        if need > len(self._vain):
            more = np.zeros(max(need, len(self._vain)), np.int64)
            self._vain = np.concatenate([self._vain, more])
            self._wait = np.concatenate([self._wait, more])
