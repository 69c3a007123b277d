"""Label values, bounded: whoever can choose a name must not be able to fill the memory."""

from __future__ import annotations

OTHER = "_other"
"""What values beyond the limit share; no value counts under it alone."""


class BoundedLabels:
    """The first ``limit`` different values as they are, all later ones as ``"_other"``.

    Not thread-safe; the monitor's lock guards it.
    """

    def __init__(self, limit: int, *, longest: int = 200) -> None:
        self._limit, self._longest = limit, longest
        self._known: set[str] = set()
        self.refused = 0

    def __call__(self, value: str) -> str:
        """The label to count under. O(1)."""
        value = value[: self._longest]
        if value in self._known:
            return value
        if len(self._known) >= self._limit or value == OTHER:
            self.refused += 1
            return OTHER
        self._known.add(value)
        return value

    def known(self, value: str) -> str | None:
        """The label if the value has one of its own; takes no place."""
        value = value[: self._longest]
        return value if value in self._known else None

    def __len__(self) -> int:
        return len(self._known)
