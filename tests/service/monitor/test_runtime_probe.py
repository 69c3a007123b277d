"""A runtime as the monitor looks at it: real indexes, real sharing, no engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from suffixspec_index.log import open_log
from suffixspec_index.log.memory import MemoryLog
from suffixspec_index.sharing import Sharing, SharingConfig
from suffixspec_service.callers import Tenant
from suffixspec_service.config import ServiceConfig
from suffixspec_service.monitor.runtime_probe import RuntimeProbe
from suffixspec_service.runtime import Runtime
from suffixspec_service.spaces import ModelIdentity
from tests.redis_servers import RedisServer


async def test_indexes_and_sharing_are_read_from_the_runtime() -> None:
    sharing = Sharing(MemoryLog())
    runtime = Runtime(ServiceConfig(), sharing=sharing)
    probe = RuntimeProbe(runtime)
    try:
        assert probe.namespaces() == []
        model = ModelIdentity("m", "tok", vocab_size=100)
        space = runtime.spaces.of(Tenant("a"), model=model)
        request = space.proposer.begin("s", [1, 2, 3])
        space.proposer.advance(request, [4, 5, 6])
        space.proposer.finish(request)
        (state,) = probe.namespaces()
        assert (state.tenant, state.model) == ("a", "m")
        assert state.tokens == 3
        assert state.bytes >= state.global_bytes + state.session_bytes
        assert sharing.wait_until_current(10)
        (shared,) = probe.sharing()
        assert shared.namespace == state.namespace == str(space.key)
        assert shared.behind_sequences == 0
        engine = probe.engine()
        assert engine is not None
        assert (engine.running, engine.waiting) == (0, 0)
        runtime.monitor.watch(probe)
        families = text_string_to_metric_families(runtime.monitor.exposition().decode())
        found = {s.name: s for family in families for s in family.samples}
        assert found["suffixspec_index_tokens"].value == 3
        assert found["suffixspec_sharing_lag_seconds"].labels == {"namespace": state.namespace}
    finally:
        await runtime.close()


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis").start()
    yield server
    server.close()


async def test_what_is_sent_again_is_counted(redis_server: RedisServer) -> None:
    """A Redis that was restarted empty, as an operator sees it."""
    log = open_log(redis_server.url)
    sharing = Sharing(log, SharingConfig(resend_within=0.0))
    runtime = Runtime(ServiceConfig(), sharing=sharing)
    try:
        runtime.monitor.watch(RuntimeProbe(runtime))
        model = ModelIdentity("m", "tok", vocab_size=100)
        space = runtime.spaces.of(Tenant("a"), model=model)
        assert space.index is not None
        for number in range(5):
            space.index.ingest([number, 6, 7])
        assert await asyncio.to_thread(sharing.flush, 20)
        assert counted(runtime, "resent") == 0
        redis_server.restart(empty=True)
        ends = time.monotonic() + 30
        while counted(runtime, "resent") < 5 and time.monotonic() < ends:
            await asyncio.sleep(0.05)
        assert counted(runtime, "resent") == 5
        assert counted(runtime, "dropped") == 0
    finally:
        await runtime.close()


def counted(runtime: Runtime, what: str) -> float:
    """Of the only namespace."""
    families = text_string_to_metric_families(runtime.monitor.exposition().decode())
    name = f"suffixspec_sharing_{what}_sequences_total"
    (value,) = [s.value for family in families for s in family.samples if s.name == name]
    return float(value)
