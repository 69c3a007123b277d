"""The one door that finished requests pass on their way to metrics, time series and alerts."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from suffixspec_service.logs import get_logger
from suffixspec_service.monitor.alerts import Acceptance, AcceptanceWatch, Alert
from suffixspec_service.monitor.collectors import StateCollector
from suffixspec_service.monitor.drift import DriftConfig
from suffixspec_service.monitor.loop_lag import LoopLag
from suffixspec_service.monitor.metrics import RequestMetrics
from suffixspec_service.monitor.probes import NamespaceState, Probe
from suffixspec_service.monitor.records import RequestRecord
from suffixspec_service.monitor.series import TimeSeries
from suffixspec_service.monitor.sessions import RecentSessions, SessionLimits

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class MonitorConfig:
    """How much is kept.

    Attributes:
        keep_text: keep the text of recent sessions for the session view. To be set only where
            whoever can open the page may read everything: on loopback without keys, or on wish.
        tenants: most tenants with figures of their own; others are counted together.
        sessions: how many recent sessions are kept.
        drift: when falling acceptance raises an alarm.
        sample_s: seconds between two looks at the engine.
        index_sample_s: seconds between two looks at the indexes.
    """

    keep_text: bool = False
    tenants: int = 32
    sessions: SessionLimits = field(default_factory=SessionLimits)
    drift: DriftConfig = field(default_factory=DriftConfig)
    sample_s: float = 1.0
    index_sample_s: float = 5.0


class Monitor:
    """Counts finished requests, and answers what people and Prometheus ask. Thread-safe.

    Args:
        config: how much is kept.
        clock: epoch seconds.
    """

    def __init__(
        self, config: MonitorConfig | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.config = config or MonitorConfig()
        self._clock = clock
        self._lock = threading.Lock()
        self.started_at = clock()
        self.requests = 0
        self.registry = CollectorRegistry(auto_describe=False)
        self._metrics = RequestMetrics(self.registry, tenants=self.config.tenants)
        self._series = TimeSeries()
        self._watch = AcceptanceWatch(self.config.drift)
        self._sessions = RecentSessions(self.config.sessions, keep_text=self.config.keep_text)
        self._probe: Probe | None = None
        self.registry.register(StateCollector(lambda: self._probe, self.acceptance))
        self._lag = LoopLag(self._metrics.loop_lag.observe)
        self._sampler: asyncio.Task[None] | None = None

    # -- being told ----------------------------------------------------------------------------

    @property
    def keeps_text(self) -> bool:
        """Whether records should carry ``pieces``: without, making them is for nothing."""
        return self.config.keep_text

    def observe(self, record: RequestRecord) -> None:
        """Count one finished request. O(record): microseconds."""
        at = self._clock()
        with self._lock:
            self.requests += 1
            self._metrics.count(record)
            self._series.add(record, self._metrics.tenant_label(record.tenant), at)
            self._watch.add(record, at)
            self._sessions.add(record, at)

    def observe_propose(self, seconds: float, rows: int = 1) -> None:
        """Count one call of a proposer for ``rows`` requests, which took ``seconds``."""
        self._metrics.propose.observe(seconds)
        self._metrics.proposals.inc(rows)

    def watch(self, probe: Probe | None) -> None:
        """Look at this engine and these indexes from now on."""
        self._probe = probe

    def forget_tenant(self, tenant: str) -> None:
        """Forget the recent sessions of a tenant; counters stay."""
        with self._lock:
            self._sessions.forget(tenant)

    # -- running -------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to sample, in the running event loop."""
        self._lag.start()
        if self._sampler is None:
            self._sampler = asyncio.create_task(self._sample(), name="suffixspec-monitor")

    async def stop(self) -> None:
        """End sampling. May be called twice."""
        await self._lag.stop()
        task, self._sampler = self._sampler, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _sample(self) -> None:
        """A look at the engine each second, and now and then at the indexes, in a thread."""
        looked = float("-inf")
        while True:
            await asyncio.sleep(self.config.sample_s)
            now = self._clock()
            values = {"loop_lag_s": self._lag.take_worst()}
            try:
                engine = self._probe.engine() if self._probe is not None else None
                if engine is not None:
                    values |= {"running": engine.running, "waiting": engine.waiting}
                if now - looked >= self.config.index_sample_s:
                    looked = now
                    states = await asyncio.to_thread(self.namespaces)
                    values["index_bytes"] = float(sum(state.bytes for state in states))
            except Exception as error:  # a look that failed must not end looking
                _log.warning("monitor_probe_failed", error=str(error))
            with self._lock:
                self._series.gauge(values, now)

    # -- being asked ---------------------------------------------------------------------------

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format; it asks the probe, so call it in a thread."""
        return generate_latest(self.registry)

    def window(self, tier: str, tenant: str | None = None, *, fold: int = 1) -> dict[str, Any]:
        """Time series of a tier; see :meth:`.series.Snapshot.window`. With many tenants it takes
        tens of milliseconds, so call it in a thread.

        Args:
            tier: ``"5m"``, ``"1h"`` or ``"24h"``.
            tenant: whose requests; ``None``: everybody's, with gauges.
            fold: buckets that are added up to one column.
        """
        with self._lock:
            snapshot = self._series.snapshot(tier, self._clock())
            only = None
            if tenant is not None:  # one that shares its label with others is shown nothing
                label = self._metrics.tenant_label.known(tenant)
                only = frozenset({label} if label is not None else ())
        window = snapshot.window(only, fold=fold)
        return window if tenant is None else window | {"gauges": {}}

    def namespaces(self, tenant: str | None = None) -> list[NamespaceState]:
        """The indexes of a tenant, or all; waits for their locks, so call it in a thread."""
        probe = self._probe
        states = probe.namespaces() if probe is not None else ()
        return [state for state in states if tenant is None or state.tenant == tenant]

    def probe(self) -> Probe | None:
        """What is looked at."""
        return self._probe

    def acceptance(self, tenant: str | None = None) -> list[Acceptance]:
        """Acceptance of a tenant's namespaces, or of all, against their past."""
        with self._lock:
            return self._watch.states(tenant)

    def alerts(self, tenant: str | None = None) -> list[Alert]:
        """Alarms that were raised and ended, latest first."""
        with self._lock:
            return self._watch.events(tenant)

    def sessions(self, tenant: str | None = None) -> list[dict[str, Any]]:
        """Recent sessions of a tenant, or of all, latest first."""
        with self._lock:
            return self._sessions.summaries(tenant)

    def session(self, tenant: str, session_id: str) -> dict[str, Any] | None:
        """A recent session with its requests; ``None``: not kept."""
        with self._lock:
            return self._sessions.get(tenant, session_id)
