"""Which records a reader has met: numbers by origin, kept as runs."""

from __future__ import annotations

from bisect import bisect_right

MOST_RUNS = 1024
"""Runs that are kept apart for one origin; beyond that the oldest gap counts as met."""


class Seen:
    """The record numbers met of one origin, whatever their order.

    They come in order but for what was sent again after the log had lost it, so they make few runs:
    a record costs O(1) where it is the newest, else O(log runs + runs).

    >>> seen = Seen()
    >>> [seen.add(number) for number in (1, 2, 7, 2, 3)]
    [True, True, True, False, True]
    >>> seen.runs()
    [(1, 4), (7, 8)]
    """

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []  # exclusive

    def add(self, number: int) -> bool:
        """Remember a number; false where it is known."""
        ends = self._ends
        if ends and number == ends[-1]:
            ends[-1] += 1
            return True
        at = bisect_right(self._starts, number)  # the run before it is the one at ``at - 1``
        if at and number < ends[at - 1]:
            return False
        joins_left = at > 0 and number == ends[at - 1]
        joins_right = at < len(ends) and number + 1 == self._starts[at]
        if joins_left and joins_right:
            ends[at - 1] = ends.pop(at)
            del self._starts[at]
        elif joins_left:
            ends[at - 1] += 1
        elif joins_right:
            self._starts[at] = number
        else:
            self._starts.insert(at, number)
            ends.insert(at, number + 1)
            if len(ends) > MOST_RUNS:
                del self._starts[1], ends[0]
        return True

    def remove(self, number: int) -> None:
        """Forget a number, as if it had not come; unknown ones are ignored."""
        at = bisect_right(self._starts, number) - 1
        if at < 0 or number >= self._ends[at]:
            return
        start, end = self._starts[at], self._ends[at]
        pieces = [(a, b) for a, b in ((start, number), (number + 1, end)) if a < b]
        self._starts[at : at + 1] = [a for a, _ in pieces]
        self._ends[at : at + 1] = [b for _, b in pieces]

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._starts, number) - 1
        return at >= 0 and number < self._ends[at]

    def runs(self) -> list[tuple[int, int]]:
        """First numbers and the numbers after the last, of each run in order."""
        return list(zip(self._starts, self._ends, strict=True))
