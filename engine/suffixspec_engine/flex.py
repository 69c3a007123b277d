"""Attention of a whole step in one kernel, for accelerators.

The plain packed attention (:mod:`.attention`) attends request by request, which on a CPU is the
fastest way and on a GPU would be hundreds of small kernels per step. Where all keys and values lie
in one pool (:mod:`.slots`), torch's ``flex_attention`` does it in one per layer: a block mask names
the blocks of slots that anybody in the step may see, and a mask function says for a token and a
slot whether it does: slots of its own request's past (within the window, if the layer has one), and
the slots of its ancestors in the draft's tree.

Steps are padded to a few sizes (:data:`SIZES`) and their arrays live in tensors that stay where
they are, so that each size is compiled once and can be captured as a CUDA graph (:mod:`.graphs`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from suffixspec_engine.attention import AttentionOptions, PackedRow
from suffixspec_engine.sequences import PooledSequence
from suffixspec_engine.slots import SlotPool
from suffixspec_index.errors import IntegrityError

SIZES = (8, 16, 32, 64, 128, 256)
"""Tokens in a step, padding included. A larger step, one with a prompt, goes the plain way."""
WIDTH = 64
"""Most tokens of one request in a step: a last token and a draft."""
BLOCK = 128
"""Slots, and tokens, per block of the mask; what torch's kernels are tuned for."""

Kernel = Callable[..., Any]
"""``flex_attention``, compiled or not."""


def size_for(rows: Sequence[PackedRow]) -> int | None:
    """The size a step is padded to; ``None`` where it is too large for this attention."""
    tokens = sum(row.count for row in rows)
    if tokens > SIZES[-1] or any(row.count > WIDTH for row in rows):
        return None
    return next(size for size in SIZES if size >= tokens)


@dataclass(frozen=True, slots=True)
class StepArrays:
    """A step as the attention needs it; row ``t`` of each array is about token ``t``.

    Attributes:
        slots: ``(tokens,)`` int64, where its key and value are written.
        low, end: ``(tokens,)`` int64, the slots of its past: from ``low`` to before ``end``.
        sees: ``(tokens, WIDTH)`` bool: of its request's new tokens, the first of which is at
            ``end``, those that it sees.
        blocks: ``(query blocks, n)`` int32 and ``counts`` ``(query blocks,)`` int32: per block of
            tokens the blocks of slots that any of them may see, rising; only the first ``counts``
            count.
    """

    slots: NDArray[np.int64]
    low: NDArray[np.int64]
    end: NDArray[np.int64]
    sees: NDArray[np.bool_]
    blocks: NDArray[np.int32]
    counts: NDArray[np.int32]


def step_arrays(
    rows: Sequence[PackedRow], size: int, pool_size: int, window: int | None
) -> StepArrays:
    """The arrays of a step padded to ``size`` tokens. O(size · WIDTH + blocks).

    Padding is written to slot 0, which is nobody's, and sees that alone.

    Args:
        rows: their caches are pieces of the pool.
        size: one of :data:`SIZES`.
        pool_size: slots of the pool.
        window: a token sees that many last positions, its own included; ``None``: all.
    """
    slots = np.zeros(size, np.int64)
    low, end = np.zeros(size, np.int64), np.zeros(size, np.int64)
    sees = np.zeros((size, WIDTH), np.bool_)
    query_blocks = -(-size // BLOCK)
    visible = np.zeros((query_blocks, -(-pool_size // BLOCK)), np.bool_)
    used = 0
    for row in rows:
        cache = row.cache
        assert isinstance(cache, PooledSequence)
        mine = slice(row.start, row.start + row.count)
        first, border = cache.start, cache.start + row.past
        slots[mine] = np.arange(border, border + row.count)
        depths = row.depths
        past_low = 0 if window is None else np.maximum(row.past + depths - window + 1, 0)
        low[mine] = np.minimum(first + past_low, border)
        end[mine] = border
        seen = row.sees_new()
        if window is not None:
            seen = seen & (depths[None, :] > depths[:, None] - window)
        sees[mine, : row.count] = seen
        for block in range(row.start // BLOCK, (row.start + row.count - 1) // BLOCK + 1):
            part = slice(max(row.start, block * BLOCK), min(mine.stop, (block + 1) * BLOCK))
            lowest = int(low[part].min()) // BLOCK
            visible[block, lowest : (border + row.count - 1) // BLOCK + 1] = True
        used = mine.stop
    if used < size:
        sees[used:, 0] = True
        visible[used // BLOCK :, 0] = True
    counts = visible.sum(1).astype(np.int32)
    # Columns sorted stably by "not visible": the visible blocks come first, in rising order.
    blocks = np.argsort(~visible, axis=1, kind="stable").astype(np.int32)
    return StepArrays(slots, low, end, sees, blocks, counts)


class _LayerMask:
    """The arrays of one kind of layer in tensors that never move, and the mask over them."""

    def __init__(self, size: int, pool_size: int, device: torch.device) -> None:
        query_blocks, blocks = -(-size // BLOCK), -(-pool_size // BLOCK)

        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        self.low, self.end = zeros(size, dtype=torch.int64), zeros(size, dtype=torch.int64)
        self.sees = zeros(size, WIDTH, dtype=torch.bool)
        self.blocks = zeros(1, 1, query_blocks, blocks, dtype=torch.int32)
        self.counts = zeros(1, 1, query_blocks, dtype=torch.int32)
        low, end, sees = self.low, self.end, self.sees

        def may_see(batch: Tensor, head: Tensor, token: Tensor, slot: Tensor) -> Tensor:
            offset = slot - end[token]
            new = (offset >= 0) & (offset < WIDTH) & sees[token, offset.clamp(0, WIDTH - 1)]
            return new | ((slot >= low[token]) & (slot < end[token]))

        self.mask = BlockMask.from_kv_blocks(
            self.counts,
            self.blocks,
            BLOCK_SIZE=(BLOCK, BLOCK),
            mask_mod=may_see,
            seq_lengths=(size, pool_size),
            compute_q_blocks=False,
        )

    def load(self, arrays: StepArrays) -> None:
        for tensor, values in (
            (self.low, arrays.low),
            (self.end, arrays.end),
            (self.sees, arrays.sees),
            (self.blocks, arrays.blocks[None, None]),
            (self.counts, arrays.counts[None, None]),
        ):
            tensor.copy_(torch.from_numpy(values))


class FlexStep:
    """Steps of one size, one after another; see the module's text. A
    :class:`~.attention.LayerAttention`.

    Args:
        size: one of :data:`SIZES`.
        pool: keys and values of all requests.
        kernel: what attends.

    Attributes:
        token_ids, position_ids: ``(1, size)`` int64, of the step that was loaded.
    """

    def __init__(self, size: int, pool: SlotPool, kernel: Kernel = flex_attention) -> None:
        self.size = size
        self._pool, self._kernel = pool, kernel
        self._device = pool.keys[0].device
        self.token_ids = torch.zeros(1, size, dtype=torch.int64, device=self._device)
        self.position_ids = torch.zeros(1, size, dtype=torch.int64, device=self._device)
        self._slots = torch.zeros(size, dtype=torch.int64, device=self._device)
        self._masks: dict[int | None, _LayerMask] = {}
        self._rows: Sequence[PackedRow] = ()

    def load(self, rows: Sequence[PackedRow], token_ids: Sequence[int]) -> None:
        """The step to run next; at most ``size`` tokens."""
        self._rows = rows
        ids = np.zeros((1, self.size), np.int64)
        ids[0, : len(token_ids)] = token_ids
        positions = np.zeros((1, self.size), np.int64)
        positions[0, : len(token_ids)] = np.concatenate([row.past + row.depths for row in rows])
        self.token_ids.copy_(torch.from_numpy(ids))
        self.position_ids.copy_(torch.from_numpy(positions))
        slots = step_arrays(rows, self.size, self._pool.size, None).slots
        self._slots.copy_(torch.from_numpy(slots))
        for window in self._masks:
            self._load_mask(window)

    def _load_mask(self, window: int | None) -> _LayerMask:
        mask = self._masks.get(window)
        if mask is None:
            mask = self._masks[window] = _LayerMask(self.size, self._pool.size, self._device)
        mask.load(step_arrays(self._rows, self.size, self._pool.size, window))
        return mask

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions
    ) -> Tensor:
        """Write keys and values, attend; shapes as in :class:`~.attention.LayerAttention`."""
        if options.unsupported:
            raise IntegrityError(f"attention: options {options.unsupported} reached a step")
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        keys.index_copy_(1, self._slots, key[0])
        values.index_copy_(1, self._slots, value[0])
        mask = self._masks.get(options.window) or self._load_mask(options.window)
        output: Tensor = self._kernel(
            query,
            keys[None],
            values[None],
            block_mask=mask.mask,
            scale=options.scale,
            enable_gqa=query.shape[1] != keys.shape[0],
        )
        return output.transpose(1, 2)
