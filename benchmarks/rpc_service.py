"""``python -m benchmarks.rpc_service SOCKET``: a drafting service in a process of its own.

For group ``rpc``. Prints where it listens as JSON, serves until its standard input ends, then
prints how long its event loop was blocked.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_service.config import ServiceConfig
from suffixspec_service.rpc.server import serve_grpc
from suffixspec_service.runtime import Runtime

_TICK_S = 0.001


async def serve(socket: Path) -> None:
    """See the module docstring."""
    config = ServiceConfig(port=0, grpc_port=0, grpc_socket=socket)
    runtime = Runtime(config, speculative=speculative())
    await runtime.start()
    server = await serve_grpc(runtime)
    waits: list[float] = []
    work: list[float] = []
    watch = asyncio.create_task(_watch(waits, work))
    print(json.dumps({"addresses": server.addresses}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    watch.cancel()
    await server.stop(1)
    await runtime.close()
    print(json.dumps({"wall_ms": 1e3 * max(waits), "processor_ms": 1e3 * max(work)}))


def speculative() -> SpeculativeConfig:
    """What is measured: the defaults."""
    return SpeculativeConfig(method="suffix")


async def _watch(waits: list[float], work: list[float]) -> None:
    """How much later than asked the loop came back, and how long its thread worked meanwhile, which
    does not count what other processes on the machine took away."""
    loop = asyncio.get_running_loop()
    while True:
        started, worked = loop.time(), time.thread_time()
        await asyncio.sleep(_TICK_S)
        waits.append(max(loop.time() - started - _TICK_S, 0.0))
        work.append(time.thread_time() - worked)


def main() -> None:
    """Run it, in uvloop where that is installed, as ``suffixspec serve`` does."""
    import structlog

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(Path(sys.argv[1])))
    else:
        uvloop.run(serve(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
