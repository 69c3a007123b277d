"""The rules of a speculative configuration: values by themselves, defaults, combinations.

Called while a :class:`~suffixspec_index.speculative_config.SpeculativeConfig` is made, in the order
of this file; every error is a ``ConfigError``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from suffixspec_index.config_values import as_boolean, as_choice, as_integer, as_real, as_text
from suffixspec_index.errors import ConfigError
from suffixspec_index.speculative_keys import METHODS, BatchSizeRange

if TYPE_CHECKING:
    from suffixspec_index.speculative_config import SpeculativeConfig

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


def checked_values(config: SpeculativeConfig) -> dict[str, Any]:
    """Every field on its own: type and bounds; combinations come later.

    Raises:
        ConfigError: a value is of a wrong type or out of range.
    """
    optional = {spec.name for spec in dataclasses.fields(config) if spec.default is None}

    def given(keys: Sequence[str]) -> list[tuple[str, Any]]:
        pairs = [(key, getattr(config, key)) for key in keys]
        return [(key, value) for key, value in pairs if value is not None or key not in optional]

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


def infer_method(model: str) -> str:
    """The method that vLLM takes for a model where none is named."""
    if model in ("ngram", "[ngram]"):
        return "ngram"
    parts = model.split(".")
    dotted = len(parts) >= 2 and all(part.isidentifier() for part in parts)
    return "custom_class" if dotted else "draft_model"


def settle_method(config: SpeculativeConfig) -> None:
    """Check the method, by its present name, and that a model is named where it needs one.

    Raises:
        ConfigError: it is unknown, or the model is missing.
    """
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


def settle_prompt_lookup(config: SpeculativeConfig) -> None:
    """Fill in the bounds of n-grams that were not given.

    Raises:
        ConfigError: the shortest is longer than the longest.
    """
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


def settle_num_speculative_tokens(config: SpeculativeConfig) -> None:
    """Fill in the draft length that was not given, where the method has one.

    Raises:
        ConfigError: it has none.
    """
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


def settle_dynamic(config: SpeculativeConfig) -> None:
    """Fill in whether the draft depth is dynamic."""
    if config.dynamic is None:
        fixed = config.method == "none" or config.num_speculative_tokens_per_batch_size is not None
        object.__setattr__(config, "dynamic", not fixed)


def check_combinations(config: SpeculativeConfig) -> None:
    """What values demand of each other.

    Raises:
        ConfigError: two of them contradict each other.
    """
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
