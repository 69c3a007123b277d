"""Which methods a replay compares, and what they are called."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from suffixspec_index.errors import ConfigError
from suffixspec_index.proposers import available_methods
from suffixspec_index.speculative_config import SpeculativeConfig

_METHOD_DEFAULTS: dict[str, dict[str, object]] = {
    "ngram": {"num_speculative_tokens": 8, "prompt_lookup_min": 2, "prompt_lookup_max": 5}
}
"""Settings for a method that is only named, where vLLM has no defaults."""

_PREFIX = "suffix_decoding_"


def choose_methods(
    settings: SpeculativeConfig,
    *,
    method: str | None = None,
    config: str | None = None,
    compare: Sequence[str] = (),
    also: Sequence[str] = (),
) -> list[tuple[str, SpeculativeConfig]]:
    """The configurations to replay, each with a label of its own.

    Args:
        settings: taken when no argument names a method.
        method: a method by name; together with ``config`` it must be the same.
        config: a speculative configuration as JSON.
        compare: method names separated by commas, or JSON objects; they come after the one that
            ``method`` or ``config`` gives.
        also: methods that work here beside those of the index: where a model runs, for example,
            ``draft_model``.

    Raises:
        ConfigError: a method or setting is unknown, or one configuration is given twice.
    """
    configs: list[SpeculativeConfig] = []
    if config is not None:
        configs.append(_with_method(config, method))
    elif method is not None:
        configs.append(_by_name(method, settings))
    for value in compare:
        if value.lstrip().startswith("{"):
            configs.append(SpeculativeConfig.from_json(value))
        else:
            names = [name.strip() for name in value.split(",")]
            configs.extend(_by_name(name, settings) for name in names if name)
    if not configs:
        configs.append(settings)
    usable = (*available_methods(), *also)
    for one in configs:
        if one.method not in usable:
            raise ConfigError(f"method: {one.method!r} cannot be used; use {', '.join(usable)}")
    return list(zip(_labels(configs), configs, strict=True))


def _by_name(name: str, settings: SpeculativeConfig) -> SpeculativeConfig:
    if name == settings.method:
        return settings
    return SpeculativeConfig.from_dict({"method": name} | _METHOD_DEFAULTS.get(name, {}))


def _with_method(config: str, method: str | None) -> SpeculativeConfig:
    if method is None:
        return SpeculativeConfig.from_json(config)
    try:
        values = json.loads(config)
    except ValueError:
        values = None
    if isinstance(values, dict):
        named = values.setdefault("method", method)
        if named != method:
            raise ConfigError(
                f"method: {method!r} contradicts the speculative configuration, which says "
                f"{named!r}; leave one out"
            )
        return SpeculativeConfig.from_dict(values)
    return SpeculativeConfig.from_json(config)  # says what is wrong with it


def _labels(configs: Sequence[SpeculativeConfig]) -> list[str]:
    """The method's name; where it comes more than once, with the settings that differ."""
    labels = []
    for config in configs:
        same = [c for c in configs if c.method == config.method]
        differing = [
            spec.name
            for spec in dataclasses.fields(config)
            if any(getattr(c, spec.name) != getattr(config, spec.name) for c in same)
        ]
        named = [f"{_short(name)}={_value(getattr(config, name))}" for name in differing]
        labels.append(f"{config.method} {' '.join(named)}".rstrip())
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(f"compare: the configuration of {label!r} is given twice")
    return labels


def _short(name: str) -> str:
    return name.removeprefix(_PREFIX)


def _value(value: object) -> str:
    if value is None:
        return "default"
    return f"{value:g}" if isinstance(value, float) else str(value)
