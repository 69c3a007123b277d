"""A running gRPC service for tests: a runtime, a server on a free port and on a Unix socket."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_service.config import ServiceConfig
from suffixspec_service.drafting import DraftingConfig
from suffixspec_service.monitor import Monitor
from suffixspec_service.monitor.records import RequestRecord
from suffixspec_service.rpc.server import GrpcServer, serve_grpc
from suffixspec_service.runtime import Runtime

if TYPE_CHECKING:
    from suffixspec_engine.engine import Engine

VOCAB = 1000
MODEL: dict[str, Any] = {"model": "m", "tokenizer": "t", "vocab_size": VOCAB}


@dataclass(slots=True)
class Service:
    """What a test needs of it. ``records`` are what the monitor was told."""

    runtime: Runtime
    server: GrpcServer
    records: list[RequestRecord]
    socket: Path | None

    @property
    def address(self) -> str:
        """Of TCP."""
        return f"127.0.0.1:{self.server.port}"

    @property
    def live(self) -> tuple[int, int, int]:
        """Open leases, open requests, and requests that live in an index."""
        drafting = self.runtime.drafting
        return drafting.open_leases, drafting.open_requests, self.runtime.spaces.live_requests


class NotingMonitor(Monitor):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[RequestRecord] = []

    def observe(self, record: RequestRecord) -> None:
        """Count and keep."""
        self.records.append(record)
        super().observe(record)


@asynccontextmanager
async def running(
    engine: Engine | None = None,
    *,
    speculative: SpeculativeConfig | None = None,
    drafting: DraftingConfig | None = None,
    port: int = 0,
    socket: bool = False,
    **config: Any,
) -> AsyncIterator[Service]:
    """A service within the block; ``config`` are fields of ``ServiceConfig``."""
    with tempfile.TemporaryDirectory(prefix="sxs") as folder:  # short: a socket's path is bounded
        path = Path(folder) / "s" if socket else None
        monitor = NotingMonitor()
        runtime = Runtime(
            ServiceConfig(port=0, grpc_port=port, grpc_socket=path, **config),
            engine,
            speculative=speculative,
            drafting_config=drafting,
            monitor=monitor,
        )
        await runtime.start()
        server = await serve_grpc(runtime)
        try:
            yield Service(runtime, server, monitor.records, path)
        finally:
            await server.stop(0.5)
            await runtime.close()


def phrases(seed: int, length: int, vocab: int = VOCAB) -> NDArray[np.int32]:
    """Tokens that repeat themselves, as agents do: runs from a few phrases."""
    rng = np.random.default_rng(seed)
    store = np.random.default_rng(7).integers(1, vocab, (12, 20))
    parts = [store[rng.integers(12)][: rng.integers(4, 21)] for _ in range(length // 4 + 1)]
    return np.concatenate(parts)[:length].astype(np.int32)
