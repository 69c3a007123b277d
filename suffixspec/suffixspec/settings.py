"""The one place for configuration: a file, then the environment, then flags; the later one wins.

* File: ``suffixspec.toml`` in the working directory, or the one named by ``--config`` or by the
  environment variable ``SUFFIXSPEC_CONFIG``.
* Environment: ``SUFFIXSPEC_`` and the setting's name; a double underscore goes one level down
  (``SUFFIXSPEC_SPECULATIVE__METHOD=ngram``). Lists and objects are written as JSON.
* Flags: ``--set speculative.method=ngram``, and the flags of each command.

A name that does not exist is an error everywhere, and the message names the nearest one.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    SecretStr,
    ValidationError,
)
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from suffixspec_index.config_values import unknown_name
from suffixspec_index.errors import ConfigError
from suffixspec_index.speculative_config import SpeculativeConfig

CONFIG_FILE = "suffixspec.toml"
ENV_PREFIX = "SUFFIXSPEC_"
ENV_CONFIG_FILE = "SUFFIXSPEC_CONFIG"

Values = dict[str, Any]


def _read_speculative(value: object) -> SpeculativeConfig:
    if isinstance(value, SpeculativeConfig):
        return value
    if isinstance(value, Mapping):
        return SpeculativeConfig.from_dict({k: _parse_list(v) for k, v in value.items()})
    raise ValueError("must be a table of settings")


def _parse_list(value: object) -> object:
    """Environment variables hold lists as JSON text."""
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


Speculative = Annotated[
    SpeculativeConfig,
    PlainValidator(_read_speculative),
    PlainSerializer(SpeculativeConfig.to_dict),
]


def _without_password(url: str) -> str:
    return re.sub(r"(://[^:/@]*:)[^?]*@", r"\1***@", url)


LogPlace = Annotated[str, PlainSerializer(_without_password)]
"""A URL whose password is not shown where settings are."""


class LogSettings(BaseModel):
    """What is logged, to standard error."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    level: Literal["debug", "info", "warning", "error"] = "warning"
    format: Literal["text", "json"] = "text"


class DraftingSettings(BaseModel):
    """Bounds of drafting for other engines, per tenant but for those of single requests and
    messages."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    lease_seconds: float = 60.0
    max_lease_seconds: float = 600.0
    session_idle_seconds: float = 600.0
    max_leases: int = 64
    max_requests: int = 4096
    max_sessions: int = 4096
    max_rows: int = 1024
    """Requests, sessions or sequences in one message."""
    max_context_tokens: int = 1 << 20


class SharingSettings(BaseModel):
    """How what is learned gets into ``service.log`` and back; docs/sharing.md says what each
    means. Sizes are bytes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    spool_bytes: int = 64 << 20
    linger: float = 0.002
    flush_seconds: float = 5.0
    resend_bytes: int = 8 << 20
    resend_within: float = 5.0
    retention: float | None = None


class ServiceSettings(BaseModel):
    """What ``suffixspec serve`` runs, and where. Sizes are bytes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str | None = "smollm2"
    """The model that generates; ``null``: none, drafts for other engines only."""
    served_model_name: str | None = None
    """What requests call it; by default as ``model``."""
    chat_template: Path | None = None
    """A Jinja file, used instead of the model's own."""
    dtype: str = "auto"
    threads: int | None = None
    max_model_len: int | None = None
    max_running: int = 16
    max_waiting: int = 256
    cache_bytes: int = 2 << 30

    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int | None = 50051
    """``null``: no gRPC over TCP."""
    grpc_socket: Path | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    keys_file: Path | None = None
    """As ``suffixspec keys`` writes it."""
    api_keys: tuple[SecretStr, ...] = ()
    """``TENANT:KEY`` each."""
    allow_public_without_keys: bool = False

    concurrent_requests: int | None = None
    tokens_per_second: float | None = None
    burst_tokens: float | None = None
    index_bytes: int | None = None
    """Limits of every tenant that the keys file says nothing else about."""
    max_body_bytes: int = 16 << 20
    max_choices: int = 16
    max_namespaces: int = 16
    max_sessions: int = 1024
    session_idle_seconds: float = 3600.0
    stream_cadence_ms: int = 0
    drain_seconds: float = 30.0
    data_dir: Path | None = None
    """Where the service keeps its journal; by default the user's data directory."""
    log: LogPlace | None = "journal"
    """What is learned goes here and is read back at the next start: ``journal`` (in ``data_dir``),
    ``null``, or a URL as in docs/sharing.md (``redis://...``)."""
    keep_text: bool | None = None
    """Keep the text of recent sessions for the dashboard; by default only on loopback without
    keys."""
    traces_endpoint: str | None = None
    """Where OpenTelemetry traces go (OTLP over HTTP); by default nowhere."""
    drafting: DraftingSettings = Field(default_factory=DraftingSettings)
    sharing: SharingSettings = Field(default_factory=SharingSettings)


class Settings(BaseSettings):
    """All settings. Read them with :func:`load_settings`, which knows where each came from."""

    model_config = SettingsConfigDict(
        extra="forbid", frozen=True, env_prefix=ENV_PREFIX, env_nested_delimiter="__"
    )

    log: LogSettings = Field(default_factory=LogSettings)
    service: ServiceSettings = Field(default_factory=ServiceSettings)
    speculative: Speculative = Field(default_factory=SpeculativeConfig)
    tokenizer: str | None = None
    """A Hugging Face id or folder, a ``tokenizer.json`` or a GGUF file."""
    cost_model: str | None = None
    """The verify-cost model of predictions: a built-in name or a file."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take given values only: :func:`load_settings` merges the sources, to know the origins."""
        return (init_settings,)


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings and where they came from.

    Attributes:
        settings: the effective settings.
        origins: dotted name -> ``"default"``, the file's path, the environment variable or
            ``"flag"``.
        file: the file that was read, if any.
        sources: the raw values by source, lowest precedence first.
    """

    settings: Settings
    origins: Mapping[str, str]
    file: Path | None
    sources: tuple[tuple[str, Values], ...]

    def with_flags(self, flags: Mapping[str, Any]) -> LoadedSettings:
        """These settings with some set by flags; dotted names; ``None`` means the flag was not
        given.

        Raises:
            ConfigError: as for :func:`load_settings`.
        """
        return _merge((*self.sources, _flag_source(flags)), self.file)

    def flat(self) -> dict[str, Any]:
        """Effective values by dotted name, as JSON values."""
        return dict(_flatten(self.settings.model_dump(mode="json")))


def load_settings(
    config_file: Path | str | None = None, *, flags: Mapping[str, Any] | None = None
) -> LoadedSettings:
    """Read file, environment and flags.

    Args:
        config_file: the file to read; it must exist. ``None``: the one that the environment names,
            else ``suffixspec.toml`` in the working directory where there is one.
        flags: dotted name -> value, ``None`` for a flag that was not given.

    Raises:
        ConfigError: the file cannot be read, a name does not exist, or a value is wrong. The
            message says in which source.
    """
    path = _find_file(config_file)
    sources: list[tuple[str, Values]] = []
    if path is not None:
        sources.append((str(path), _read_file(path)))
    sources.extend(_read_environment())
    if flags:
        sources.append(_flag_source(flags))
    return _merge(tuple(sources), path)


def parse_assignments(assignments: Sequence[str]) -> Values:
    """``["speculative.method=ngram"]`` -> ``{"speculative.method": "ngram"}``. Values are JSON
    where they parse as JSON, else text.

    Raises:
        ConfigError: not of the form ``name=value``.
    """
    values: Values = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--set: must be name=value, got {assignment!r}")
        try:
            values[name.strip()] = json.loads(text)
        except ValueError:
            values[name.strip()] = text
    return values


def _find_file(config_file: Path | str | None) -> Path | None:
    named = config_file if config_file is not None else os.environ.get(ENV_CONFIG_FILE)
    if named:
        path = Path(named)
        if not path.is_file():
            raise ConfigError(f"{path}: the configuration file does not exist")
        return path
    path = Path(CONFIG_FILE)
    return path if path.is_file() else None


def _read_file(path: Path) -> Values:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as TOML ({error})") from None


def _read_environment() -> Iterator[tuple[str, Values]]:
    """One source per variable, so that an error and ``config show`` can name the variable."""
    names = sorted(n for n in os.environ if n.upper().startswith(ENV_PREFIX))
    for name in names:
        if name.upper() == ENV_CONFIG_FILE:
            continue
        parts = name[len(ENV_PREFIX) :].lower().split("__")
        if parts[0] not in Settings.model_fields:
            known = [ENV_PREFIX + field.upper() for field in Settings.model_fields]
            raise unknown_name("environment variable", name, [*known, ENV_CONFIG_FILE])
        yield name, _read_variable(name)


def _read_variable(name: str) -> Values:
    source = EnvSettingsSource(Settings)
    source.env_vars = {
        key: value for key, value in source.env_vars.items() if key.lower() == name.lower()
    }
    try:
        return dict(source())
    except ValueError as error:  # SettingsError: not JSON where JSON is needed
        raise ConfigError(f"{name}: cannot be read ({error.__cause__ or error})") from None


def _merge(sources: tuple[tuple[str, Values], ...], file: Path | None) -> LoadedSettings:
    merged: Values = {}
    origins: dict[str, str] = {}
    for origin, values in sources:
        plain = _expand_json(values)
        _check_names(plain, origin)
        merged = _update(merged, plain)
        origins |= {name: origin for name, _ in _flatten(plain)}
    settings = _validate(merged, origins)
    names = dict(_flatten(settings.model_dump(mode="json")))
    return LoadedSettings(
        settings, {name: origins.get(name, "default") for name in names}, file, sources
    )


def _expand_json(values: Values) -> Values:
    """The speculative configuration may be given as one JSON text; merge it key by key."""
    speculative = values.get("speculative")
    if not isinstance(speculative, str):
        return values
    try:
        parsed = json.loads(speculative)
    except ValueError:
        return values
    return {**values, "speculative": parsed}


def _check_names(values: Values, origin: str) -> None:
    sections: dict[str, Any] = {
        "": Settings,
        "log": LogSettings,
        "service": ServiceSettings,
        "service.drafting": DraftingSettings,
        "service.sharing": SharingSettings,
    }
    for section, model in sections.items():
        table: Any = values
        for part in section.split(".") if section else ():
            table = table.get(part) if isinstance(table, Mapping) else None
        if not isinstance(table, Mapping):
            continue
        for name in table:
            if name not in model.model_fields:
                prefix = f"{section}." if section else ""
                known = [prefix + field for field in model.model_fields]
                raise ConfigError(f"{origin}: {unknown_name('setting', prefix + name, known)}")


def _validate(values: Values, origins: Mapping[str, str]) -> Settings:
    try:
        return Settings(**values)
    except ValidationError as error:
        problems = [_describe(problem, origins) for problem in error.errors()]
        raise ConfigError("; ".join(problems)) from None


def _describe(problem: ErrorDetails, origins: Mapping[str, str]) -> str:
    """One problem in one line, beginning with the source that brought the value in."""
    name = ".".join(str(part) for part in problem["loc"])
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, ConfigError):  # "key: what is wrong", from the speculative configuration
        key, _, text = str(cause).partition(":")
        name = f"{name}.{key}"
        text = text.strip()
    else:
        text = f"{problem['msg'].removeprefix('Value error, ')}, got {problem['input']!r}"
    origin = origins.get(name)
    return f"{origin}: {name}: {text}" if origin else f"{name}: {text}"


def _update(base: Values, changes: Mapping[str, Any]) -> Values:
    result = dict(base)
    for name, value in changes.items():
        held = result.get(name)
        if isinstance(held, Mapping) and isinstance(value, Mapping):
            result[name] = _update(dict(held), value)
        else:
            result[name] = value
    return result


def _flag_source(flags: Mapping[str, Any]) -> tuple[str, Values]:
    return "flag", _nest({name: value for name, value in flags.items() if value is not None})


def _nest(values: Mapping[str, Any]) -> Values:
    nested: Values = {}
    for name, value in values.items():
        *path, last = name.split(".")
        table = nested
        for part in path:
            table = table.setdefault(part, {})
        if isinstance(value, SpeculativeConfig):
            value = value.to_dict()
        table[last] = value
    return nested


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
