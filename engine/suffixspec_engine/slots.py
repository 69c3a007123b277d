"""Keys and values of all sequences in one tensor per layer, given out in pieces.

On a GPU one kernel attends for all requests of a step, so that what they attend to must lie in one
tensor; and a captured graph needs that it never moves. Each sequence gets one contiguous piece, of
the size that it was admitted with, so it never has to grow within a step. Behind
:class:`~.cache.KeyValueCache` this is the same as tensors of its own per sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from suffixspec_index.errors import IntegrityError

if TYPE_CHECKING:
    from suffixspec_engine.sequences import LayerShape

_BLOCK = 128  # of the attention's mask; a whole number of them is tidy for its kernels


class SlotPool:
    """A tensor of keys and one of values per layer, ``(kv_heads, slots, dim)``, and who has what.

    The tensors begin as zeros: masked attention multiplies what it must not see by 0, and that is
    only nothing where it is a number.

    Args:
        shapes: per layer.
        dtype, device: of keys and values.
        slots: tokens there is room for.

    Attributes:
        size: slots with the padding.
        padding: the first slots, at least one, which belong to nobody: what a step is padded with
            is written to and read from there.
    """

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        *,
        dtype: torch.dtype,
        device: torch.device,
        slots: int,
    ) -> None:
        self.size = -(-(slots + 1) // _BLOCK) * _BLOCK
        self.padding = self.size - slots
        self.keys = [
            torch.zeros(s.kv_heads, self.size, s.key_dim, dtype=dtype, device=device)
            for s in shapes
        ]
        self.values = [
            torch.zeros(s.kv_heads, self.size, s.value_dim, dtype=dtype, device=device)
            for s in shapes
        ]
        self._free: dict[int, int] = {self.padding: slots} if slots else {}  # start -> size

    @property
    def free_slots(self) -> int:
        """Slots that nobody has, in pieces of any size."""
        return sum(self._free.values())

    def take(self, size: int) -> int | None:
        """The start of a free piece of ``size`` slots, which is free no more; ``None``: there is no
        such piece. The smallest that fits is used. O(pieces)."""
        fitting = [(have, start) for start, have in self._free.items() if have >= size]
        if not fitting:
            return None
        have, start = min(fitting)
        del self._free[start]
        if have > size:
            self._free[start + size] = have - size
        return start

    def give(self, start: int, size: int) -> None:
        """Slots are free again. O(pieces)."""
        if not size:
            return
        following = self._free.pop(start + size, 0)
        for other, have in self._free.items():
            if other + have == start:
                self._free[other] = have + size + following
                return
        self._free[start] = size + following

    def check_integrity(self, taken: Sequence[tuple[int, int]]) -> None:
        """Raise :class:`IntegrityError` unless ``(start, size)`` pieces in use and free ones cover
        every slot once."""
        pieces = sorted([*taken, *self._free.items()])
        at = self.padding
        for start, size in pieces:
            if start != at or size <= 0:
                raise IntegrityError(f"slots: a piece starts at {start}, not at {at}")
            at = start + size
        if at != self.size:
            raise IntegrityError(f"slots: the pieces end at {at}, not at {self.size}")
