"""The speculative configuration: vLLM's keys and rules, and a few keys of our own.

A JSON object that vLLM accepts as ``--speculative-config`` is accepted here unchanged. Which
methods can really be used is decided where a proposer is created, not here, so that one file can
configure several engines.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, cast

from suffixspec_index.config_values import (
    as_boolean,
    as_choice,
    as_integer,
    as_real,
    as_text,
    unknown_name,
)
from suffixspec_index.errors import ConfigError

METHODS: tuple[str, ...] = (
    "suffix",
    "ngram",
    "prediction",
    "hybrid",
    "none",
    "draft_model",
    "eagle",
    "eagle3",
    "mtp",
    "medusa",
    "mlp_speculator",
    "dflash",
    "dspark",
    "ngram_gpu",
    "extract_hidden_states",
    "custom_class",
)
"""Every method that parses: vLLM's, and our ``prediction``, ``hybrid`` and ``none``."""

DraftShape = Literal["path", "tree"]
RejectionSampleMethod = Literal["coupled", "standard", "synthetic", "block"]
DraftSampleMethod = Literal["greedy", "probabilistic"]
BatchSizeRange = tuple[int, int, int]

_WITHOUT_MODEL = frozenset(
    {"suffix", "ngram", "ngram_gpu", "prediction", "hybrid", "none"}
    | {"extract_hidden_states", "mtp", "dspark"}
)  # mtp and dspark: the weights may lie in the target's checkpoint
_TOKENS_FROM_MODEL = frozenset({"none", "eagle", "eagle3", "mtp", "medusa", "mlp_speculator"}) | {
    "draft_model",
    "dflash",
    "dspark",
}  # the draft model's own configuration may say how many tokens it predicts
_PREDICTION_TOKENS = 16
_MISNAMED = {
    "tensor_parallel_size": "draft_tensor_parallel_size",
    "disable_by_batch_size": "num_speculative_tokens_per_batch_size",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """What to propose, and how much of it. Checked on construction; never changes.

    Attributes:
        method: one of :data:`METHODS`. Read from a mapping that names no method it is inferred
            from ``model`` as vLLM does (``"ngram"``, a dotted path for ``custom_class``, else
            ``draft_model``); without a model it is ``suffix``.
        model: the draft model, or the dotted path of a custom proposer class.
        num_speculative_tokens: most tokens in a draft. 0 means "not given": ``suffix`` and
            ``hybrid`` then take the tree depth, ``prediction`` 16, and methods with a draft model
            keep 0 for "as many as the model's configuration says". It is settled on construction,
            so changing ``suffix_decoding_max_tree_depth`` with ``dataclasses.replace`` does not
            move it.
        draft_tensor_parallel_size: 1 or the target's.
        prompt_lookup_min, prompt_lookup_max: shortest and longest n-gram looked for (``ngram``):
            5 and 5 if neither is given; the one given counts for both.
        use_heterogeneous_vocab: the draft model has another vocabulary; greedy or probabilistic
            drafts (vLLM allows greedy ones only).
        parallel_drafting: the draft model proposes all tokens in one pass.
        num_speculative_tokens_per_batch_size: ``(first, last, tokens)`` ranges of batch sizes.
        suffix_decoding_max_tree_depth: depth of the suffix trees, in tokens.
        suffix_decoding_max_cached_requests: requests the global tree remembers; 0: no global tree.
        suffix_decoding_max_spec_factor, suffix_decoding_max_spec_offset: a match of ``m`` tokens
            allows a draft of ``factor * m + offset``. ``None`` (ours; vLLM's default is 1.0): no
            such bound, because the learned probabilities end drafts better than the match length
            does. The offset is our own key.
        suffix_decoding_min_token_prob: least estimated probability that a drafted token is accepted
            together with all before it, in [0, 1].
        rejection_sample_method: how drafts are verified where temperature is not 0. ``coupled``
            (ours; the default): the text for a seed is the same with and without drafts;
            ``standard``: rejection sampling; ``block``: block verification; ``synthetic``: drafts
            are accepted by chance, whatever the model says (vLLM's, for measuring only).
        draft_sample_method: whether a draft model's tokens are its most probable ones or drawn.
        synthetic_acceptance_rates, synthetic_acceptance_length: for ``synthetic`` only.
        max_model_len: drafts never run past this many tokens of context; ``None``: no such bound.
        min_match_len: (ours) shortest match that a suffix draft may rest on.
        draft_shape: (ours) ``path``, as vLLM verifies, or ``tree``.
        index_prompts: (ours) prompts and tool results enter the global tree, not only outputs.
        allow_beyond_depth: (ours) a match of full depth goes on copying from the text.
        draft_token_cost: (ours; ``hybrid`` with a ``model``) what drafting one token with the model
            costs, in steps of the target model; ``None``: estimated from the models' sizes.
        dynamic: (ours) how much of a draft is verified follows from what it is expected to gain and
            what verifying it costs, for all requests of a step together; needs a cost model, which
            an engine measures by itself. ``min_token_prob`` then does not apply. ``None``: yes,
            unless there is a schedule by batch size.
        engine_options: vLLM's keys that only concern how a draft model is run, as given.
    """

    method: str = "suffix"
    model: str | None = None
    num_speculative_tokens: int = 0
    draft_tensor_parallel_size: int | None = None
    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None
    use_heterogeneous_vocab: bool = False
    parallel_drafting: bool = False
    num_speculative_tokens_per_batch_size: tuple[BatchSizeRange, ...] | None = None
    suffix_decoding_max_tree_depth: int = 24
    suffix_decoding_max_cached_requests: int = 10_000
    suffix_decoding_max_spec_factor: float | None = None
    suffix_decoding_max_spec_offset: float = 0.0
    suffix_decoding_min_token_prob: float = 0.1
    rejection_sample_method: RejectionSampleMethod = "coupled"
    draft_sample_method: DraftSampleMethod = "greedy"
    synthetic_acceptance_rates: tuple[float, ...] | None = None
    synthetic_acceptance_length: float | None = None
    max_model_len: int | None = None
    min_match_len: int = 1
    draft_shape: DraftShape = "path"
    index_prompts: bool = False
    allow_beyond_depth: bool = True
    draft_token_cost: float | None = None
    dynamic: bool | None = None
    engine_options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for key, value in _checked_values(self).items():
            object.__setattr__(self, key, value)
        _check_method(self)
        _settle_prompt_lookup(self)
        _settle_num_speculative_tokens(self)
        _settle_dynamic(self)
        _check_combinations(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SpeculativeConfig:
        """Read a mapping with vLLM's keys and ours. ``None`` counts as not given.

        Raises:
            ConfigError: an unknown key (the message names the nearest known one), or a value that
                is of a wrong type, out of range or contradicts another.
        """
        for key in values:
            if key in _MISNAMED:
                raise ConfigError(f"{key}: not a key of speculative_config; use {_MISNAMED[key]!r}")
            if key not in _KNOWN_KEYS:
                raise unknown_name("key in speculative_config", key, _KNOWN_KEYS)
        given = {key: value for key, value in values.items() if value is not None}
        if "num_speculative_tokens" in given:
            as_integer(given["num_speculative_tokens"], "num_speculative_tokens", minimum=1)
        options = {key: given.pop(key) for key in sorted(_ENGINE_KEYS & given.keys())}
        if "method" not in given and "model" in given:
            given["method"] = _infer_method(as_text(given["model"], "model"))
        return cls(**given, engine_options=options)

    @classmethod
    def from_json(cls, text: str | bytes) -> SpeculativeConfig:
        """Read a JSON object, as given to vLLM's ``--speculative-config``.

        Raises:
            ConfigError: not a JSON object, or as for :meth:`from_dict`.
        """
        try:
            values = json.loads(text)
        except ValueError as error:  # JSONDecodeError and UnicodeDecodeError
            raise ConfigError(
                f"speculative_config: not valid JSON ({error}); write for example "
                '{"method": "suffix", "num_speculative_tokens": 16}'
            ) from None
        if not isinstance(values, dict):
            raise ConfigError(
                f"speculative_config: must be a JSON object, got {type(values).__name__}"
            )
        return cls.from_dict(values)

    def to_dict(self) -> dict[str, Any]:
        """All settings in force, as JSON values. ``from_dict`` gives back an equal object."""
        values: dict[str, Any] = {}
        for spec in dataclasses.fields(self):
            value = getattr(self, spec.name)
            if value is None or spec.name == "engine_options":
                continue
            values[spec.name] = _as_json(value)
        if not self.num_speculative_tokens:
            del values["num_speculative_tokens"]
        return values | dict(self.engine_options)

    def num_speculative_tokens_at(self, batch_size: int) -> int:
        """The most draft tokens per request in a batch of this size. O(ranges).

        A size between two ranges, or beyond the last, takes the range before it.
        """
        schedule = self.num_speculative_tokens_per_batch_size
        tokens = self.num_speculative_tokens
        for first, _, scheduled in schedule or ():
            if first > batch_size:
                break
            tokens = scheduled
        return min(tokens, self.num_speculative_tokens)


_ENGINE_KEYS = frozenset(
    {
        "enforce_eager",
        "quantization",
        "moe_backend",
        "attention_backend",
        "kv_cache_dtype",
        "revision",
        "code_revision",
        "draft_load_config",
        "disable_padded_drafter_batch",
        "disable_eagle_block_drop",
        "use_local_argmax_reduction",
        "index_share_for_mtp_iteration",
        "enable_adaptive_verification",
        "dspark_draft_topk",
    }
)
_KNOWN_KEYS = _ENGINE_KEYS | {
    spec.name for spec in dataclasses.fields(SpeculativeConfig) if spec.name != "engine_options"
}
_BOOLEANS = (
    "use_heterogeneous_vocab",
    "parallel_drafting",
    "index_prompts",
    "allow_beyond_depth",
    "dynamic",
)
_CHOICES: dict[str, tuple[str, ...]] = {
    "rejection_sample_method": ("coupled", "standard", "synthetic", "block"),
    "draft_sample_method": ("greedy", "probabilistic"),
    "draft_shape": ("path", "tree"),
}
_INTEGER_MINIMUM = {
    "num_speculative_tokens": 0,
    "draft_tensor_parallel_size": 1,
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 1,
    "suffix_decoding_max_tree_depth": 1,
    "suffix_decoding_max_cached_requests": 0,
    "max_model_len": 1,
    "min_match_len": 1,
}
_REAL_BOUNDS: dict[str, tuple[float | None, float | None]] = {
    "suffix_decoding_max_spec_factor": (0.0, None),
    "suffix_decoding_max_spec_offset": (None, None),
    "suffix_decoding_min_token_prob": (0.0, 1.0),
    "synthetic_acceptance_length": (1.0, None),
    "draft_token_cost": (0.0, None),
}
_OPTIONAL = frozenset(
    spec.name for spec in dataclasses.fields(SpeculativeConfig) if spec.default is None
)


def _checked_values(config: SpeculativeConfig) -> dict[str, Any]:
    """Every field on its own: type and bounds; combinations come later."""

    def given(keys: Sequence[str]) -> list[tuple[str, Any]]:
        pairs = [(key, getattr(config, key)) for key in keys]
        return [(key, value) for key, value in pairs if value is not None or key not in _OPTIONAL]

    values: dict[str, Any] = {}
    for key, value in given(_BOOLEANS):
        values[key] = as_boolean(value, key)
    for key, value in given(tuple(_CHOICES)):
        values[key] = as_choice(value, key, _CHOICES[key])
    for key, value in given(tuple(_INTEGER_MINIMUM)):
        values[key] = as_integer(value, key, minimum=_INTEGER_MINIMUM[key], maximum=2**31 - 1)
    for key, value in given(tuple(_REAL_BOUNDS)):
        low, high = _REAL_BOUNDS[key]
        values[key] = as_real(value, key, minimum=low, maximum=high)
    if config.model is not None:
        values["model"] = as_text(config.model, "model")
    if config.num_speculative_tokens_per_batch_size is not None:
        values["num_speculative_tokens_per_batch_size"] = _checked_schedule(
            config.num_speculative_tokens_per_batch_size
        )
    if config.synthetic_acceptance_rates is not None:
        values["synthetic_acceptance_rates"] = _checked_rates(config.synthetic_acceptance_rates)
    return values


def _infer_method(model: str) -> str:
    if model in ("ngram", "[ngram]"):
        return "ngram"
    parts = model.split(".")
    dotted = len(parts) >= 2 and all(part.isidentifier() for part in parts)
    return "custom_class" if dotted else "draft_model"


def _check_method(config: SpeculativeConfig) -> None:
    method = as_text(config.method, "method")
    if method == "[ngram]":
        method = "ngram"
    if method.endswith("_mtp"):  # vLLM's older names, one per model family
        method = "mtp"
    object.__setattr__(config, "method", as_choice(method, "method", METHODS))
    if config.model is None and method not in _WITHOUT_MODEL:
        what = (
            "the dotted path of the proposer class, e.g. 'my_module.MyProposer'"
            if method == "custom_class"
            else "the draft model's name or folder"
        )
        raise ConfigError(f"model: missing; method {method!r} needs {what}")


def _settle_prompt_lookup(config: SpeculativeConfig) -> None:
    if config.method not in ("ngram", "ngram_gpu"):
        return
    low, high = config.prompt_lookup_min, config.prompt_lookup_max
    if low is None and high is None:
        low = high = 5
    low, high = (high if low is None else low), (low if high is None else high)
    assert low is not None
    assert high is not None
    if low > high:
        raise ConfigError(
            f"prompt_lookup_min: {low} is greater than prompt_lookup_max={high}; "
            "lower the one or raise the other"
        )
    object.__setattr__(config, "prompt_lookup_min", low)
    object.__setattr__(config, "prompt_lookup_max", high)


def _settle_num_speculative_tokens(config: SpeculativeConfig) -> None:
    if config.num_speculative_tokens or config.method in _TOKENS_FROM_MODEL:
        return
    defaults = {
        "suffix": config.suffix_decoding_max_tree_depth,
        "hybrid": config.suffix_decoding_max_tree_depth,
        "prediction": _PREDICTION_TOKENS,
    }
    if config.method not in defaults:
        raise ConfigError(
            f"num_speculative_tokens: missing; method {config.method!r} needs a number of draft "
            "tokens per step, greater than zero"
        )
    object.__setattr__(config, "num_speculative_tokens", defaults[config.method])


def _settle_dynamic(config: SpeculativeConfig) -> None:
    if config.dynamic is None:
        fixed = config.method == "none" or config.num_speculative_tokens_per_batch_size is not None
        object.__setattr__(config, "dynamic", not fixed)


def _check_combinations(config: SpeculativeConfig) -> None:
    if config.use_heterogeneous_vocab:
        if config.method not in ("draft_model", "hybrid") or config.model is None:
            raise ConfigError(
                "use_heterogeneous_vocab: only works with method 'draft_model', or 'hybrid' with "
                f"a model, got method {config.method!r}"
            )
        if config.engine_options.get("use_local_argmax_reduction"):
            raise ConfigError(
                "use_heterogeneous_vocab: cannot be combined with use_local_argmax_reduction"
            )
    for key, method in (
        ("index_share_for_mtp_iteration", "mtp"),
        ("enable_adaptive_verification", "dspark"),
        ("dspark_draft_topk", "dspark"),
    ):
        if config.engine_options.get(key) not in (None, False) and config.method != method:
            raise ConfigError(f"{key}: only works with method {method!r}, got {config.method!r}")
    _check_synthetic(config)


def _check_synthetic(config: SpeculativeConfig) -> None:
    rates, length = config.synthetic_acceptance_rates, config.synthetic_acceptance_length
    if config.rejection_sample_method != "synthetic":
        if rates is not None or length is not None:
            raise ConfigError(
                "synthetic_acceptance_rates, synthetic_acceptance_length: only valid with "
                "rejection_sample_method 'synthetic'"
            )
        return
    if (rates is None) == (length is None):
        raise ConfigError(
            "rejection_sample_method: 'synthetic' needs exactly one of "
            "synthetic_acceptance_rates and synthetic_acceptance_length"
        )
    tokens = config.num_speculative_tokens
    if rates is not None and len(rates) != tokens:
        raise ConfigError(
            f"synthetic_acceptance_rates: must have num_speculative_tokens={tokens} entries, "
            f"got {len(rates)}"
        )
    if length is not None:
        as_real(length, "synthetic_acceptance_length", minimum=1, maximum=tokens + 1)


def _checked_rates(rates: object) -> tuple[float, ...]:
    key = "synthetic_acceptance_rates"
    if not isinstance(rates, (list, tuple)):
        raise ConfigError(f"{key}: must be a list of numbers in [0, 1], got {rates!r}")
    checked = tuple(
        as_real(rate, f"{key}[{i}]", minimum=0.0, maximum=1.0) for i, rate in enumerate(rates)
    )
    if any(later > earlier for earlier, later in pairwise(checked)):
        raise ConfigError(f"{key}: must not rise from one position to the next, got {rates!r}")
    return checked


def _checked_schedule(schedule: object) -> tuple[BatchSizeRange, ...]:
    key = "num_speculative_tokens_per_batch_size"
    form = "a list of [first batch size, last batch size, tokens]"
    if not isinstance(schedule, (list, tuple)) or not schedule:
        raise ConfigError(f"{key}: must be {form}, got {schedule!r}")
    ranges: list[BatchSizeRange] = []
    for i, entry in enumerate(schedule):
        if not isinstance(entry, (list, tuple)) or len(entry) != 3:
            raise ConfigError(f"{key}[{i}]: must be [first, last, tokens], got {entry!r}")
        first, last = (as_integer(bound, f"{key}[{i}]", minimum=1) for bound in entry[:2])
        if first > last:
            raise ConfigError(f"{key}[{i}]: the range starts at {first} but ends at {last}")
        ranges.append((first, last, as_integer(entry[2], f"{key}[{i}]", minimum=0)))
    ranges.sort()
    if ranges[0][0] != 1:
        raise ConfigError(f"{key}: the first range must start at 1, got {ranges[0][0]}")
    for before, after in pairwise(ranges):
        if after[0] <= before[1]:
            raise ConfigError(f"{key}: the ranges {list(before)} and {list(after)} overlap")
    return tuple(ranges)


def _as_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_as_json(item) for item in value]
    return cast(Any, value)
