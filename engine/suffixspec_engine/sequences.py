"""The keys and values of one sequence, in tensors of its own or in a piece of a pool.

New tokens are written behind the known ones; keeping some of them is a change of the length, and
only a draft *tree* whose accepted path is not its first nodes moves anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from suffixspec_engine.slots import SlotPool
from suffixspec_index.errors import CapacityError

_GRANULE = 64


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer keeps per token: ``kv_heads`` keys of ``key_dim``, values of ``value_dim``."""

    kv_heads: int
    key_dim: int
    value_dim: int

    @property
    def elements(self) -> int:
        """Numbers per token."""
        return self.kv_heads * (self.key_dim + self.value_dim)


class SequenceCache:
    """The keys and values of one sequence; made by :meth:`~.cache.KeyValueCache.open`.

    Attributes:
        keys, values: per layer ``(kv_heads, capacity, dim)``.
        length: tokens known; what lies behind them is scratch.
        reserved: most tokens it may hold.
        namespace, session_id: whose it is.
    """

    def __init__(
        self, shapes: Sequence[LayerShape], dtype: torch.dtype, device: torch.device, reserved: int
    ) -> None:
        self._shapes, self._dtype, self._device = shapes, dtype, device
        self.keys: list[Tensor] = [self._new(s.kv_heads, 0, s.key_dim) for s in shapes]
        self.values: list[Tensor] = [self._new(s.kv_heads, 0, s.value_dim) for s in shapes]
        self._ids = np.empty(0, np.int32)
        self.length = 0
        self.reserved = reserved
        self.namespace = ""
        self.session_id = ""

    def _new(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self._dtype, device=self._device)

    @property
    def capacity(self) -> int:
        """Tokens there is room for now."""
        return len(self._ids)

    @property
    def token_ids(self) -> NDArray[np.int32]:
        """``(length,)`` int32, a view."""
        return self._ids[: self.length]

    def reserve(self, tokens: int) -> None:
        """Make room for ``tokens``; growth by half each time keeps copying amortised O(1).

        Raises:
            CapacityError: more than was reserved when the sequence was opened.
        """
        if tokens <= self.capacity:
            return
        if tokens > self.reserved:
            raise CapacityError(
                f"cache: {tokens} tokens needed, but {self.reserved} were reserved for this request"
            )
        wanted = max(tokens, self.capacity * 3 // 2)
        self._resize(min(self.reserved, -(-wanted // _GRANULE) * _GRANULE))

    def _resize(self, capacity: int) -> None:
        kept = self.length
        for store in (self.keys, self.values):
            for layer, old in enumerate(store):
                grown = self._new(old.shape[0], capacity, old.shape[2])
                grown[:, :kept] = old[:, :kept]
                store[layer] = grown  # layer by layer: only one of them is held twice
        ids = np.empty(capacity, np.int32)
        ids[:kept] = self._ids[:kept]
        self._ids = ids

    @property
    def released(self) -> bool:
        """Whether its memory may have been given to others, so that it must not be read."""
        return False

    def release(self) -> None:
        """Nobody needs it any more; what it takes of a pool is free for others."""

    def trim(self) -> None:
        """Give back room that nothing is in, where others could use it."""

    def commit(self, token_ids: Sequence[int] | NDArray[np.int32], kept: Sequence[int]) -> None:
        """Keep some of the tokens that a step has written behind the known ones.

        Args:
            token_ids: all the written tokens, in the order they were written.
            kept: indices of those to keep, rising. ``0, 1, 2 …`` moves nothing: O(kept); else the
                tokens after the gap are moved together.
        """
        past = self.length
        moved = [i for i, slot in enumerate(kept) if slot != i]
        if moved:
            first = moved[0]
            source = torch.tensor([past + slot for slot in kept[first:]], device=self._device)
            target = slice(past + first, past + len(kept))
            for store in (*self.keys, *self.values):
                store[:, target] = store.index_select(1, source)
        written = np.asarray(token_ids, dtype=np.int32)
        self._ids[past : past + len(kept)] = written[np.asarray(kept, dtype=np.int64)]
        self.length = past + len(kept)

    def adopt(self, length: int, reserved: int) -> None:
        """Begin anew with the first ``length`` known tokens and another reservation. O(1), but
        for a sequence that has room for more than ``reserved``: it is moved to a smaller one."""
        self.length = length
        self.reserved = reserved
        if self.capacity > reserved:
            self._resize(reserved)

    def common_prefix(self, token_ids: NDArray[np.int32]) -> int:
        """How many first tokens equal those of ``token_ids``. O(common)."""
        return common_length(self.token_ids, token_ids)

    def copy_prefix(self, other: SequenceCache, length: int) -> None:
        """Take over the first ``length`` tokens of another sequence, which stays as it is. What is
        known already is a beginning of them and not copied again."""
        self.reserve(length)
        new = slice(self.length, length)
        for own, theirs in zip(
            (*self.keys, *self.values), (*other.keys, *other.values), strict=True
        ):
            own[:, new] = theirs[:, new]
        self._ids[new] = other.token_ids[new]
        self.length = length


class PooledSequence(SequenceCache):
    """A sequence whose keys and values are a piece of a pool: its room is its reservation, from the
    beginning on.

    Attributes:
        start: its first slot.
    """

    def __init__(
        self, pool: SlotPool, shapes: Sequence[LayerShape], start: int, reserved: int
    ) -> None:
        self._pool = pool
        self._shapes, self._device = shapes, pool.keys[0].device
        self._ids = np.empty(0, np.int32)
        self.length = 0
        self.reserved = reserved
        self.namespace = self.session_id = ""
        self._released = False
        self._settle(start, reserved)

    def _settle(self, start: int, size: int) -> None:
        self.start = start
        self.keys = [layer[:, start : start + size] for layer in self._pool.keys]
        self.values = [layer[:, start : start + size] for layer in self._pool.values]
        ids = np.empty(size, np.int32)
        ids[: self.length] = self._ids[: self.length]
        self._ids = ids

    def _resize(self, capacity: int) -> None:
        """Only ever smaller: :meth:`reserve` finds the room there already."""
        assert capacity <= self.capacity
        self._pool.give(self.start + capacity, self.capacity - capacity)
        self._settle(self.start, capacity)

    def trim(self) -> None:
        """See :meth:`SequenceCache.trim`."""
        self._resize(max(self.length, 1))

    @property
    def released(self) -> bool:
        """See :attr:`SequenceCache.released`."""
        return self._released

    def release(self) -> None:
        """See :meth:`SequenceCache.release`."""
        self._pool.give(self.start, self.capacity)
        self._released = True


def common_length(left: NDArray[np.int32], right: NDArray[np.int32]) -> int:
    """How many first tokens two sequences have in common. O(the shorter)."""
    size = min(len(left), len(right))
    differ = np.flatnonzero(left[:size] != right[:size])
    return int(differ[0]) if len(differ) else size
