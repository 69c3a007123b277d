"""What the plug-in reads off vLLM's configuration."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from suffixspec_engine.vllm.settings import PluginSettings
from suffixspec_index.errors import ConfigError
from tests.engine.vllm.batches import vllm_config


def read(most: int = 8, **additional: Any) -> PluginSettings:
    return PluginSettings.from_vllm(vllm_config(most=most, additional=additional))


def test_defaults_follow_vllm() -> None:
    settings = read(most=5)
    assert settings.speculative.method == "suffix"
    assert settings.speculative.num_speculative_tokens == 5
    assert settings.speculative.max_model_len == 4096


def test_own_settings_and_vllms_bound() -> None:
    settings = read(speculative={"num_speculative_tokens": 32, "min_match_len": 3}, tenant="t")
    assert settings.speculative.num_speculative_tokens == 8
    assert settings.speculative.min_match_len == 3
    assert settings.tenant == "t"


def test_without_a_section_of_ours() -> None:
    config = vllm_config()
    config.additional_config = SimpleNamespace()
    assert PluginSettings.from_vllm(config) == PluginSettings.from_vllm(vllm_config())


@pytest.mark.parametrize(
    ("additional", "message"),
    [
        ({"tennant": "x"}, "tenant"),
        ({"speculative": 3}, "speculative"),
        ({"speculative": {"method": "eagle", "model": "m"}}, "does not work inside vLLM"),
        ({"speculative": {"draft_shape": "tree"}}, "no trees"),
        ({"max_bytes": 3}, "max_bytes"),
        ({"identify": 3}, "identify"),
    ],
)
def test_wrong_settings_are_refused(additional: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(**additional)
