import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from suffixspec.settings import (
    DraftingSettings,
    ServiceSettings,
    SharingSettings,
    load_settings,
    parse_assignments,
)
from suffixspec_engine import EngineConfig
from suffixspec_index.errors import ConfigError
from suffixspec_index.sharing import SharingConfig
from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_service.config import Limits, ServiceConfig
from suffixspec_service.drafting.config import DraftingConfig


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("SUFFIXSPEC_"):
            monkeypatch.delenv(name)


def test_defaults() -> None:
    loaded = load_settings()
    assert loaded.file is None
    assert loaded.settings.speculative == SpeculativeConfig()
    assert loaded.settings.log.level == "warning"
    assert set(loaded.origins.values()) == {"default"}
    assert set(loaded.origins) == set(loaded.flat())


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (ServiceSettings, ServiceConfig),
        (ServiceSettings, Limits),
        (ServiceSettings, EngineConfig),
        (DraftingSettings, DraftingConfig),
        (SharingSettings, SharingConfig),
    ],
)
def test_defaults_are_those_of_what_is_told(settings: type[BaseModel], told: type[Any]) -> None:
    """Lower packages take dataclasses, so defaults stand twice; they must not drift apart."""
    defaults = {field.name: field.default for field in dataclasses.fields(told)}
    both = {name: f.default for name, f in settings.model_fields.items() if name in defaults}
    both.pop("api_keys", None)  # secret here, plain there
    assert len(both) > 2
    assert both == {name: defaults[name] for name in both}


def test_flags_win_over_the_environment_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "suffixspec.toml").write_text(
        'tokenizer = "file"\ncost_model = "file"\n'
        '[log]\nlevel = "info"\n'
        '[speculative]\nmethod = "ngram"\nnum_speculative_tokens = 3\nprompt_lookup_max = 4\n'
    )
    monkeypatch.setenv("SUFFIXSPEC_COST_MODEL", "env")
    monkeypatch.setenv("SUFFIXSPEC_LOG__FORMAT", "json")
    monkeypatch.setenv("SUFFIXSPEC_SPECULATIVE__NUM_SPECULATIVE_TOKENS", "5")
    loaded = load_settings(flags={"speculative.prompt_lookup_max": 6, "tokenizer": None})
    settings = loaded.settings
    assert (settings.tokenizer, settings.cost_model) == ("file", "env")
    assert (settings.log.level, settings.log.format) == ("info", "json")
    config = settings.speculative
    assert config.method == "ngram"
    assert (config.num_speculative_tokens, config.prompt_lookup_max) == (5, 6)
    assert loaded.origins["tokenizer"] == "suffixspec.toml"
    assert loaded.origins["cost_model"] == "SUFFIXSPEC_COST_MODEL"
    assert loaded.origins["log.format"] == "SUFFIXSPEC_LOG__FORMAT"
    assert (
        loaded.origins["speculative.num_speculative_tokens"]
        == "SUFFIXSPEC_SPECULATIVE__NUM_SPECULATIVE_TOKENS"
    )
    assert loaded.origins["speculative.prompt_lookup_max"] == "flag"
    assert loaded.origins["speculative.min_match_len"] == "default"


def test_flags_of_a_command_come_on_top() -> None:
    loaded = load_settings(flags={"tokenizer": "a", "log.level": "info"})
    more = loaded.with_flags({"tokenizer": "b", "cost_model": None})
    assert (more.settings.tokenizer, more.settings.log.level) == ("b", "info")
    assert loaded.settings.tokenizer == "a"
    config = SpeculativeConfig(method="prediction")
    assert loaded.with_flags({"speculative": config}).settings.speculative == config


def test_a_named_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "other.toml"
    path.write_text('tokenizer = "t"\n')
    assert load_settings(path).settings.tokenizer == "t"
    monkeypatch.setenv("SUFFIXSPEC_CONFIG", str(path))
    loaded = load_settings()
    assert loaded.file == path
    assert loaded.settings.tokenizer == "t"


def test_structured_values_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUFFIXSPEC_SPECULATIVE", '{"num_speculative_tokens": 8}')
    monkeypatch.setenv(
        "SUFFIXSPEC_SPECULATIVE__NUM_SPECULATIVE_TOKENS_PER_BATCH_SIZE", "[[1, 4, 2]]"
    )
    config = load_settings().settings.speculative
    assert config.num_speculative_tokens == 8
    assert config.num_speculative_tokens_per_batch_size == ((1, 4, 2),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tokeniser = 1", r"suffixspec.toml: tokeniser: unknown setting; did you mean 'tokenizer'"),
        ("[log]\nlevels = 1", r"log.levels: unknown setting; did you mean 'log.level'"),
        ('[log]\nlevel = "loud"', r"suffixspec.toml: log.level: Input should be 'debug'"),
        ('[speculative]\nmethod = "sufix"', r"suffixspec.toml: speculative.method: must be one of"),
        ("[speculative]\ntensor_parallel_size = 1", "use 'draft_tensor_parallel_size'"),
        ("speculative = 3", "suffixspec.toml: speculative: must be a table"),
        ("not toml", "cannot be read as TOML"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "suffixspec.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_settings()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("SUFFIXSPEC_TOKENISER", "x", "unknown environment variable.*'SUFFIXSPEC_TOKENIZER'"),
        ("SUFFIXSPEC_LOG__LEVL", "info", "SUFFIXSPEC_LOG__LEVL: log.levl: unknown setting"),
        ("SUFFIXSPEC_LOG", "info", "SUFFIXSPEC_LOG: cannot be read"),
        ("SUFFIXSPEC_SPECULATIVE__METHOD", "sufix", "SUFFIXSPEC_SPECULATIVE__METHOD: speculative"),
        ("SUFFIXSPEC_CONFIG", "missing.toml", "missing.toml: the configuration file does not"),
    ],
)
def test_a_wrong_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message):
        load_settings()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"speculative.metod": "ngram"}, "flag: speculative.metod: .* did you mean 'method'"),
        ({"log.level": 3}, "flag: log.level"),
        ({"nothing": 3}, "flag: nothing: unknown setting; known are cost_model, log"),
    ],
)
def test_a_wrong_flag_is_named(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_settings(flags=flags)


def test_a_missing_file_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"nope\.toml: the configuration file does not exist"):
        load_settings("nope.toml")


def test_assignments() -> None:
    assert parse_assignments(["a.b=1", "c=text", 'd={"e": [1]}', "f=", "g=x=y"]) == {
        "a.b": 1,
        "c": "text",
        "d": {"e": [1]},
        "f": "",
        "g": "x=y",
    }
    for wrong in ("a", "=3"):
        with pytest.raises(ConfigError, match="--set"):
            parse_assignments([wrong])


def test_settings_serialise() -> None:
    loaded = load_settings(flags={"speculative.method": "none"})
    dumped = json.loads(json.dumps(loaded.settings.model_dump(mode="json")))
    assert dumped["speculative"]["method"] == "none"
    assert "num_speculative_tokens" not in dumped["speculative"]


def test_the_password_of_a_log_is_not_shown() -> None:
    url = "redis://user:se/c@ret@host:6379/0?prefix=x"
    loaded = load_settings(flags={"service.log": url})
    assert loaded.settings.service.log == url
    assert loaded.flat()["service.log"] == "redis://user:***@host:6379/0?prefix=x"
    plain = load_settings(flags={"service.log": "journal:a:b"})
    assert plain.flat()["service.log"] == "journal:a:b"


def test_bounds_of_drafting_are_settings_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUFFIXSPEC_SERVICE__DRAFTING__MAX_LEASES", "3")
    loaded = load_settings(flags={"service.drafting.lease_seconds": 5})
    assert loaded.settings.service.drafting.max_leases == 3
    assert loaded.flat()["service.drafting.lease_seconds"] == 5
    with pytest.raises(ConfigError, match=r"service\.drafting\.max_lease.*max_leases"):
        load_settings(flags={"service.drafting.max_lease": 5})


def test_drafting_settings_are_those_of_the_service() -> None:
    pytest.importorskip("grpc")
    from suffixspec_service.drafting import DraftingConfig

    assert DraftingConfig(**DraftingSettings().model_dump()) == DraftingConfig()
