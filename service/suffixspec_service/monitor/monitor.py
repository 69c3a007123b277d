"""The one door that finished requests pass on their way to metrics, time series and alerts."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from suffixspec_service.monitor.records import RequestRecord


@dataclass(frozen=True, slots=True)
class MonitorConfig:
    """How much is kept.

    Attributes:
        keep_text: keep the pieces of recent sessions for the session view.
    """

    keep_text: bool = False


class Monitor:
    """Counts finished requests. Thread-safe; :meth:`observe` takes microseconds."""

    def __init__(self, config: MonitorConfig | None = None) -> None:
        self.config = config or MonitorConfig()
        self._lock = threading.Lock()
        self.requests = 0

    @property
    def keeps_text(self) -> bool:
        """Whether records should carry ``pieces``: without, making them is for nothing."""
        return self.config.keep_text

    def observe(self, record: RequestRecord) -> None:
        """Count one finished request. O(record)."""
        with self._lock:
            self.requests += 1

    def observe_propose(self, seconds: float, rows: int = 1) -> None:
        """Count one call of a proposer for ``rows`` requests, which took ``seconds``."""
