"""What the drafting service grants."""

from __future__ import annotations

from dataclasses import dataclass

from suffixspec_index.config_values import as_integer, as_real


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftingConfig:
    """Bounds, all per tenant but for those of single requests and messages.

    Attributes:
        lease_seconds: a lease without a call for so long ends, unless its client asked for less or
            more.
        max_lease_seconds: the most a client may ask for.
        session_idle_seconds: a session that had no request for so long is forgotten.
        max_leases: open at once.
        max_requests: open at once, over all leases.
        max_sessions: held at once; the one used longest ago is forgotten when there are more.
        max_rows: requests, sessions or sequences in one message.
        max_context_tokens: prompt and output of one request; also of one ingested sequence.

    Raises:
        ConfigError: a value is out of range.
    """

    lease_seconds: float = 60.0
    max_lease_seconds: float = 600.0
    session_idle_seconds: float = 600.0
    max_leases: int = 64
    max_requests: int = 4096
    max_sessions: int = 4096
    max_rows: int = 1024
    max_context_tokens: int = 1 << 20

    def __post_init__(self) -> None:
        for name in ("lease_seconds", "session_idle_seconds"):
            as_real(getattr(self, name), name, minimum=0.001)
        as_real(self.max_lease_seconds, "max_lease_seconds", minimum=self.lease_seconds)
        for name in ("max_leases", "max_requests", "max_sessions", "max_rows"):
            as_integer(getattr(self, name), name, minimum=1)
        as_integer(self.max_context_tokens, "max_context_tokens", minimum=1, maximum=2**31 - 1)
