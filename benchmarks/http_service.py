"""The service in a process of its own, for group ``service``: ``python -m
benchmarks.http_service``.

Prints where it listens as JSON. For every line on its standard input it prints how long its event
loop was ever blocked since the line before, and how much memory it holds; it ends with the input.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from benchmarks.loop_watch import LoopWatch, run_as_served, until_input_ends
from suffixspec_service.config import ServiceConfig
from suffixspec_service.runtime import Runtime
from suffixspec_service.server import Addresses, listen, serve


async def run() -> None:
    """See the module docstring."""
    from suffixspec_engine.engine import Engine
    from suffixspec_engine.engine_config import EngineConfig

    config = ServiceConfig(port=0, grpc_port=None)
    engine = Engine("smollm2", speculative={"method": "suffix"}, config=EngineConfig(threads=1))
    runtime = Runtime(config, engine, model_name="smollm2")
    watch = LoopWatch()
    tasks: list[asyncio.Task[None]] = []

    def look() -> None:
        print(json.dumps(watch.take() | {"rss_mib": _rss_mib()}), flush=True)

    def ready(addresses: Addresses) -> None:
        print(json.dumps({"url": addresses.http}), flush=True)
        tasks.append(asyncio.create_task(watch.run()))
        until_input_ends(look)

    await serve(runtime, listen(config), ready=ready)
    for task in tasks:
        task.cancel()


def _rss_mib() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


if __name__ == "__main__":
    run_as_served(run())
