"""Plain generation with transformers: many sessions in one packed step, without speculation.

All sessions' new tokens stand in one row without padding. An attention function registered with
transformers writes keys and values into each session's own cache and attends to that cache alone,
so a session's next turn costs only its new tokens and nothing is padded or copied.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, AutoModelForCausalLM, GgufConfig

from suffixspec_index.errors import ConfigError

Ids = NDArray[np.int32]

_ATTENTION = "suffixspec_packed_sessions"
_GROWTH = 512


@dataclass(slots=True)
class _SessionCache:
    """Keys and values of one session: ``(layers, 2, kv_heads, capacity, head_dim)`` float32."""

    store: Tensor
    token_ids: list[int] = field(default_factory=list)

    def reserve(self, length: int) -> None:
        if length <= self.store.shape[3]:
            return
        grown = self.store.new_empty((*self.store.shape[:3], length + _GROWTH, self.store.shape[4]))
        known = len(self.token_ids)
        grown[:, :, :, :known] = self.store[:, :, :, :known]
        self.store = grown


@dataclass(frozen=True, slots=True)
class _Row:
    """A session's tokens in the packed row, and where they go in its cache."""

    cache: _SessionCache
    start: int  # first column in the packed row
    count: int
    past: int  # tokens already in the cache


def _packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed_rows: Sequence[_Row],
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend each session's tokens to its own cache; ``(1, tokens, heads, head_dim)``."""
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    outputs = []
    for row in packed_rows:
        span = slice(row.start, row.start + row.count)
        end = row.past + row.count
        keys, values = row.cache.store[layer, 0], row.cache.store[layer, 1]
        keys[:, row.past : end] = key[0, :, span]
        values[:, row.past : end] = value[0, :, span]
        mask = None
        if row.count > 1 and row.past:
            mask = torch.ones(row.count, end, dtype=torch.bool).tril(row.past)
        outputs.append(
            functional.scaled_dot_product_attention(
                query[:, :, span],
                keys[None, :, :end],
                values[None, :, :end],
                attn_mask=mask,
                is_causal=row.count > 1 and not row.past,
                scale=scaling,
                enable_gqa=True,
            )
        )
    return torch.cat(outputs, dim=2).transpose(1, 2), None


class HfTextModel:
    """A causal language model on the CPU, in float32.

    Args:
        path: a GGUF file or a directory that transformers can load.
        name: what recordings call the model; the file's name by default.
        temperature: 0 is greedy; otherwise softmax temperature.
        top_p: nucleus size in (0, 1].
        seed: together with a session's key it fixes the session's random draws, whatever else is
            in the batch. (Floating-point sums may still differ from batch to batch.)
        repeat_limit: stop an output that says the same tokens this many times in a row (0: never).
            Small models fall into such loops, and a recording of them would flatter speculation.
        threads: torch's intra-op threads.

    Raises:
        ConfigError: a setting is out of range, or the path does not exist.
    """

    def __init__(
        self,
        path: Path,
        *,
        name: str | None = None,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        repeat_limit: int = 0,
        threads: int = 1,
    ) -> None:
        if temperature < 0:
            raise ConfigError(f"temperature is {temperature}; it must be 0 (greedy) or more")
        if not 0 < top_p <= 1:
            raise ConfigError(f"top_p is {top_p}; it must be in (0, 1]")
        if not path.exists():
            raise ConfigError(f"model path {str(path)!r} does not exist")
        self.name = name or path.stem
        self.settings: dict[str, object] = {
            "temperature": temperature,
            "top_p": top_p,
            "seed": seed,
            "repeat_limit": repeat_limit,
            "dtype": "float32",
        }
        self._repeat_limit = repeat_limit
        self._temperature, self._top_p, self._seed = temperature, top_p, seed
        torch.set_num_threads(threads)
        AttentionInterface.register(_ATTENTION, _packed_attention)
        self._model = _load(path)
        config = self._model.config
        heads = config.num_attention_heads
        self._shape = (
            config.num_hidden_layers,
            2,
            getattr(config, "num_key_value_heads", None) or heads,
            getattr(config, "head_dim", None) or config.hidden_size // heads,
        )
        ends = self._model.generation_config.eos_token_id or []
        self.eos_token_ids = frozenset([ends] if isinstance(ends, int) else ends)
        self._caches: dict[str, _SessionCache] = {}
        self._draws: dict[str, np.random.Generator] = {}

    @torch.inference_mode()
    def generate(
        self, prompts: Sequence[Ids], *, keys: Sequence[str], max_new_tokens: int
    ) -> list[Ids]:
        """Continue every prompt until an end token (included) or ``max_new_tokens``.

        Args:
            prompts: ``(n,)`` int32 each.
            keys: one session key per prompt. What a key's cache shares with the new prompt is not
                computed again.
            max_new_tokens: most tokens per output.
        """
        if max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens is {max_new_tokens}; it must be at least 1")
        # Prompts go in one by one: a packed row of all of them would need masks of that size.
        first = [self._prefill(key, p) for key, p in zip(keys, prompts, strict=True)]
        outputs: list[list[int]] = [[token] for token in first]
        live = [i for i, token in enumerate(first) if token not in self.eos_token_ids]
        for _ in range(max_new_tokens - 1):
            if not live:
                break
            tokens = self._step([keys[i] for i in live], [[outputs[i][-1]] for i in live])
            for i, token in zip(live, tokens, strict=True):
                outputs[i].append(token)
            live = [i for i in live if not self._ended(outputs[i])]
        return [np.asarray(ids, dtype=np.int32) for ids in outputs]

    def _ended(self, output: list[int]) -> bool:
        return output[-1] in self.eos_token_ids or (
            self._repeat_limit > 0 and repeats(output, self._repeat_limit)
        )

    def release(self, key: str) -> None:
        """Forget a session's cache."""
        self._caches.pop(key, None)
        self._draws.pop(key, None)

    def _prefill(self, key: str, prompt: Ids) -> int:
        cache = self._caches.get(key)
        if cache is None:
            layers, two, kv_heads, head_dim = self._shape
            cache = _SessionCache(torch.empty(layers, two, kv_heads, _GROWTH, head_dim))
            self._caches[key] = cache
            self._draws[key] = np.random.default_rng([self._seed, zlib.crc32(key.encode())])
        ids = prompt.tolist()
        # The last prompt token is always computed: its logits are wanted.
        limit = min(len(cache.token_ids), len(ids) - 1)
        known = next((i for i in range(limit) if cache.token_ids[i] != ids[i]), limit)
        del cache.token_ids[known:]
        return self._step([key], [ids[known:]])[0]

    def _step(self, keys: Sequence[str], tokens: Sequence[list[int]]) -> list[int]:
        """Run one packed forward pass; the next token of each session."""
        rows: list[_Row] = []
        positions: list[int] = []
        at = 0
        for key, new in zip(keys, tokens, strict=True):
            cache = self._caches[key]
            past = len(cache.token_ids)
            cache.reserve(past + len(new))
            rows.append(_Row(cache, at, len(new), past))
            positions.extend(range(past, past + len(new)))
            at += len(new)
        packed = torch.tensor([[t for new in tokens for t in new]])
        hidden = self._model.model(
            input_ids=packed,
            position_ids=torch.tensor([positions]),
            attention_mask=None,
            use_cache=False,
            packed_rows=rows,
        ).last_hidden_state
        for row, new in zip(rows, tokens, strict=True):
            row.cache.token_ids.extend(new)
        last = torch.tensor([row.start + row.count - 1 for row in rows])
        logits = self._model.lm_head(hidden[0, last])
        if self._temperature == 0:
            return [int(i) for i in logits.argmax(dim=-1)]
        return [self._draw(key, row) for key, row in zip(keys, logits, strict=True)]

    def _draw(self, key: str, logits: Tensor) -> int:
        probs, order = torch.softmax(logits.double() / self._temperature, dim=-1).sort(
            descending=True
        )
        cumulative = probs.cumsum(0)
        # The nucleus holds the token that crosses top_p.
        size = int((cumulative < self._top_p).sum()) + 1
        nucleus = cumulative[: min(size, len(cumulative))]
        draw = self._draws[key].random() * float(nucleus[-1])
        place = min(int(torch.searchsorted(nucleus, draw, right=True)), len(nucleus) - 1)
        return int(order[place])


def repeats(ids: Sequence[int], times: int, *, at_least: int = 16) -> bool:
    """Whether ``ids`` end in one block of tokens said ``times`` times in a row.

    The repetition must be ``at_least`` tokens long, so that rows of dashes or digits do not count.
    O(n²/times) for n tokens at worst; nearly always O(n/times).
    """
    n = len(ids)
    for period in range(max(1, -(-at_least // times)), n // times + 1):
        span = period * times
        if ids[n - 1] == ids[n - 1 - period] and all(
            ids[n - i] == ids[n - i - period] for i in range(1, span - period + 1)
        ):
            return True
    return False


def _load(path: Path) -> Any:
    if path.is_file():
        model = AutoModelForCausalLM.from_pretrained(
            str(path.parent),
            gguf_file=path.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32,
            attn_implementation=_ATTENTION,
        )
    else:
        model = AutoModelForCausalLM.from_pretrained(
            str(path), dtype=torch.float32, attn_implementation=_ATTENTION
        )
    model.train(mode=False)
    return model
