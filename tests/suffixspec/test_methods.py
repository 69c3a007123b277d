"""Which methods a replay compares."""

from __future__ import annotations

import pytest

from suffixspec.methods import choose_methods
from suffixspec_index.errors import ConfigError
from suffixspec_index.speculative_config import SpeculativeConfig

SETTINGS = SpeculativeConfig()


def labels(**arguments: object) -> list[str]:
    return [label for label, _ in choose_methods(SETTINGS, **arguments)]  # type: ignore[arg-type]


def test_the_settings_hold_where_nothing_is_named() -> None:
    assert choose_methods(SETTINGS) == [("suffix", SETTINGS)]


def test_methods_by_name_and_by_json() -> None:
    assert labels(compare=["suffix,ngram", '{"method": "none"}']) == ["suffix", "ngram", "none"]
    assert labels(method="ngram") == ["ngram"]
    assert labels(method="none", compare=["ngram"]) == ["none", "ngram"]
    json = '{"suffix_decoding_max_spec_factor": 4}'
    (label, config), *_ = choose_methods(SETTINGS, config=json)
    assert label == "suffix"
    assert config.suffix_decoding_max_spec_factor == 4.0
    named = choose_methods(SETTINGS, method="ngram", config='{"num_speculative_tokens": 3}')
    assert (named[0][1].method, named[0][1].num_speculative_tokens) == ("ngram", 3)


def test_a_method_that_comes_twice_is_told_apart_by_what_differs() -> None:
    found = labels(compare=["suffix", '{"suffix_decoding_max_spec_factor": 4}'])
    assert found == ["suffix max_spec_factor=default", "suffix max_spec_factor=4"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "sufix"}, "method"),
        ({"method": "eagle", "config": '{"model": "m"}'}, "cannot be used"),
        ({"method": "ngram", "config": '{"method": "suffix"}'}, "contradicts"),
        ({"method": "ngram", "config": "{"}, "not valid JSON"),
        ({"config": "[]"}, "object"),
        ({"compare": ["suffix,suffix"]}, "given twice"),
    ],
)
def test_what_cannot_be_compared_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        labels(**arguments)
