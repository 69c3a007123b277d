"""Settings of the engine itself; what is proposed is in ``SpeculativeConfig``."""

from __future__ import annotations

from dataclasses import dataclass

from suffixspec_engine.sampling import Method
from suffixspec_index.config_values import as_choice, as_integer
from suffixspec_index.errors import ConfigError

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
        rejection_sample_method: how drafts are verified where temperature is not 0; see
            :data:`suffixspec_engine.sampling.Method`.
        threads: torch's intra-op threads, set for the whole process; ``None``: leave them.

    Raises:
        ConfigError: a value is out of range.
    """

    max_running: int = 16
    max_waiting: int = 256
    cache_bytes: int = 2 * _GIB
    max_prefill_tokens: int = 512
    prefill_chunk: int = 64
    rejection_sample_method: Method = "coupled"
    threads: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_running", "cache_bytes", "max_prefill_tokens", "prefill_chunk"):
            as_integer(getattr(self, name), name, minimum=1)
        as_integer(self.max_waiting, "max_waiting", minimum=0)
        as_choice(
            self.rejection_sample_method,
            "rejection_sample_method",
            ("coupled", "standard", "block"),
        )
        if self.threads is not None:
            as_integer(self.threads, "threads", minimum=1)
        if self.prefill_chunk > self.max_prefill_tokens:
            raise ConfigError(
                f"prefill_chunk: {self.prefill_chunk} is more than max_prefill_tokens "
                f"({self.max_prefill_tokens}); lower the one or raise the other"
            )
