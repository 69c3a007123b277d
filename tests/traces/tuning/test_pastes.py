"""What is pasted is taken, and means the setting that was judged."""

from __future__ import annotations

import json
import shlex
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from suffixspec_engine.vllm.settings import PluginSettings
from suffixspec_index.proposers import create_proposer
from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_traces.tuning import TuningReport
from suffixspec_traces.tuning.pastes import (
    PLUGIN_CLASS,
    ours_toml,
    ours_yaml,
    plugin_shell,
    settings_of,
    vllm_json,
)
from suffixspec_traces.tuning.space import FAMILIES, NGRAM, SUFFIX, VLLM_SUFFIX
from tests.engine.vllm.batches import vllm_config

# As vLLM documents its SpeculativeConfig; it refuses every other key.
VLLM_KEYS = {
    "method",
    "num_speculative_tokens",
    "prompt_lookup_min",
    "prompt_lookup_max",
    "suffix_decoding_max_tree_depth",
    "suffix_decoding_max_cached_requests",
    "suffix_decoding_max_spec_factor",
    "suffix_decoding_min_token_prob",
}
CONFIGS = [family.config(start) for family in FAMILIES for start in family.starts]
TUNED = SUFFIX.config(
    SUFFIX.starts[1] | {"suffix_decoding_max_spec_factor": 2.0, "min_match_len": 3}
)


@pytest.mark.parametrize("config", CONFIGS)
def test_settings_mean_the_configuration(config: SpeculativeConfig) -> None:
    again = SpeculativeConfig.from_dict(settings_of(config))
    assert settings_of(again) == settings_of(config)
    for key in ("num_speculative_tokens", "dynamic", "draft_shape", "min_match_len"):
        if key in settings_of(config):
            assert getattr(again, key) == getattr(config, key)
    if config.method == "suffix":
        assert again == config
    create_proposer(again)


def test_yaml_and_toml_say_the_same() -> None:
    as_yaml = yaml.safe_load(ours_yaml(TUNED, 'it\'s "mine"', "tuned").text)
    as_toml = tomllib.loads(ours_toml(TUNED, 'it\'s "mine"', "tuned").text)
    assert as_yaml == as_toml
    assert as_toml["cost_model"] == 'it\'s "mine"'
    assert SpeculativeConfig.from_dict(as_toml["speculative"]) == TUNED


@pytest.mark.parametrize("family", [VLLM_SUFFIX, NGRAM], ids=lambda f: f.name)
def test_vllm_knows_every_key(family: object) -> None:
    assert family in (VLLM_SUFFIX, NGRAM)
    chosen = VLLM_SUFFIX if family is VLLM_SUFFIX else NGRAM
    for start in chosen.starts:
        config = chosen.config(start)
        values = json.loads(vllm_json(config, "best n-gram").text)
        assert set(values) <= VLLM_KEYS
        again = SpeculativeConfig.from_dict(
            values | {"allow_beyond_depth": config.allow_beyond_depth, "dynamic": False}
        )
        assert settings_of(again) == settings_of(config)


def _as_vllm_has_it(text: str) -> Any:
    """The configuration of a vLLM that was started with this line, as far as the plug-in reads."""
    words = shlex.split(text.replace("\\\n", " "))  # shlex knows no continued lines
    assert words[:3] == ["vllm", "serve", "MODEL"]
    options = zip(words[3::2], words[4::2], strict=True)
    given = {name: json.loads(value) for name, value in options}
    speculative = given["--speculative-config"]
    assert set(speculative) == {"method", "model", "num_speculative_tokens"}
    assert (speculative["method"], speculative["model"]) == ("custom_class", PLUGIN_CLASS)
    SpeculativeConfig.from_dict(speculative)
    additional = given["--additional-config"]
    assert list(additional) == ["suffixspec"]
    return vllm_config(
        most=speculative["num_speculative_tokens"], additional=additional["suffixspec"]
    )


@pytest.mark.parametrize("config", [c for c in [*CONFIGS, TUNED] if c.draft_shape == "path"])
def test_the_plug_in_reads_its_settings_back(config: SpeculativeConfig) -> None:
    config = replace(config, dynamic=config.dynamic and config.method == "suffix")
    read = PluginSettings.from_vllm(_as_vllm_has_it(plugin_shell(config, "tuned").text))
    assert settings_of(read.speculative) == settings_of(config)
    for key in ("num_speculative_tokens", "dynamic", "min_match_len"):
        assert getattr(read.speculative, key) == getattr(config, key)
    assert read.log is None  # and nothing that tuning does not know of


def test_what_a_report_offers(report: TuningReport, tmp_path: Path) -> None:
    for one in report.concurrencies:
        assert [p.language for p in one.pastes] == ["yaml", "toml", "json", "json", "shell"]
        for paste in one.pastes:
            assert one.row(paste.role) is not None
        PluginSettings.from_vllm(_as_vllm_has_it(one.pastes[-1].text))  # refuses trees
