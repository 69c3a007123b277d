"""What the plug-in is told, and what it reads off vLLM's own configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from suffixspec_index.config_values import as_boolean, as_integer, as_text, unknown_name
from suffixspec_index.errors import ConfigError
from suffixspec_index.speculative_config import SpeculativeConfig

SECTION = "suffixspec"
"""Our part of vLLM's ``--additional-config``."""

_METHODS = ("suffix", "ngram", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings:
    """Our part of ``--additional-config``: ``{"suffixspec": {...}}``.

    Attributes:
        speculative: what to propose, with our keys and vLLM's; method ``suffix`` or ``ngram``.
            Drafts are paths, because vLLM verifies no trees; their length is bounded by vLLM's
            ``num_speculative_tokens`` in any case.
        tenant: the first part of the namespace: replicas share drafts where tenant, model,
            tokenizer and adapter are the same.
        log: where finished sequences are shared and kept: ``redis://…``, ``journal:FOLDER``;
            ``None``: nowhere.
        max_bytes: of each adapter's index.
        max_sessions: conversations that are recognised again by their prefix.
        identify: learn request ids, adapters and prompt lengths from vLLM's model runner; where
            that is not possible, or false, requests are recognised by their tokens.

    Raises:
        ConfigError: a value is of a wrong type or out of range.
    """

    speculative: SpeculativeConfig = field(default_factory=SpeculativeConfig)
    tenant: str = ""
    log: str | None = None
    max_bytes: int = 1 << 30
    max_sessions: int = 4096
    identify: bool = True

    def __post_init__(self) -> None:
        if self.speculative.method not in _METHODS:
            raise ConfigError(
                f"speculative.method: {self.speculative.method!r} does not work inside vLLM; use "
                f"one of {', '.join(_METHODS)}, or vLLM's own methods without this plug-in"
            )
        if self.log is not None:
            as_text(self.log, "log")
        as_integer(self.max_bytes, "max_bytes", minimum=1 << 20)
        as_integer(self.max_sessions, "max_sessions", minimum=1)
        object.__setattr__(self, "identify", as_boolean(self.identify, "identify"))

    @classmethod
    def from_vllm(cls, vllm_config: Any) -> PluginSettings:
        """Read them from a ``VllmConfig``.

        Raises:
            ConfigError: an unknown key (the message names the nearest one) or a wrong value.
        """
        additional = vllm_config.additional_config
        section = additional.get(SECTION, {}) if isinstance(additional, Mapping) else {}
        if not isinstance(section, Mapping):
            raise ConfigError(f"additional_config.{SECTION}: must be an object, got {section!r}")
        known = [spec.name for spec in fields(cls)]
        for name in section:
            if name not in known:
                raise unknown_name(f"key in additional_config.{SECTION}", name, known)
        values = {name: value for name, value in section.items() if value is not None}
        given = values.pop("speculative", {})
        if not isinstance(given, Mapping):
            raise ConfigError(f"speculative: must be an object, got {given!r}")
        return cls(speculative=_speculative(given, vllm_config), **values)


def _speculative(given: Mapping[str, Any], vllm_config: Any) -> SpeculativeConfig:
    """``given``, bounded by what vLLM will verify."""
    most = int(vllm_config.speculative_config.num_speculative_tokens)
    schedule = getattr(
        vllm_config.speculative_config, "num_speculative_tokens_per_batch_size", None
    )
    if given.get("draft_shape", "path") != "path":
        raise ConfigError("speculative.draft_shape: vLLM verifies no trees; leave it out")
    config = SpeculativeConfig.from_dict(
        {"method": "suffix", "num_speculative_tokens": most, **given}
    )
    changes: dict[str, Any] = {
        "num_speculative_tokens": min(config.num_speculative_tokens, most),
        "max_model_len": int(vllm_config.model_config.max_model_len),
    }
    if schedule and config.num_speculative_tokens_per_batch_size is None:
        changes["num_speculative_tokens_per_batch_size"] = tuple(tuple(row) for row in schedule)
    return replace(config, **changes)
