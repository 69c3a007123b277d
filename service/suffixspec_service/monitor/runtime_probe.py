"""A runtime as the monitor looks at it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from suffixspec_service.monitor.probes import EngineState, NamespaceState, SharingState

if TYPE_CHECKING:
    from suffixspec_service.runtime import Runtime


class RuntimeProbe:
    """Reads live values without locks where the engine's thread writes them: each is one number,
    and a look may be a step old."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def engine(self) -> EngineState | None:
        """The engine's queue and totals; without an engine, the requests that were admitted."""
        engine = self._runtime.engine
        if engine is None:
            return EngineState(self._runtime.admission.running, 0)
        metrics = engine.metrics
        return EngineState(
            running=engine.num_running,
            waiting=engine.num_waiting,
            cache_used_bytes=engine.cache_used_bytes,
            steps=metrics.steps,
            seconds=dataclasses.asdict(metrics.seconds),
            proposer_failures=metrics.proposer_failures,
        )

    def namespaces(self) -> Sequence[NamespaceState]:
        """The indexes of all spaces; a method without an index has none."""
        states = []
        for space in self._runtime.spaces.all():
            if space.index is None:
                continue
            found = space.index.statistics()
            states.append(
                NamespaceState(
                    namespace=str(space.key),
                    tenant=space.key.tenant,
                    model=space.key.model,
                    sequences=found.sequences,
                    tokens=found.tokens,
                    nodes=found.nodes,
                    sessions=found.sessions,
                    requests=found.requests,
                    bytes=found.bytes,
                    global_bytes=found.global_bytes,
                    session_bytes=found.session_bytes,
                    evicted_sequences=found.evicted_sequences,
                    evicted_sessions=found.evicted_sessions,
                    max_bytes=space.index.config.max_bytes,
                )
            )
        return states

    def sharing(self) -> Sequence[SharingState]:
        """The namespaces that share what they learn with other processes."""
        sharing = self._runtime.sharing
        if sharing is None:
            return ()
        return [
            SharingState(
                namespace=str(one.key),
                lag_seconds=one.lag_seconds,
                behind_sequences=one.behind,
                unsent_sequences=one.unsent,
                resent_sequences=one.resent,
                dropped_sequences=one.dropped,
            )
            for one in sharing.status().namespaces
        ]

    def jobs(self) -> Mapping[tuple[str, str], int]:
        """Replay and tuning jobs."""
        return self._runtime.jobs.counts()
