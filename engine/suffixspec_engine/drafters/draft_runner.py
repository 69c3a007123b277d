"""Reading with a draft model: many sequences in one forward pass, each with a slot of its own.

The draft model runs on the same packed attention and slots as the target (:mod:`..attention`,
:mod:`..cache`): what a sequence gained since it was last read, however much that is, stands beside
the other sequences' tokens in one row, and a rejected draft costs a change of the slot's length.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from suffixspec_engine.attention import PackedRow, PackedStep
from suffixspec_engine.cache import KeyValueCache, SequenceCache, common_length
from suffixspec_engine.models import TargetModel, load_model
from suffixspec_index.errors import CapacityError, ConfigError
from suffixspec_index.speculative_config import SpeculativeConfig

CACHE_BYTES = 1 << 29
"""Keys and values of all requests and of finished sessions, if nothing else is said."""
READ_AT_ONCE = 2048
"""Tokens that one call reads at most: a long prompt is read over several steps, which go on without
this request's drafts, instead of holding up everybody else's."""
_ROOM_AHEAD = 256  # tokens reserved beyond what is needed now


@dataclass(slots=True, eq=False)
class DraftSequence:
    """A request as the draft model reads it.

    Attributes:
        namespace, session_id: whose it is; only within a namespace are keys and values shared.
        token_ids: prompt and output, in the draft model's ids.
        cache: keys and values; they may be of fewer tokens, and behind ``agreed`` of others.
        agreed: first tokens of the cache that are known to be those of ``token_ids``.
    """

    namespace: str
    session_id: str
    token_ids: list[int] = field(default_factory=list)
    cache: SequenceCache | None = None
    agreed: int = 0


class DraftModel:
    """A loaded draft model and the keys and values of everything it reads.

    One serves the proposers of all namespaces, so that its weights are in memory once.

    Args:
        model: the model.
        tokenizer: its tokenizer; ``None``: the one it was loaded with.
        cache_bytes: budget for keys and values.
        read_at_once: see :data:`READ_AT_ONCE`.

    Attributes:
        lock: held by a proposer while it uses the model.

    Raises:
        ConfigError: the model has no fast tokenizer, or the budget holds no token.
    """

    def __init__(
        self,
        model: TargetModel,
        tokenizer: Tokenizer | None = None,
        *,
        cache_bytes: int = CACHE_BYTES,
        read_at_once: int = READ_AT_ONCE,
    ) -> None:
        found = tokenizer or getattr(model.tokenizer, "backend_tokenizer", None)
        if not isinstance(found, Tokenizer):
            raise ConfigError(f"model: {model.name!r} has no tokenizer.json; use another model")
        self.model, self.tokenizer = model, found
        self.cache = KeyValueCache(
            model.shapes, dtype=model.dtype, device=model.device, max_bytes=cache_bytes
        )
        self.lock = threading.Lock()
        self._read_at_once = read_at_once

    @staticmethod
    def load(
        config: SpeculativeConfig,
        *,
        dtype: str = "auto",
        device: str = "auto",
        cache_bytes: int = CACHE_BYTES,
    ) -> DraftModel:
        """Load what ``config.model`` names: anything :func:`~suffixspec_engine.models.load_model`
        takes.

        Raises:
            ConfigError: it cannot be loaded, cannot take back rejected tokens, or has no fast
                tokenizer; or the configuration asks for more than one device.
        """
        if config.model is None:
            raise ConfigError(
                "model: missing; name the draft model: a directory, a .gguf file, a hub id or "
                "smollm2"
            )
        if config.draft_tensor_parallel_size not in (None, 1):
            raise ConfigError(
                f"draft_tensor_parallel_size: {config.draft_tensor_parallel_size}, but this engine "
                "runs the draft model on one device; use 1 or leave it out"
            )
        return DraftModel(
            load_model(config.model, dtype=dtype, device=device), cache_bytes=cache_bytes
        )

    def read(
        self, sequences: Sequence[DraftSequence], ahead: Sequence[Sequence[int]]
    ) -> list[Tensor | None]:
        """Read what the draft model lacks of each sequence, in one forward pass for all.

        Args:
            sequences: none empty.
            ahead: per sequence, tokens to read behind it that are not kept.

        Returns:
            Per sequence ``(1 + ahead, vocab)`` float32 logits: after its last token and after each
            one ahead. ``None`` where they are not to be had in this step: memory is short, or there
            was more to read than a step should.
        """
        budget = self._read_at_once
        parts: list[_Part] = []
        places: list[int | None] = []
        for sequence, behind in zip(sequences, ahead, strict=True):
            cache = self._aligned(sequence, len(sequence.token_ids) + len(behind))
            lacking = [] if cache is None else sequence.token_ids[cache.length :]
            own = lacking[:budget]
            whole = len(own) == len(lacking)
            places.append(len(parts) if whole and cache is not None else None)
            if own and cache is not None:
                parts.append(_Part(cache, own, list(behind) if whole else [], wanted=whole))
                budget -= len(own)
        logits = self._pass(parts)
        return [None if place is None else logits[place] for place in places]

    def extend(self, sequences: Sequence[DraftSequence], token_ids: Sequence[int]) -> list[Tensor]:
        """Read one drafted token more of each sequence just read; ``(1, vocab)`` logits each."""
        parts = []
        for sequence, token_id in zip(sequences, token_ids, strict=True):
            assert sequence.cache is not None
            parts.append(_Part(sequence.cache, [token_id], [], wanted=True))
        return self._pass(parts)

    def close(self, sequence: DraftSequence, *, keep: bool) -> None:
        """A request is over; ``keep``: what was read of it waits for the session's next turn."""
        cache, sequence.cache = sequence.cache, None
        if cache is None:
            return
        if keep:
            _align(sequence, cache, len(sequence.token_ids))
            self.cache.close(cache)
        else:
            self.cache.drop(cache)
        sequence.agreed = 0

    def _aligned(self, sequence: DraftSequence, tokens: int) -> SequenceCache | None:
        """The sequence's cache with room for ``tokens`` and nothing in it but its own tokens, the
        last one left out, since its logits are wanted; ``None`` if there is no room now."""
        cache = sequence.cache
        if cache is not None and tokens > cache.reserved:
            self.close(sequence, keep=True)
            cache = None
        if cache is None:
            cache = self._opened(sequence, tokens)
            if cache is None:
                return None
            sequence.cache, sequence.agreed = cache, cache.length
        _align(sequence, cache, len(sequence.token_ids) - 1)
        return cache

    def _opened(self, sequence: DraftSequence, tokens: int) -> SequenceCache | None:
        ids = np.asarray(sequence.token_ids, np.int32)
        try:
            return self.cache.open(
                sequence.namespace, sequence.session_id, ids, tokens + _ROOM_AHEAD
            )
        except CapacityError:  # the request has outgrown the whole budget: no more drafts for it
            return None

    def _pass(self, parts: Sequence[_Part]) -> list[Tensor]:
        """One forward pass; logits per part, empty where not wanted. If it raises, no slot has
        changed its length."""
        if not parts:
            return []
        rows: list[PackedRow] = []
        tokens: list[int] = []
        wanted: list[int] = []
        sizes: list[int] = []
        for part in parts:
            past, count = part.cache.length, len(part.own) + len(part.ahead)
            part.cache.reserve(past + count)
            rows.append(PackedRow(part.cache, len(tokens), count, past))
            last = len(tokens) + len(part.own) - 1
            tokens += [*part.own, *part.ahead]
            sizes.append(1 + len(part.ahead) if part.wanted else 0)
            wanted.extend(range(last, last + sizes[-1]))
        logits = self.model.run(PackedStep(rows), tokens, wanted)
        for part in parts:
            part.cache.commit([*part.own, *part.ahead], range(len(part.own)))
        return list(torch.split(logits, sizes))


@dataclass(frozen=True, slots=True)
class _Part:
    """A sequence's part in a pass: ``own`` tokens are kept, those ``ahead`` are not."""

    cache: SequenceCache
    own: list[int]
    ahead: list[int]
    wanted: bool


def _align(sequence: DraftSequence, cache: SequenceCache, size: int) -> None:
    """Leave nothing in the cache but the sequence's first tokens, ``size`` at most: what else is
    there was drafted and rejected. O(new tokens)."""
    start = min(sequence.agreed, size)
    wanted = np.asarray(sequence.token_ids[start:size], np.int32)
    sequence.agreed = start + common_length(cache.token_ids[start:], wanted)
    cache.length = sequence.agreed
