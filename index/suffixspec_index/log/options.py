"""Settings in a log's URL: ``scheme:place?name=value&name=value``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from urllib.parse import parse_qsl

from suffixspec_index.errors import ConfigError

Option = Callable[[object], object]
"""Turns a text or a value into the value of a setting, or raises ConfigError."""

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _UNITS |= {_letter: 1024**_power, f"{_letter}B": 1000**_power, f"{_letter}iB": 1024**_power}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_SPANS = {"ms": 0.001, "": 1.0, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def read_options(
    url: str, prefix: str, known: Mapping[str, Option], given: Mapping[str, object]
) -> tuple[str, dict[str, object]]:
    """The place that a URL names, and its settings, overridden by those ``given``.

    Raises:
        ConfigError: a setting is unknown, named twice or out of range.
    """
    place, _, query = url.removeprefix(prefix).partition("?")
    raw: dict[str, object] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in raw:
            raise ConfigError(f"{prefix} {name}: is given twice; leave one out")
        raw[name] = value
    raw |= {name: value for name, value in given.items() if value is not None}
    for name in raw:
        if name not in known:
            raise ConfigError(
                f"{prefix} {name}: is no setting of this log; there are "
                f"{', '.join(known) or 'none'}"
            )
    return place, {name: known[name](value) for name, value in raw.items()}


def size(name: str, *, least: int = 1) -> Option:
    """A number of bytes: ``1048576``, ``1MiB``, ``1.5G``."""

    def read(value: object) -> int:
        match = _SIZE.fullmatch(str(value))
        if isinstance(value, bool) or match is None or match[2] not in _UNITS:
            raise ConfigError(f"{name}: must be a size like 512MiB or 1G, got {value!r}")
        found = int(float(match[1]) * _UNITS[match[2]])
        if found < least:
            raise ConfigError(f"{name}: must be at least {least} bytes, got {value!r}")
        return found

    return read


def span(name: str, *, least: float = 0.0) -> Option:
    """A span of time in seconds: ``90``, ``250ms``, ``7d``."""

    def read(value: object) -> float:
        match = _SIZE.fullmatch(str(value))
        if isinstance(value, bool) or match is None or match[2] not in _SPANS:
            raise ConfigError(f"{name}: must be a span like 250ms, 90 or 7d, got {value!r}")
        found = float(match[1]) * _SPANS[match[2]]
        if found < least:
            raise ConfigError(f"{name}: must be at least {least:g} s, got {value!r}")
        return found

    return read


def choice(name: str, among: tuple[str, ...]) -> Option:
    """One of a few words."""

    def read(value: object) -> str:
        if value not in among:
            raise ConfigError(f"{name}: must be one of {', '.join(among)}, got {value!r}")
        return str(value)

    return read
