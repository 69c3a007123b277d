"""Settings of the engine itself; what is proposed is in ``SpeculativeConfig``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from suffixspec_engine.sampling import Method
from suffixspec_index.config_values import as_choice, as_integer
from suffixspec_index.errors import ConfigError
from suffixspec_index.speculative_config import SpeculativeConfig

_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How an engine runs.

    Attributes:
        max_running: requests that advance together.
        max_waiting: requests that may wait beyond those; one more is refused.
        cache_bytes: budget for keys and values, of running requests and finished sessions.
        max_prefill_tokens: prompt tokens per step while nothing is being generated.
        prefill_chunk: prompt tokens per step while other requests are generating: a long prompt
            slows them down, but never stops them.
        attention: ``flex``: all requests of a step at once, from a pool of keys and values that is
            allocated when the engine starts, and CUDA graphs of decoding steps; ``plain``: request
            by request; ``auto``: ``flex`` on CUDA, ``plain`` elsewhere.
        draft_cache_bytes: budget for the keys and values of a draft model, if there is one.
        threads: torch's intra-op threads, set for the whole process; ``None``: leave them.

    Raises:
        ConfigError: a value is out of range.
    """

    max_running: int = 16
    max_waiting: int = 256
    cache_bytes: int = 2 * _GIB
    max_prefill_tokens: int = 512
    prefill_chunk: int = 64
    attention: Literal["auto", "plain", "flex"] = "auto"
    draft_cache_bytes: int = _GIB // 2
    threads: int | None = None

    def __post_init__(self) -> None:
        for name in (
            "max_running",
            "cache_bytes",
            "max_prefill_tokens",
            "prefill_chunk",
            "draft_cache_bytes",
        ):
            as_integer(getattr(self, name), name, minimum=1)
        as_choice(self.attention, "attention", ("auto", "plain", "flex"))
        as_integer(self.max_waiting, "max_waiting", minimum=0)
        if self.threads is not None:
            as_integer(self.threads, "threads", minimum=1)
        if self.prefill_chunk > self.max_prefill_tokens:
            raise ConfigError(
                f"prefill_chunk: {self.prefill_chunk} is more than max_prefill_tokens "
                f"({self.max_prefill_tokens}); lower the one or raise the other"
            )


def verification_method(speculative: SpeculativeConfig | None) -> Method:
    """How drafts are verified: ``rejection_sample_method``, ``coupled`` without a configuration.

    Raises:
        ConfigError: it is ``synthetic``.
    """
    method = "coupled" if speculative is None else speculative.rejection_sample_method
    if method == "synthetic":
        raise ConfigError(
            "rejection_sample_method: 'synthetic' accepts drafts by chance, so the text would not "
            "be the model's; this engine only writes what the model says. Use 'coupled', "
            "'standard' or 'block'; to see what another acceptance would gain, replay traces"
        )
    return method
