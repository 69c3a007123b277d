from __future__ import annotations

import itertools

import pytest

from suffixspec_index.index_config import IndexConfig
from suffixspec_index.proposers import create_proposer
from suffixspec_traces.tuning.space import (
    FAMILIES,
    NGRAM,
    SUFFIX,
    VLLM_DEFAULT,
    VLLM_SUFFIX,
    Family,
    our_default,
)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_every_value_makes_a_proposer(family: Family) -> None:
    start = family.starts[0]
    for name, ladder in family.ladders.items():
        assert len(set(ladder)) == len(ladder)
        for value in ladder:
            config = family.config(start | {name: value})
            create_proposer(config, vocab_size=100)
            if config.method == "suffix":
                IndexConfig.from_speculative(config)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_places_and_values_are_inverse(family: Family) -> None:
    for start in family.starts:
        assert family.values(family.params(start)) == start


def test_the_shares_are_the_whole() -> None:
    assert sum(f.share for f in FAMILIES) == pytest.approx(1.0)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_neighbours_differ_in_one_threshold_that_matters(family: Family) -> None:
    for start in family.starts:
        seen: dict[str, int] = {}
        for values in family.neighbours(start, most=3):
            (name,) = [k for k in values if values[k] != start[k]]
            assert name not in family.inert(start)
            seen[name] = seen.get(name, 0) + 1
        assert set(seen) == set(family.ladders) - family.inert(start)
        assert max(seen.values()) <= 3


def test_thresholds_without_effect_are_known() -> None:
    free = SUFFIX.starts[0]
    assert SUFFIX.inert(free) == {"suffix_decoding_max_spec_offset"}
    bounded = free | {"suffix_decoding_max_spec_factor": 2.0, "dynamic": True}
    assert SUFFIX.inert(bounded) == {"suffix_decoding_min_token_prob"}
    assert NGRAM.inert(NGRAM.starts[0]) == frozenset()


def test_vllm_settings_rest_on_its_keys_alone() -> None:
    for values in itertools.islice(VLLM_SUFFIX.neighbours(VLLM_SUFFIX.starts[0]), 50):
        config = VLLM_SUFFIX.config(values)
        assert config.draft_shape == "path"
        assert (config.dynamic, config.index_prompts, config.allow_beyond_depth) == (False,) * 3
        assert config.suffix_decoding_max_spec_factor is not None
        assert (config.suffix_decoding_max_spec_offset, config.min_match_len) == (0.0, 1)


def test_the_defaults_are_those_documented() -> None:
    assert VLLM_DEFAULT.suffix_decoding_max_tree_depth == 24
    assert VLLM_DEFAULT.num_speculative_tokens == 24
    assert VLLM_DEFAULT.suffix_decoding_max_spec_factor == 1.0
    assert VLLM_DEFAULT.suffix_decoding_min_token_prob == 0.1
    assert our_default().method == "suffix"


def test_a_lookup_span_is_added_to_the_minimum() -> None:
    config = NGRAM.config(
        {"prompt_lookup_min": 3, "prompt_lookup_span": 2, "num_speculative_tokens": 4}
    )
    assert (config.prompt_lookup_min, config.prompt_lookup_max) == (3, 5)
