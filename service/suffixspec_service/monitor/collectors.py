"""Prometheus metrics that are read when somebody asks: indexes, engine, sharing, alerts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from suffixspec_service.monitor.alerts import Acceptance
from suffixspec_service.monitor.labels import OTHER
from suffixspec_service.monitor.probes import EngineState, NamespaceState, Probe, SharingState
from suffixspec_service.version import version

NAMESPACES = 200
"""Namespaces with series of their own: the largest; the others are added up."""

_INDEX_GAUGES = (
    ("sequences", "Sequences in the namespace's global tree."),
    ("tokens", "Tokens in the namespace's global tree."),
    ("nodes", "Nodes of all the namespace's trees."),
    ("sessions", "Sessions with a memory of their own."),
    ("requests", "Requests that are open in the index."),
)


class StateCollector(Collector):
    """Asks the probe at each scrape, so it belongs outside the event loop."""

    def __init__(
        self, probe: Callable[[], Probe | None], acceptance: Callable[[], Sequence[Acceptance]]
    ) -> None:
        self._probe, self._acceptance = probe, acceptance

    def describe(self) -> Iterable[Metric]:
        """Names only: a registry asks when a collector is registered, long before a probe is."""
        return self._families(None, (), (), (), {})

    def collect(self) -> Iterator[Metric]:
        """Everything as it is now."""
        probe = self._probe()
        if probe is None:
            yield from self._families(None, (), (), self._acceptance(), {})
            return
        namespaces = bounded(probe.namespaces())
        yield from self._families(
            probe.engine(), namespaces, probe.sharing(), self._acceptance(), probe.jobs()
        )

    def _families(
        self,
        engine: EngineState | None,
        namespaces: Sequence[NamespaceState],
        sharing: Sequence[SharingState],
        acceptance: Sequence[Acceptance],
        jobs: Mapping[tuple[str, str], int],
    ) -> Iterator[Metric]:
        yield _version()
        yield _jobs(jobs)
        yield from _engine(engine)
        yield from _indexes(namespaces)
        yield from _sharing(sharing)
        yield from _acceptances(acceptance)


def bounded(namespaces: Sequence[NamespaceState], limit: int = NAMESPACES) -> list[NamespaceState]:
    """The ``limit`` largest; what is beyond them added up under ``"other"``."""
    ranked = sorted(namespaces, key=lambda n: n.bytes, reverse=True)
    kept, rest = ranked[:limit], ranked[limit:]
    if rest:
        sums = {
            name: sum(getattr(n, name) for n in rest)
            for name in (
                *(name for name, _ in _INDEX_GAUGES),
                "bytes",
                "global_bytes",
                "session_bytes",
                "evicted_sequences",
                "evicted_sessions",
            )
        }
        kept.append(
            replace(rest[0], namespace=OTHER, tenant=OTHER, model=OTHER, max_bytes=None, **sums)
        )
    return kept


def _version() -> Metric:
    family = GaugeMetricFamily(
        "suffixspec_build", "1; the label says the version.", labels=["version"]
    )
    family.add_metric([version()], 1)
    return family


def _jobs(jobs: Mapping[tuple[str, str], int]) -> Metric:
    family = GaugeMetricFamily(
        "suffixspec_jobs", "Replay and tuning jobs that are kept.", labels=["kind", "state"]
    )
    for (kind, state), count in sorted(jobs.items()):
        family.add_metric([kind, state], count)
    return family


def _engine(state: EngineState | None) -> Iterator[Metric]:
    running = GaugeMetricFamily("suffixspec_requests_running", "Requests that advance now.")
    waiting = GaugeMetricFamily("suffixspec_requests_waiting", "Requests that wait for their turn.")
    cache = GaugeMetricFamily(
        "suffixspec_cache_used_bytes", "Keys and values reserved by requests or kept for sessions."
    )
    steps = CounterMetricFamily("suffixspec_engine_steps", "Forward passes of the engine.")
    failures = CounterMetricFamily(
        "suffixspec_proposer_failures", "Drafts that were not made because a proposer raised."
    )
    seconds = CounterMetricFamily(
        "suffixspec_engine_seconds", "Where the engine's time went.", labels=["part"]
    )
    if state is not None:
        running.add_metric([], state.running)
        waiting.add_metric([], state.waiting)
        cache.add_metric([], state.cache_used_bytes)
        steps.add_metric([], state.steps)
        failures.add_metric([], state.proposer_failures)
        for part, spent in state.seconds.items():
            seconds.add_metric([part], spent)
    yield from (running, waiting, cache, steps, failures, seconds)


def _indexes(namespaces: Sequence[NamespaceState]) -> Iterator[Metric]:
    label = ["namespace"]
    for name, text in _INDEX_GAUGES:
        family = GaugeMetricFamily(f"suffixspec_index_{name}", text, labels=label)
        for one in namespaces:
            family.add_metric([one.namespace], getattr(one, name))
        yield family
    size = GaugeMetricFamily(
        "suffixspec_index_bytes",
        "Allocated bytes of the namespace's index: global tree, sessions' memories, and the rest.",
        labels=["namespace", "part"],
    )
    budget = GaugeMetricFamily(
        "suffixspec_index_max_bytes", "The namespace's byte budget, where it has one.", labels=label
    )
    evicted = CounterMetricFamily(
        "suffixspec_index_evicted",
        "Sequences and sessions that were forgotten to stay within the budget.",
        labels=["namespace", "what"],
    )
    for one in namespaces:
        size.add_metric([one.namespace, "global"], one.global_bytes)
        size.add_metric([one.namespace, "sessions"], one.session_bytes)
        rest = max(0, one.bytes - one.global_bytes - one.session_bytes)
        size.add_metric([one.namespace, "rest"], rest)
        if one.max_bytes is not None:
            budget.add_metric([one.namespace], one.max_bytes)
        evicted.add_metric([one.namespace, "sequences"], one.evicted_sequences)
        evicted.add_metric([one.namespace, "sessions"], one.evicted_sessions)
    yield from (size, budget, evicted)


def _sharing(states: Sequence[SharingState]) -> Iterator[Metric]:
    label = ["namespace"]
    lag = GaugeMetricFamily(
        "suffixspec_sharing_lag_seconds",
        "Time since everything shared had been read; 0 right after.",
        labels=label,
    )
    behind = GaugeMetricFamily(
        "suffixspec_sharing_behind_sequences",
        "Shared sequences that this process has not read yet.",
        labels=label,
    )
    unsent = GaugeMetricFamily(
        "suffixspec_sharing_unsent_sequences",
        "Own sequences that wait for the log to come back.",
        labels=label,
    )
    resent = CounterMetricFamily(
        "suffixspec_sharing_resent_sequences",
        "Own sequences sent again after the log had lost them.",
        labels=label,
    )
    dropped = CounterMetricFamily(
        "suffixspec_sharing_dropped_sequences",
        "Own sequences given up because too much waited for the log.",
        labels=label,
    )
    for state in states[:NAMESPACES]:
        lag.add_metric([state.namespace], state.lag_seconds)
        if state.behind_sequences is not None:
            behind.add_metric([state.namespace], state.behind_sequences)
        unsent.add_metric([state.namespace], state.unsent_sequences)
        resent.add_metric([state.namespace], state.resent_sequences)
        dropped.add_metric([state.namespace], state.dropped_sequences)
    yield from (lag, behind, unsent, resent, dropped)


def _acceptances(states: Sequence[Acceptance]) -> Iterator[Metric]:
    label = ["namespace"]
    rolling = GaugeMetricFamily(
        "suffixspec_acceptance_rolling", "Acceptance over the latest requests.", labels=label
    )
    baseline = GaugeMetricFamily(
        "suffixspec_acceptance_baseline", "Acceptance that was usual before.", labels=label
    )
    alert = GaugeMetricFamily(
        "suffixspec_acceptance_alert", "1 while acceptance is below its own past.", labels=label
    )
    alerts = CounterMetricFamily(
        "suffixspec_acceptance_alerts", "Times that acceptance fell below its past.", labels=label
    )
    for state in states:
        if state.recent is not None:
            rolling.add_metric([state.namespace], state.recent)
        if state.baseline is not None:
            baseline.add_metric([state.namespace], state.baseline)
        alert.add_metric([state.namespace], float(state.alarmed_since is not None))
        alerts.add_metric([state.namespace], state.alarms)
    yield from (rolling, baseline, alert, alerts)
