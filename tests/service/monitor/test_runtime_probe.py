"""A runtime as the monitor looks at it: real indexes, real sharing, no engine."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from suffixspec_index.log.memory import MemoryLog
from suffixspec_index.sharing import Sharing
from suffixspec_service.callers import Tenant
from suffixspec_service.config import ServiceConfig
from suffixspec_service.monitor.runtime_probe import RuntimeProbe
from suffixspec_service.runtime import Runtime
from suffixspec_service.spaces import ModelIdentity


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
