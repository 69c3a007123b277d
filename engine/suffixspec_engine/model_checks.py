"""Can a model be verified safely? Asked of its configuration first, then of the model itself.

Verification needs that a token's keys and values depend on the tokens before it alone and can be
forgotten by a change of a length. Recurrent state cannot, so such models are refused. What a
configuration does not tell, a small experiment does: the model's own attention and the packed one
must say the same on a few tokens, given in pieces and as a tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from suffixspec_engine.attention import (
    ATTENTION_NAME,
    AttentionOptions,
    PackedRow,
    PackedStep,
    running,
)
from suffixspec_engine.cache import LayerShape, SequenceCache
from suffixspec_index.errors import ConfigError

_SUPPORTED_LAYERS = frozenset({"full_attention", "sliding_attention", "attention"})
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Root mean square difference of logits, in their standard deviations. A wrong mask gives 0.3 to 1,
rounding (SmolLM2) 2e-6 in float32 and 0.03 in bfloat16."""
_ROPE_OF_LENGTH = ("dynamic", "longrope")


def refusal(model: Any, max_model_len: int) -> str | None:
    """Why a model cannot be verified, by its class and configuration; ``None`` if it can."""
    config = model.config
    if getattr(config, "is_encoder_decoder", False):
        return "it is an encoder-decoder model; only causal language models are verified"
    if getattr(model, "_is_stateful", False):
        return "it keeps recurrent state, which rejected tokens cannot be taken out of"
    others = sorted(set(getattr(config, "layer_types", None) or ()) - _SUPPORTED_LAYERS)
    if others:
        return f"its layers of type {', '.join(others)} do not keep plain keys and values"
    for rope in _ropes(config):
        kind = rope.get("rope_type", rope.get("type"))
        original = rope.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", None
        )
        if kind in _ROPE_OF_LENGTH and not (original and max_model_len <= original):
            advice = f"; set max_model_len to at most {original}" if original else ""
            return (
                f"its rotary positions (rope_type {kind!r}) change with the longest text in a "
                f"batch, so a request would depend on its neighbours{advice}"
            )
    return None


def _ropes(config: Any) -> list[dict[str, Any]]:
    """One set of rotary parameters, or one per kind of layer."""
    given = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if not isinstance(given, dict):
        return []
    nested = [value for value in given.values() if isinstance(value, dict)]
    return nested or [given]


class _ShapeProbe:
    """Attends to the tokens at hand and notes what each layer asked for."""

    def __init__(self) -> None:
        self.shapes: dict[int, LayerShape] = {}
        self.windows: dict[int, int | None] = {}
        self.unsupported: set[str] = set()
        self.repeated: set[int] = set()

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions
    ) -> Tensor:
        if layer in self.shapes:
            self.repeated.add(layer)
        self.shapes[layer] = LayerShape(key.shape[1], key.shape[3], value.shape[3])
        self.windows[layer] = options.window
        self.unsupported |= set(options.unsupported)
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])


@torch.inference_mode()
def probe_shapes(model: Any, name: str) -> tuple[LayerShape, ...]:
    """What every layer keeps per token, learned by running two tokens through the model.

    Raises:
        ConfigError: a layer keeps something else than keys and values of its own, or asks for an
            attention that is not supported; the message says what.
    """
    probe = _ShapeProbe()
    ids = torch.tensor([[0, 1]], device=model.device)
    positions = torch.arange(2, device=model.device)[None]
    with running(probe):
        model(input_ids=ids, position_ids=positions, use_cache=False)
    layers = int(model.config.get_text_config().num_hidden_layers)
    reason = None
    if not probe.shapes:
        reason = "its code does not use transformers' attention interface"
    elif probe.unsupported:
        reason = f"its attention needs {', '.join(sorted(probe.unsupported))}"
    elif set(probe.shapes) != set(range(layers)) or probe.repeated:
        reason = f"only layers {sorted(probe.shapes)} of {layers} keep keys and values of their own"
    else:
        reason = _window_refusal(model.config.get_text_config(), probe.windows)
    if reason:
        raise ConfigError(f"model: {name!r} cannot be verified: {reason}")
    return tuple(probe.shapes[layer] for layer in range(layers))


def _window_refusal(config: Any, windows: dict[int, int | None]) -> str | None:
    """A window that the model's code does not pass on would be ignored beyond its length."""
    window = getattr(config, "sliding_window", None)
    if not window or getattr(config, "use_sliding_window", True) is False:
        return None
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * len(windows)
    for layer, kind in enumerate(kinds):
        expected = window if kind == "sliding_attention" else None
        if windows[layer] != expected:
            return (
                f"layer {layer} should see {expected or 'all'} tokens by its configuration, but "
                f"asks attention for {windows[layer] or 'all'}"
            )
    return None


@torch.inference_mode()
def check_against_own_attention(
    model: Any, shapes: Sequence[LayerShape], vocab_size: int, name: str
) -> None:
    """Compare the packed attention, in pieces and over a tree, with the model's own.

    Raises:
        ConfigError: they say different things; the message gives the largest difference.
    """
    ids = np.random.default_rng(0).integers(0, vocab_size, 20)
    # The tree: two branches behind 12 known tokens and one more; nodes 1, 3, 4 are one branch.
    parents = np.array([-1, -1, 0, 1, 3], np.int32)
    branch = [0, 2, 4, 5]  # columns of the last row: the token itself, then nodes 1, 3, 4
    path = [*range(13), *(12 + column for column in branch[1:])]
    given = _packed_logits(model, shapes, ids[:18], parents)[branch]
    model.set_attn_implementation("eager")
    try:
        own = model(
            input_ids=torch.as_tensor(ids[path], device=model.device)[None], use_cache=False
        ).logits[0, 12:]
    finally:
        model.set_attn_implementation(ATTENTION_NAME)
    own, given = own.double(), given.double()
    difference = float((own - given).square().mean().sqrt() / own.std().clamp_min(1e-9))
    if not difference <= _TOLERANCE[model.dtype]:
        raise ConfigError(
            f"model: {name!r} cannot be verified: its logits differ by {difference:.3g} standard "
            "deviations between its own attention and the packed one, so it keeps state or masks "
            "that this engine does not know"
        )


def _packed_logits(
    model: Any, shapes: Sequence[LayerShape], ids: np.ndarray[Any, Any], parents: Any
) -> Tensor:
    """Logits of the last 6 of 18 tokens: 12 in two pieces, then one and a tree of five."""
    cache = SequenceCache(shapes, model.dtype, model.device, reserved=len(ids))
    logits = torch.empty(0)
    for start, stop in ((0, 5), (5, 12), (12, 18)):
        cache.reserve(stop)
        tree = parents if stop == 18 else None
        step = PackedStep([PackedRow(cache, 0, stop - start, start, tree)])
        positions = torch.as_tensor(step.position_ids(), device=model.device)[None]
        tokens = torch.as_tensor(ids[start:stop], device=model.device)[None]
        with running(step):
            logits = model(input_ids=tokens, position_ids=positions, use_cache=False).logits[0]
        cache.commit(ids[start:stop], range(stop - start))
    return logits
