"""What a request wants of sampling: OpenAI's and vLLM's names, defaults and ranges."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from suffixspec_index.errors import ConfigError

GREEDY_BELOW = 1e-5
"""Temperatures below this mean argmax, as in vLLM: dividing by them would overflow."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of a request are chosen and when it ends.

    Attributes:
        temperature: 0 is greedy: the token with the largest logit, the lowest id where they tie.
        top_k: only the ``k`` most probable tokens (and those that tie with the last of them); 0 or
            -1: all.
        top_p: the smallest set of most probable tokens whose mass reaches ``top_p``; in (0, 1].
        min_p: only tokens at least ``min_p`` times as probable as the most probable; in [0, 1].
        repetition_penalty: > 0; logits of tokens in prompt or output are divided by it where
            positive, multiplied where negative. 1: none.
        presence_penalty: in [-2, 2]; subtracted once from tokens in the output.
        frequency_penalty: in [-2, 2]; subtracted per occurrence in the output.
        logit_bias: added to the logits, token id -> bias in [-100, 100].
        min_tokens: no stop token, end of sequence or stop string before so many output tokens.
        max_tokens: output tokens at most; ``None``: until the model's length.
        stop_token_ids: tokens that end the request.
        ignore_eos: go on after the model's end-of-sequence token.
        stop: strings that end the request, wherever they begin within tokens.
        include_stop_str_in_output: leave the stop string in the text.
        seed: any integer; ``None``: the engine draws one.
        logprobs: how many most probable tokens to report per position next to the emitted one; 0:
            only that one, -1: the whole vocabulary, ``None``: no log probabilities.

    Raises:
        ConfigError: a value is out of range; names field, value and remedy.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    min_tokens: int = 0
    max_tokens: int | None = 16
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    seed: int | None = None
    logprobs: int | None = None
    stop_token_id_set: frozenset[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _number("temperature", self.temperature, 0.0, math.inf, "use 0 for greedy")
        _integer("top_k", self.top_k, -1, None, "use 0 or -1 for all tokens")
        _number("top_p", self.top_p, 0.0, 1.0, "use 1 for all tokens", open_low=True)
        _number("min_p", self.min_p, 0.0, 1.0, "use 0 for all tokens")
        _number(
            "repetition_penalty", self.repetition_penalty, 0.0, math.inf, "use 1 for none", True
        )
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0, "use 0 for none")
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0, "use 0 for none")
        self._set("logit_bias", _checked_bias(self.logit_bias))
        _integer("min_tokens", self.min_tokens, 0, None, "use 0 for no minimum")
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1, None, "leave it None for no limit")
            if self.min_tokens > self.max_tokens:
                raise ConfigError(
                    f"min_tokens: {self.min_tokens} is more than max_tokens "
                    f"({self.max_tokens}); lower min_tokens or raise max_tokens"
                )
        self._set("stop_token_ids", _checked_ids(self.stop_token_ids))
        self._set("stop_token_id_set", frozenset(self.stop_token_ids))
        self._set("stop", _checked_stop(self.stop))
        for name in ("ignore_eos", "include_stop_str_in_output"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name}: {getattr(self, name)!r} is not true or false")
        if self.seed is not None:
            _integer("seed", self.seed, None, None, "leave it None for a random one")
        if self.logprobs is not None:
            _integer("logprobs", self.logprobs, -1, None, "use -1 for the whole vocabulary")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def greedy(self) -> bool:
        """Whether tokens are the argmax."""
        return self.temperature < GREEDY_BELOW

    @property
    def has_penalties(self) -> bool:
        """Whether tokens already there change the logits."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    def check_vocab(self, vocab_size: int) -> None:
        """Raise :class:`ConfigError` where a token id is not in a vocabulary of this size."""
        for name, ids in (
            ("logit_bias", self.logit_bias.keys()),
            ("stop_token_ids", self.stop_token_ids),
        ):
            for token_id in ids:
                if token_id >= vocab_size:
                    raise ConfigError(
                        f"{name}: token id {token_id} is not below the vocabulary size "
                        f"{vocab_size}; leave it out"
                    )


def _number(
    name: str, value: Any, low: float, high: float, remedy: str, open_low: bool = False
) -> None:
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not fits or value > high or value < low or (open_low and value <= low):
        start = "(" if open_low else "["
        end = "inf)" if high == math.inf else f"{high:g}]"
        raise ConfigError(f"{name}: {value!r} is not a number in {start}{low:g}, {end}; {remedy}")


def _integer(name: str, value: Any, low: int | None, high: int | None, remedy: str) -> None:
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or (low is not None and value < low)
        or (high is not None and value > high)
    ):
        bounds = "" if low is None else f" of at least {low}"
        raise ConfigError(f"{name}: {value!r} is not an integer{bounds}; {remedy}")


def _checked_bias(bias: Mapping[Any, Any]) -> dict[int, float]:
    """OpenAI's JSON has string keys; they are taken as the integers they spell."""
    if not isinstance(bias, Mapping):
        raise ConfigError(f"logit_bias: {bias!r} is not a mapping from token id to bias")
    checked: dict[int, float] = {}
    for key, value in bias.items():
        try:
            token_id = int(key) if isinstance(key, str) else key
        except ValueError:
            token_id = key
        _integer("logit_bias", token_id, 0, None, "keys are token ids")
        _number(f"logit_bias[{token_id}]", value, -100.0, 100.0, "use -100 to ban a token")
        checked[token_id] = float(value)
    return checked


def _checked_ids(ids: Iterable[Any]) -> tuple[int, ...]:
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
        raise ConfigError(f"stop_token_ids: {ids!r} is not a list of token ids")
    checked = tuple(ids)
    for token_id in checked:
        _integer("stop_token_ids", token_id, 0, None, "leave it out")
    return checked


def _checked_stop(stop: str | Iterable[Any]) -> tuple[str, ...]:
    if not isinstance(stop, Iterable):
        raise ConfigError(f"stop: {stop!r} is not a string or a list of strings")
    checked = (stop,) if isinstance(stop, str) else tuple(stop)
    for text in checked:
        if not isinstance(text, str) or not text:
            raise ConfigError(f"stop: {text!r} is not a non-empty string; leave it out")
    return checked
