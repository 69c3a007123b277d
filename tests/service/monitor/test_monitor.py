"""Counters against a slow recount, samples, and what a tenant may see."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from suffixspec_service.monitor import Monitor, MonitorConfig, RequestRecord
from suffixspec_service.monitor.metrics import APIS, POSITIONS
from suffixspec_service.monitor.probes import EngineState, NamespaceState, SharingState
from tests.service.monitor.recorded import made_up, record

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(monitor: Monitor) -> Samples:
    text = monitor.exposition().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def recount(records: list[RequestRecord]) -> Counter[tuple[str, tuple[tuple[str, str], ...]]]:
    """What the counters must show, one event after the other."""
    counts: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()

    def add(name: str, amount: float, **labels: str) -> None:
        counts[(name, tuple(sorted(labels.items())))] += amount  # type: ignore[assignment]

    for r in records:
        vllm = "vllm:spec_decode_num_"
        add(f"{vllm}drafts_total", r.steps_with_draft, model_name=r.model)
        add(f"{vllm}draft_tokens_total", r.drafted, model_name=r.model)
        add(f"{vllm}accepted_tokens_total", r.accepted, model_name=r.model)
        for position, accepted in enumerate(r.accepted_per_position):
            label = str(position) if position < POSITIONS else f"{POSITIONS}+"
            add(
                f"{vllm}accepted_tokens_per_pos_total",
                accepted,
                model_name=r.model,
                position=label,
            )
        api = r.api if r.api in APIS else "_other"
        add("suffixspec_requests_total", 1, tenant=r.tenant, api=api, status=r.status)
        add("suffixspec_output_tokens_total", r.output_tokens, tenant=r.tenant)
        add("suffixspec_prompt_tokens_total", r.prompt_tokens, tenant=r.tenant)
        add("suffixspec_cached_prompt_tokens_total", r.cached_tokens, tenant=r.tenant)
        add("suffixspec_steps_total", r.steps, tenant=r.tenant)
        add("suffixspec_draft_steps_total", r.steps_with_draft, tenant=r.tenant)
        for source, (drafted, accepted) in r.by_source.items():
            add("suffixspec_draft_tokens_total", drafted, tenant=r.tenant, source=source)
            add("suffixspec_accepted_tokens_total", accepted, tenant=r.tenant, source=source)
        if r.ttft_s is not None:
            add("suffixspec_time_to_first_token_seconds_count", 1, tenant=r.tenant)
        add("suffixspec_inter_token_seconds_count", len(r.gaps_s), tenant=r.tenant)
        add("suffixspec_request_seconds_count", 1, tenant=r.tenant)
        add("suffixspec_request_tokens_per_step_count", 1, tenant=r.tenant)
    return counts


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(0, 40))
def test_counters_equal_a_recount(seed: int, count: int) -> None:
    rng = random.Random(seed)
    records = [made_up(rng) for _ in range(count)]
    monitor = Monitor()
    for one in records:
        monitor.observe(one)
    samples, wanted = scrape(monitor), recount(records)
    assert {key: samples.get(key, 0.0) for key in wanted} == dict(wanted)
    counted = {k for k, v in samples.items() if k[0].endswith("_total") and v}
    assert counted <= set(wanted)


def test_names_cannot_fill_the_memory() -> None:
    monitor = Monitor(MonitorConfig(tenants=5))
    for number in range(200):
        name = f"tenant-{number}"
        monitor.observe(record(tenant=name, namespace=f"{name}/m/t", model=name, status=name))
    lines = [line for line in monitor.exposition().splitlines() if b"tenant-" in line]
    tenants = {k[1] for k in scrape(monitor) if k[0] == "suffixspec_steps_total"}
    assert len(tenants) == 6
    assert len(lines) < 3000
    assert len(monitor.sessions()) == monitor.config.sessions.sessions


def test_a_tenant_beyond_the_limit_is_shown_nothing_of_the_others() -> None:
    monitor = Monitor(MonitorConfig(tenants=1), clock=lambda: 5000.0)
    monitor.observe(record(tenant="a"))
    monitor.observe(record(tenant="b"))
    monitor.observe(record(tenant="c"))
    monitor._clock = lambda: 5003.0
    assert sum(monitor.window("5m")["total"]["requests"]) == 3
    assert sum(monitor.window("5m", "a")["total"]["requests"]) == 1
    assert sum(monitor.window("5m", "b")["total"]["requests"]) == 0
    assert sum(monitor.window("5m", "_other")["total"]["requests"]) == 0


class FakeProbe:
    """An engine and two namespaces that need not exist."""

    def __init__(self) -> None:
        self.broken = False

    def engine(self) -> EngineState | None:
        if self.broken:
            raise RuntimeError("no engine")
        return EngineState(3, 2, 1000, 50, {"verify": 1.5}, 4)

    def namespaces(self) -> list[NamespaceState]:
        return [
            NamespaceState(f"{t}/m/x", t, "m", 5, 600, 700, 2, 1, 9000, 8000, 1000, 7, 1, 10**6)
            for t in ("a", "b")
        ]

    def sharing(self) -> list[SharingState]:
        return [SharingState("a/m/x", 0.5, 3, 1, 20, 4)]

    def jobs(self) -> dict[tuple[str, str], int]:
        return {("replay", "running"): 2}


def test_states_are_read_at_the_scrape() -> None:
    monitor = Monitor()
    monitor.watch(FakeProbe())
    samples = scrape(monitor)
    assert samples[("suffixspec_requests_running", ())] == 3
    assert samples[("suffixspec_requests_waiting", ())] == 2
    assert samples[("suffixspec_engine_seconds_total", (("part", "verify"),))] == 1.5
    running = (("kind", "replay"), ("state", "running"))
    assert samples[("suffixspec_jobs", running)] == 2
    of_a = ("namespace", "a/m/x")
    assert samples[("suffixspec_index_tokens", (of_a,))] == 600
    assert samples[("suffixspec_index_bytes", (of_a, ("part", "global")))] == 8000
    assert samples[("suffixspec_index_evicted_total", (of_a, ("what", "sequences")))] == 7
    sharing = {"lag_seconds": 0.5, "unsent_sequences": 1, "behind_sequences": 3}
    sharing |= {"resent_sequences_total": 20, "dropped_sequences_total": 4}
    for name, value in sharing.items():
        assert samples[(f"suffixspec_sharing_{name}", (of_a,))] == value
    assert [state.tenant for state in monitor.namespaces("a")] == ["a"]


async def test_the_engine_is_sampled_and_a_broken_probe_does_no_harm() -> None:
    monitor = Monitor(MonitorConfig(sample_s=0.02))
    probe = FakeProbe()
    monitor.watch(probe)
    monitor.start()
    try:
        await asyncio.sleep(0.1)
        probe.broken = True
        await asyncio.sleep(0.1)
        probe.broken = False
        time.sleep(0.15)
        await asyncio.sleep(1.1)
    finally:
        await monitor.stop()
        await monitor.stop()
    monitor._clock = lambda: time.time() + 2
    gauges = monitor.window("5m")["gauges"]
    assert max(v for v in gauges["running"] if v is not None) == 3
    assert max(v for v in gauges["index_bytes"] if v is not None) == 18000
    assert max(v for v in gauges["loop_lag_s"] if v is not None) >= 0.1
    assert monitor.window("5m", "a")["gauges"] == {}


def test_threads_may_observe_at_once() -> None:
    from concurrent.futures import ThreadPoolExecutor

    monitor = Monitor()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: monitor.observe(record()), range(400)))
    assert scrape(monitor)[("suffixspec_steps_total", (("tenant", "local"),))] == 400 * 12
    assert monitor.requests == 400
