"""vLLM's ``num_speculative_tokens_per_batch_size``, without flipping at the edges.

A batch that hovers at the edge of a range would change its draft length in every step, and an
engine that captures one graph per length loses more by that than either length costs (vLLM issue
49548). So a range is left at once only when the batch size is well outside of it, and otherwise
after it has been outside for a while.
"""

from __future__ import annotations

from suffixspec_index.speculative_config import SpeculativeConfig

MARGIN = 0.25
"""A batch size this far beyond the edge, relative to it, changes the range at once."""

PATIENCE = 16
"""Steps in a row outside the range after which it changes, however little outside."""


class BatchSizeSchedule:
    """The static rule for draft lengths; see the module docstring.

    Args:
        config: with or without a schedule.
    """

    def __init__(self, config: SpeculativeConfig) -> None:
        self._config = config
        self._size: int | None = None  # the batch size that the present range was chosen for
        self._outside = 0

    def tokens_at(self, batch_size: int) -> int:
        """The most draft tokens per request in the next step, of so many requests. O(ranges)."""
        wanted = self._config.num_speculative_tokens_at(batch_size)
        if self._size is None:
            self._size = batch_size
            return wanted
        present = self._config.num_speculative_tokens_at(self._size)
        if wanted == present:
            self._size, self._outside = batch_size, 0
            return present
        self._outside += 1
        far = self._far(batch_size)
        if far or self._outside >= PATIENCE:
            self._size, self._outside = batch_size, 0
            return wanted
        return present

    def _far(self, batch_size: int) -> bool:
        """Whether the nearest size of the present range is more than the margin away."""
        assert self._size is not None
        step = 1 if self._size < batch_size else -1
        edge, present = self._size, self._config.num_speculative_tokens_at(self._size)
        while edge != batch_size and self._config.num_speculative_tokens_at(edge + step) == present:
            edge += step
        return abs(batch_size - edge) > max(1.0, MARGIN * edge)
