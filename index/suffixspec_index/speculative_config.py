"""The speculative configuration: vLLM's keys and rules, and a few keys of our own.

A JSON object that vLLM accepts as ``--speculative-config`` is accepted here unchanged. Which
methods can really be used is decided where a proposer is created, not here, so that one file can
configure several engines.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from suffixspec_index import speculative_checks as checks
from suffixspec_index.config_values import as_integer, as_text, unknown_name
from suffixspec_index.errors import ConfigError
from suffixspec_index.speculative_keys import (
    ENGINE_KEYS,
    METHODS,
    MISNAMED,
    BatchSizeRange,
    DraftSampleMethod,
    DraftShape,
    RejectionSampleMethod,
)

__all__ = [
    "METHODS",
    "BatchSizeRange",
    "DraftSampleMethod",
    "DraftShape",
    "RejectionSampleMethod",
    "SpeculativeConfig",
]


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
        for key, value in checks.checked_values(self).items():
            object.__setattr__(self, key, value)
        checks.settle_method(self)
        checks.settle_prompt_lookup(self)
        checks.settle_num_speculative_tokens(self)
        checks.settle_dynamic(self)
        checks.check_combinations(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SpeculativeConfig:
        """Read a mapping with vLLM's keys and ours. ``None`` counts as not given.

        Raises:
            ConfigError: an unknown key (the message names the nearest known one), or a value that
                is of a wrong type, out of range or contradicts another.
        """
        for key in values:
            if key in MISNAMED:
                raise ConfigError(f"{key}: not a key of speculative_config; use {MISNAMED[key]!r}")
            if key not in _KNOWN_KEYS:
                raise unknown_name("key in speculative_config", key, _KNOWN_KEYS)
        given = {key: value for key, value in values.items() if value is not None}
        if "num_speculative_tokens" in given:
            as_integer(given["num_speculative_tokens"], "num_speculative_tokens", minimum=1)
        options = {key: given.pop(key) for key in sorted(ENGINE_KEYS & given.keys())}
        if "method" not in given and "model" in given:
            given["method"] = checks.infer_method(as_text(given["model"], "model"))
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


_KNOWN_KEYS = ENGINE_KEYS | {
    spec.name for spec in dataclasses.fields(SpeculativeConfig) if spec.name != "engine_options"
}


def _as_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_as_json(item) for item in value]
    return cast(Any, value)
