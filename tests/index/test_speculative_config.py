import dataclasses
import json
from typing import Any

import pytest

from suffixspec_index.errors import ConfigError
from suffixspec_index.speculative_config import METHODS, SpeculativeConfig

VLLM_EXAMPLES: list[dict[str, Any]] = [
    {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4},
    {"method": "suffix", "num_speculative_tokens": 32},
    {"method": "suffix", "suffix_decoding_max_cached_requests": 0},
    {"model": "facebook/opt-125m", "num_speculative_tokens": 5},
    {"model": "meta/eagle", "method": "eagle3", "draft_tensor_parallel_size": 1},
    {"method": "deepseek_mtp", "num_speculative_tokens": 1},
    {
        "method": "custom_class",
        "model": "suffixspec_engine.vllm.SuffixSpecProposer",
        "num_speculative_tokens": 8,
    },
    {
        "method": "draft_model",
        "model": "small",
        "num_speculative_tokens": 3,
        "use_heterogeneous_vocab": True,
        "quantization": "fp8",
        "enforce_eager": True,
        "num_speculative_tokens_per_batch_size": [[1, 4, 3], [5, 16, 1], [17, 64, 0]],
    },
    {
        "method": "ngram",
        "num_speculative_tokens": 2,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": [0.9, 0.5],
    },
]


@pytest.mark.parametrize("values", VLLM_EXAMPLES, ids=lambda v: str(v.get("method")))
def test_a_vllm_config_works_unchanged_and_round_trips(values: dict[str, Any]) -> None:
    config = SpeculativeConfig.from_json(json.dumps(values))
    again = SpeculativeConfig.from_json(json.dumps(config.to_dict()))
    assert again == config
    kept = {k: v for k, v in config.to_dict().items() if k in values and k != "method"}
    assert kept == {k: v for k, v in values.items() if k != "method"}


@pytest.mark.parametrize(
    ("model", "method"),
    [
        ("ngram", "ngram"),
        ("[ngram]", "ngram"),
        ("my_module.MyProposer", "custom_class"),
        ("facebook/opt-125m", "draft_model"),
        ("https://a.b/c", "draft_model"),
        ("opt-1.3b", "draft_model"),
    ],
)
def test_the_method_is_inferred_from_the_model(model: str, method: str) -> None:
    assert (
        SpeculativeConfig.from_dict({"model": model, "num_speculative_tokens": 2}).method == method
    )


def test_defaults() -> None:
    config = SpeculativeConfig()
    assert config.method == "suffix"
    assert config.num_speculative_tokens == config.suffix_decoding_max_tree_depth == 24
    assert config.draft_shape == "path"
    assert config == SpeculativeConfig.from_dict({}) == SpeculativeConfig.from_json("{}")
    assert SpeculativeConfig(suffix_decoding_max_tree_depth=64).num_speculative_tokens == 64
    assert SpeculativeConfig(method="prediction").num_speculative_tokens == 16
    assert SpeculativeConfig(method="none").num_speculative_tokens == 0
    assert hash(config) == hash(SpeculativeConfig())


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(None, None, (5, 5)), (2, None, (2, 2)), (None, 7, (7, 7)), (2, 4, (2, 4))],
)
def test_prompt_lookup_bounds_follow_vllm(
    low: int | None, high: int | None, expected: tuple[int, int]
) -> None:
    config = SpeculativeConfig.from_dict(
        {
            "method": "ngram",
            "num_speculative_tokens": 3,
            "prompt_lookup_min": low,
            "prompt_lookup_max": high,
        }
    )
    assert (config.prompt_lookup_min, config.prompt_lookup_max) == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tensor_parallel_size": 1}, "use 'draft_tensor_parallel_size'"),
        ({"tensor_parallel_size": None}, "use 'draft_tensor_parallel_size'"),
        ({"disable_by_batch_size": 8}, "use 'num_speculative_tokens_per_batch_size'"),
        ({"num_speculative_token": 3}, "did you mean 'num_speculative_tokens'"),
        ({"suffix_max_tree_depth": 3}, "did you mean 'suffix_decoding_max_tree_depth'"),
        ({"zzz": 1}, "zzz: unknown key in speculative_config; known are"),
        ({"engine_options": {}}, "unknown key"),
        ({"method": "sufix"}, r"method: must be one of .* did you mean 'suffix'"),
        ({"method": 3}, "method: must be a text"),
        ({"method": "eagle"}, "model: missing"),
        ({"method": "custom_class", "num_speculative_tokens": 1}, "dotted path"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens: must be at least 1, got 0"),
        ({"num_speculative_tokens": -1}, "must be at least 1"),
        ({"num_speculative_tokens": True}, "must be an integer, got True"),
        ({"num_speculative_tokens": 1.5}, "must be an integer, got 1.5"),
        ({"num_speculative_tokens": "many"}, "must be an integer, got 'many'"),
        ({"num_speculative_tokens": 2**31}, "between 0 and 2147483647"),
        ({"method": "ngram"}, "num_speculative_tokens: missing"),
        (
            {
                "method": "ngram",
                "num_speculative_tokens": 1,
                "prompt_lookup_min": 6,
                "prompt_lookup_max": 5,
            },
            "prompt_lookup_min: 6 is greater than prompt_lookup_max=5",
        ),
        ({"prompt_lookup_max": 0}, "prompt_lookup_max: must be between 1"),
        ({"draft_tensor_parallel_size": 0}, "draft_tensor_parallel_size"),
        ({"suffix_decoding_max_tree_depth": 0}, "suffix_decoding_max_tree_depth"),
        ({"suffix_decoding_max_cached_requests": -1}, "suffix_decoding_max_cached_requests"),
        ({"suffix_decoding_max_spec_factor": -0.1}, "suffix_decoding_max_spec_factor"),
        ({"suffix_decoding_max_spec_factor": float("nan")}, "finite number"),
        ({"suffix_decoding_max_spec_offset": float("inf")}, "finite number"),
        ({"suffix_decoding_min_token_prob": 1.1}, r"between 0.0 and 1.0, got 1.1"),
        ({"suffix_decoding_min_token_prob": [0.1]}, "finite number"),
        ({"min_match_len": 0}, "min_match_len"),
        ({"draft_shape": "bush"}, "draft_shape: must be one of path, tree"),
        ({"index_prompts": "maybe"}, "index_prompts: must be true or false"),
        ({"rejection_sample_method": "strict"}, "one of coupled, standard, synthetic, block"),
        ({"use_heterogeneous_vocab": True}, "only works with method 'draft_model'"),
        (
            {"model": "m", "use_heterogeneous_vocab": True, "use_local_argmax_reduction": True},
            "cannot be combined",
        ),
        ({"dspark_draft_topk": 4}, "only works with method 'dspark'"),
        ({"rejection_sample_method": "synthetic"}, "exactly one of"),
        ({"synthetic_acceptance_length": 2}, "only valid with"),
        (
            {
                "rejection_sample_method": "synthetic",
                "num_speculative_tokens": 2,
                "synthetic_acceptance_rates": [0.5],
            },
            "must have num_speculative_tokens=2 entries",
        ),
        (
            {
                "rejection_sample_method": "synthetic",
                "num_speculative_tokens": 2,
                "synthetic_acceptance_rates": [0.5, 0.6],
            },
            "must not rise",
        ),
        (
            {
                "rejection_sample_method": "synthetic",
                "num_speculative_tokens": 2,
                "synthetic_acceptance_length": 4,
            },
            "between 1 and 3",
        ),
        ({"num_speculative_tokens_per_batch_size": []}, "must be a list of"),
        ({"num_speculative_tokens_per_batch_size": [[1, 2]]}, r"\[0\]: must be \[first"),
        ({"num_speculative_tokens_per_batch_size": [[2, 4, 1]]}, "must start at 1"),
        ({"num_speculative_tokens_per_batch_size": [[1, 4, 1], [4, 8, 1]]}, "overlap"),
        ({"num_speculative_tokens_per_batch_size": [[1, 4, -1]]}, "at least 0"),
        ({"num_speculative_tokens_per_batch_size": [[4, 1, 1]]}, "starts at 4 but ends at 1"),
    ],
)
def test_wrong_values_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SpeculativeConfig.from_dict(values)


@pytest.mark.parametrize("text", ["", "{", "[1]", "3", b"\xff"])
def test_not_a_json_object(text: str | bytes) -> None:
    with pytest.raises(ConfigError, match="speculative_config"):
        SpeculativeConfig.from_json(text)


def test_numbers_may_come_as_text_from_the_environment() -> None:
    config = SpeculativeConfig.from_dict(
        {
            "method": "ngram",
            "num_speculative_tokens": "4",
            "prompt_lookup_max": 3.0,
            "index_prompts": "on",
            "suffix_decoding_min_token_prob": "0.25",
        }
    )
    assert config.num_speculative_tokens == 4
    assert config.prompt_lookup_max == 3
    assert config.index_prompts is True
    assert config.suffix_decoding_min_token_prob == 0.25


def test_schedule_by_batch_size() -> None:
    config = SpeculativeConfig.from_dict(
        {
            "num_speculative_tokens": 6,
            "num_speculative_tokens_per_batch_size": [[9, 16, 0], [1, 4, 8], [6, 6, 2]],
        }
    )
    expected = {1: 6, 4: 6, 5: 6, 6: 2, 8: 2, 9: 0, 100: 0}
    assert {size: config.num_speculative_tokens_at(size) for size in expected} == expected
    assert SpeculativeConfig().num_speculative_tokens_at(50) == 24


def test_every_method_parses() -> None:
    for method in METHODS:
        config = SpeculativeConfig(method=method, model="a.B", num_speculative_tokens=2)
        assert config.method == method
        assert SpeculativeConfig.from_dict(config.to_dict()) == config


def test_frozen_and_checked_on_replace() -> None:
    config = SpeculativeConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.method = "ngram"  # type: ignore[misc]
    with pytest.raises(ConfigError, match="min_match_len"):
        dataclasses.replace(config, min_match_len=0)


def test_verification_is_coupled_unless_said_otherwise() -> None:
    assert SpeculativeConfig().rejection_sample_method == "coupled"
    given = SpeculativeConfig.from_dict({"rejection_sample_method": "standard"})
    assert given.rejection_sample_method == "standard"
    assert given.to_dict()["rejection_sample_method"] == "standard"


def test_hybrid_has_the_keys_of_suffix_and_of_a_draft_model() -> None:
    alone = SpeculativeConfig(method="hybrid")
    assert (alone.model, alone.num_speculative_tokens) == (None, 24)
    config = SpeculativeConfig.from_dict(
        {"method": "hybrid", "model": "small", "use_heterogeneous_vocab": True, "dynamic": False}
        | {"suffix_decoding_max_tree_depth": 32, "draft_token_cost": 0.1}
    )
    assert (config.num_speculative_tokens, config.draft_token_cost) == (32, 0.1)
    assert SpeculativeConfig.from_dict(config.to_dict()) == config
    with pytest.raises(ConfigError, match="'hybrid' with a model"):
        SpeculativeConfig(method="hybrid", use_heterogeneous_vocab=True)
    with pytest.raises(ConfigError, match="draft_token_cost: must be at least 0"):
        SpeculativeConfig(method="hybrid", model="small", draft_token_cost=-1.0)


def test_depth_is_dynamic_unless_a_schedule_or_the_user_says_otherwise() -> None:
    schedule = [[1, 8, 4]]
    key = "num_speculative_tokens_per_batch_size"
    ngram = {"method": "ngram", "num_speculative_tokens": 4}
    for values, dynamic in (
        ({"method": "suffix"}, True),
        (ngram, True),
        ({"method": "none"}, False),
        ({"method": "suffix", key: schedule}, False),
        ({"method": "suffix", key: schedule, "dynamic": True}, True),
        ({"method": "suffix", "dynamic": False}, False),
    ):
        config = SpeculativeConfig.from_dict(values)
        assert config.dynamic is dynamic
        assert SpeculativeConfig.from_dict(config.to_dict()) == config
