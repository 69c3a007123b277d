"""How long to wait before trying again: exponential backoff with full jitter.

M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015: waits drawn from
``[0, cap]`` keep many clients from coming back in step.
"""

from __future__ import annotations

import random


class Backoff:
    """Waits that double from ``first`` to ``most`` seconds until :meth:`reset`."""

    def __init__(self, first: float = 0.05, most: float = 5.0) -> None:
        self._first, self._most = first, most
        self._cap = first

    def next(self) -> float:
        """Seconds to wait now; never less than a tenth of the cap, so that nobody spins."""
        cap = self._cap
        self._cap = min(2 * cap, self._most)
        return random.uniform(0.1 * cap, cap)

    def reset(self) -> None:
        """It worked: start over."""
        self._cap = self._first
