"""Keys and values of every sequence, under one budget of bytes.

Each sequence has a slot of its own (:mod:`.sequences`): per layer keys and values of the form
``(kv_heads, capacity, head_dim)``.

The budget is kept by admission. A sequence in use counts with the most tokens it can ever hold, so
that a step can never run out of memory; a finished one, kept because its session may go on, counts
with what it really holds, and the one used longest ago makes room first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from suffixspec_engine.sequences import (
    LayerShape,
    PooledSequence,
    SequenceCache,
    common_length,
)
from suffixspec_engine.slots import SlotPool
from suffixspec_index.errors import CapacityError, ConfigError, IntegrityError

__all__ = ["SHARE_AT_LEAST", "KeyValueCache", "LayerShape", "SequenceCache", "common_length"]

SHARE_AT_LEAST = 32
"""Shorter common beginnings with another session are computed again rather than copied."""


class KeyValueCache:
    """All sequences of an engine: the live ones, and the finished ones kept for their sessions.

    Args:
        shapes: per layer.
        dtype, device: of keys and values.
        max_bytes: the budget.
        pooled: all sequences lie in one tensor per layer (:class:`~.slots.SlotPool`), which is
            made at once, instead of having tensors of their own as they come.

    Attributes:
        pool: that tensor's slots; ``None`` where sequences have tensors of their own.

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
        pooled: bool = False,
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
        self.pool: SlotPool | None = None
        if pooled:
            self.pool = SlotPool(self._shapes, dtype=dtype, device=device, slots=self.max_tokens)

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
        # A piece of a pool cannot grow in place, so its tokens are copied into a larger one.
        own = self._own(namespace, session_id, wanted) if self.pool is None else None
        source, common = self._longest(namespace, wanted)
        takeover = own is not None and own.common_prefix(wanted) >= common
        if not self._make_room(reserve, own if takeover else None, source):
            return None
        if own is not None and takeover:
            del self._idle[id(own)]
            own.adopt(own.common_prefix(wanted), reserve)
            self._live[id(own)] = own
            return own
        cache = self._create(reserve, source)
        if cache is None:
            return None
        cache.namespace, cache.session_id = namespace, session_id
        if source is not None and common >= SHARE_AT_LEAST and not source.released:
            cache.copy_prefix(source, common)
        self._live[id(cache)] = cache
        return cache

    def _create(self, reserve: int, source: SequenceCache | None) -> SequenceCache | None:
        if self.pool is None:
            return SequenceCache(self._shapes, self._dtype, self._device, reserve)
        start = self.pool.take(reserve)
        while start is None:  # the free slots are in too small pieces
            idle = sorted(self._idle.values(), key=lambda cache: cache is source)
            if not idle:
                return None
            self._evict(idle[0])
            start = self.pool.take(reserve)
        return PooledSequence(self.pool, self._shapes, start, reserve)

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
        self._forget(cache)
        self.evictions += 1

    def _forget(self, cache: SequenceCache) -> None:
        del self._idle[id(cache)]
        cache.release()

    def close(self, cache: SequenceCache) -> None:
        """A request is done; what its sequence knows is kept for the session. O(idle)."""
        if not cache.length:
            self.drop(cache)
            return
        del self._live[id(cache)]
        cache.trim()
        known = cache.token_ids
        outgrown = [
            idle
            for idle in self._idle.values()
            if idle.session_id == cache.session_id
            and idle.namespace == cache.namespace
            and idle.common_prefix(known) == idle.length
        ]
        for idle in outgrown:
            self._forget(idle)
        self._idle[id(cache)] = cache

    def drop(self, cache: SequenceCache) -> None:
        """A request is done, and nothing of it is kept. Its memory is free at once."""
        del self._live[id(cache)]
        cache.release()

    def end_session(self, namespace: str, session_id: str) -> None:
        """Forget what is kept for a session. Unknown ids are ignored."""
        for cache in list(self._idle.values()):
            if cache.session_id == session_id and cache.namespace == namespace:
                self._forget(cache)

    def drop_namespace(self, namespace: str) -> None:
        """Forget what is kept for all sessions of a namespace. O(kept sequences)."""
        for cache in list(self._idle.values()):
            if cache.namespace == namespace:
                self._forget(cache)

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
        if self.pool is not None:
            kept = (*self._live.values(), *self._idle.values())
            pieces = [(c.start, c.capacity) for c in kept if isinstance(c, PooledSequence)]
            self.pool.check_integrity(pieces)
