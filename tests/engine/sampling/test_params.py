import copy
import pickle
from typing import Any

import pytest

from suffixspec_engine.sampling import SamplingParams
from suffixspec_index.errors import ConfigError


def test_defaults_are_vllms() -> None:
    params = SamplingParams()
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (1.0, 0, 1.0, 0.0)
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (
        1.0,
        0.0,
        0.0,
    )
    assert (params.min_tokens, params.max_tokens, params.seed, params.logprobs) == (
        0,
        16,
        None,
        None,
    )
    assert not params.greedy
    assert SamplingParams(temperature=0).greedy


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", "1"),
        ("temperature", True),
        ("top_k", -2),
        ("top_k", 1.5),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {"x": 1.0}),
        ("logit_bias", {3: 101}),
        ("logit_bias", [1]),
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("max_tokens", 0),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", "12"),
        ("stop", ["a", ""]),
        ("stop", 3),
        ("ignore_eos", 1),
        ("seed", 1.5),
        ("logprobs", -2),
    ],
)
def test_a_value_out_of_range_is_named_with_field_and_remedy(field: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        SamplingParams(**{field: value})
    assert str(caught.value).startswith(field)
    assert len(str(caught.value)) > len(field) + 10


def test_openai_json_is_taken_as_it_comes() -> None:
    json: dict[str, Any] = {"logit_bias": {"7": -100}, "stop": "END", "stop_token_ids": [3]}
    params = SamplingParams(**json)
    assert params.logit_bias == {7: -100.0}
    assert params.stop == ("END",)
    assert params.stop_token_ids == (3,)


def test_token_ids_beyond_the_vocabulary_are_refused() -> None:
    SamplingParams(logit_bias={9: 1.0}, stop_token_ids=(9,)).check_vocab(10)
    with pytest.raises(ConfigError, match="logit_bias: token id 10"):
        SamplingParams(logit_bias={10: 1.0}).check_vocab(10)
    with pytest.raises(ConfigError, match="stop_token_ids: token id 12"):
        SamplingParams(stop_token_ids=(12,)).check_vocab(10)


def test_params_are_values() -> None:
    params = SamplingParams(logit_bias={7: 1.0}, stop=("x",))
    assert pickle.loads(pickle.dumps(params)) == params
    assert copy.deepcopy(params) == params
    assert hash(params) == hash(copy.copy(params))
