"""Keys and values of every sequence, under one budget of bytes.

Each sequence has a slot of its own: per layer ``(kv_heads, capacity, head_dim)`` for keys and for
values. New tokens are written behind the known ones; keeping some of them is a change of the
length, and only a draft *tree* whose accepted path is not its first nodes moves anything.

The budget is kept by admission. A sequence in use counts with the most tokens it can ever hold, so
that a step can never run out of memory; a finished one, kept because its session may go on, counts
with what it really holds, and the one used longest ago makes room first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from suffixspec_index.errors import CapacityError, ConfigError, IntegrityError

_GRANULE = 64
SHARE_AT_LEAST = 32
"""Shorter common beginnings with another session are computed again rather than copied."""


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
    """The keys and values of one sequence; made by :meth:`KeyValueCache.open`.

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


def common_length(left: NDArray[np.int32], right: NDArray[np.int32]) -> int:
    """How many first tokens two sequences have in common. O(the shorter)."""
    size = min(len(left), len(right))
    differ = np.flatnonzero(left[:size] != right[:size])
    return int(differ[0]) if len(differ) else size


class KeyValueCache:
    """All sequences of an engine: the live ones, and the finished ones kept for their sessions.

    Args:
        shapes: per layer.
        dtype, device: of keys and values.
        max_bytes: the budget.

    Raises:
        ConfigError: the budget does not hold a single token.
    """

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        *,
        dtype: torch.dtype,
        device: torch.device,
        max_bytes: int,
    ) -> None:
        self.bytes_per_token = dtype.itemsize * sum(shape.elements for shape in shapes)
        self.max_tokens = max_bytes // self.bytes_per_token
        if self.max_tokens < 1:
            raise ConfigError(
                f"cache_bytes: {max_bytes} do not hold one token of {self.bytes_per_token} bytes; "
                "give more"
            )
        self._shapes, self._dtype, self._device = tuple(shapes), dtype, device
        self._live: dict[int, SequenceCache] = {}
        self._idle: dict[int, SequenceCache] = {}  # used longest ago first
        self.evictions = 0

    @property
    def live_tokens(self) -> int:
        """Tokens reserved by sequences in use."""
        return sum(cache.reserved for cache in self._live.values())

    @property
    def idle_tokens(self) -> int:
        """Tokens that finished sequences have room for."""
        return sum(cache.capacity for cache in self._idle.values())

    @property
    def used_bytes(self) -> int:
        """What counts against the budget."""
        return (self.live_tokens + self.idle_tokens) * self.bytes_per_token

    def check_fits(self, tokens: int) -> None:
        """Raise :class:`CapacityError` where the whole budget could not hold ``tokens``."""
        if tokens > self.max_tokens:
            raise CapacityError(
                f"cache: the request may grow to {tokens} tokens, and the cache holds "
                f"{self.max_tokens} in all; lower max_tokens, shorten the prompt or raise "
                "cache_bytes"
            )

    def open(
        self, namespace: str, session_id: str, token_ids: NDArray[np.int32], reserve: int
    ) -> SequenceCache | None:
        """A sequence that already knows as much of ``token_ids`` as some kept one does.

        The last token is never taken over: its logits are wanted. O(kept sequences + common), and
        a copy of the common beginning where it belongs to another sequence.

        Args:
            namespace: only sequences of the same namespace are taken from.
            session_id: its finished sequence is taken over, not copied.
            token_ids: ``(n,)`` int32, the prompt.
            reserve: most tokens the sequence will hold.

        Returns:
            The sequence, in use until :meth:`close` or :meth:`drop`; ``None`` if live sequences
            leave no room for it now.

        Raises:
            CapacityError: it can never fit.
        """
        self.check_fits(reserve)
        wanted = token_ids[:-1]
        own = self._own(namespace, session_id, wanted)
        source, common = self._longest(namespace, wanted)
        takeover = own is not None and own.common_prefix(wanted) >= common
        if not self._make_room(reserve, own if takeover else None, source):
            return None
        if own is not None and takeover:
            del self._idle[id(own)]
            own.adopt(own.common_prefix(wanted), reserve)
            self._live[id(own)] = own
            return own
        cache = SequenceCache(self._shapes, self._dtype, self._device, reserve)
        cache.namespace, cache.session_id = namespace, session_id
        if source is not None and common >= SHARE_AT_LEAST:
            cache.copy_prefix(source, common)
        self._live[id(cache)] = cache
        return cache

    def share(self, cache: SequenceCache, token_ids: NDArray[np.int32]) -> None:
        """Copy what another sequence has come to know of ``token_ids`` since ``cache`` was opened.

        Requests that begin alike are often submitted together, when none of them is computed yet;
        so this is asked again when it is a request's turn. O(sequences + common).
        """
        source, common = self._longest(cache.namespace, token_ids[:-1])
        if source is not None and common - cache.length >= SHARE_AT_LEAST:
            cache.copy_prefix(source, common)

    def _own(
        self, namespace: str, session_id: str, wanted: NDArray[np.int32]
    ) -> SequenceCache | None:
        own = [
            cache
            for cache in self._idle.values()
            if cache.session_id == session_id and cache.namespace == namespace
        ]
        return max(own, key=lambda cache: cache.common_prefix(wanted), default=None)

    def _longest(
        self, namespace: str, wanted: NDArray[np.int32]
    ) -> tuple[SequenceCache | None, int]:
        best, common = None, 0
        for cache in (*self._live.values(), *self._idle.values()):
            if cache.namespace == namespace:
                same = cache.common_prefix(wanted)
                if same > common:
                    best, common = cache, same
        return best, common

    def _make_room(
        self, reserve: int, takeover: SequenceCache | None, source: SequenceCache | None
    ) -> bool:
        """Drop finished sequences, the one used longest ago first, until ``reserve`` fits.

        ``takeover`` becomes the new sequence, so it is neither counted twice nor dropped; what is
        copied from, ``source``, goes last. Nothing is dropped if live sequences leave no room.
        """
        if self.live_tokens + reserve > self.max_tokens:
            return False
        excess = self.live_tokens + self.idle_tokens + reserve - self.max_tokens
        if takeover is not None:
            excess -= takeover.capacity
        droppable = [cache for cache in self._idle.values() if cache is not takeover]
        droppable.sort(key=lambda cache: cache is source)  # stable: the rest keep their order
        for cache in droppable:
            if excess <= 0:
                break
            excess -= cache.capacity
            self._evict(cache)
        return True

    def _evict(self, cache: SequenceCache) -> None:
        del self._idle[id(cache)]
        self.evictions += 1

    def close(self, cache: SequenceCache) -> None:
        """A request is done; what its sequence knows is kept for the session. O(idle)."""
        self.drop(cache)
        if not cache.length:
            return
        known = cache.token_ids
        outgrown = [
            idle
            for idle in self._idle.values()
            if idle.session_id == cache.session_id
            and idle.namespace == cache.namespace
            and idle.common_prefix(known) == idle.length
        ]
        for idle in outgrown:
            del self._idle[id(idle)]
        self._idle[id(cache)] = cache

    def drop(self, cache: SequenceCache) -> None:
        """A request is done, and nothing of it is kept. Its memory is free at once."""
        del self._live[id(cache)]

    def end_session(self, namespace: str, session_id: str) -> None:
        """Forget what is kept for a session. Unknown ids are ignored."""
        for cache in list(self._idle.values()):
            if cache.session_id == session_id and cache.namespace == namespace:
                del self._idle[id(cache)]

    def drop_namespace(self, namespace: str) -> None:
        """Forget what is kept for all sessions of a namespace. O(kept sequences)."""
        for cache in list(self._idle.values()):
            if cache.namespace == namespace:
                del self._idle[id(cache)]

    def check_integrity(self) -> None:
        """Raise :class:`IntegrityError` unless lengths, shapes and the budget hold. O(sequences ·
        layers)."""
        if self.live_tokens + self.idle_tokens > self.max_tokens:
            raise IntegrityError(
                f"cache: {self.live_tokens} + {self.idle_tokens} tokens exceed {self.max_tokens}"
            )
        if self._live.keys() & self._idle.keys():
            raise IntegrityError("cache: a sequence is both live and idle")
        for cache in (*self._live.values(), *self._idle.values()):
            if not cache.length <= cache.capacity <= cache.reserved:
                raise IntegrityError(
                    f"cache: length {cache.length}, capacity {cache.capacity}, reserved "
                    f"{cache.reserved}"
                )
            stores = zip(cache.keys, cache.values, self._shapes, strict=True)
            for keys, values, shape in stores:
                expected = (shape.kv_heads, cache.capacity)
                if keys.shape != (*expected, shape.key_dim):
                    raise IntegrityError(f"cache: keys of shape {tuple(keys.shape)}")
                if values.shape != (*expected, shape.value_dim):
                    raise IntegrityError(f"cache: values of shape {tuple(values.shape)}")
