"""``python -m benchmarks.rpc_service SOCKET``: a drafting service in a process of its own.

For group ``rpc``; it runs as ``suffixspec serve --drafts-only`` does. Prints where it listens as
JSON, serves until its standard input ends, then prints how long its event loop was blocked.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from benchmarks.loop_watch import LoopWatch, run_as_served, until_input_ends
from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_service.config import ServiceConfig
from suffixspec_service.runtime import Runtime
from suffixspec_service.server import Addresses, listen, serve


async def run(socket: Path) -> None:
    """See the module docstring."""
    config = ServiceConfig(port=0, grpc_port=0, grpc_socket=socket)
    runtime = Runtime(config, speculative=speculative())
    watch = LoopWatch()
    tasks: list[asyncio.Task[None]] = []

    def ready(addresses: Addresses) -> None:
        print(json.dumps({"addresses": addresses.grpc}), flush=True)
        tasks.append(asyncio.create_task(watch.run()))
        until_input_ends()

    await serve(runtime, listen(config), ready=ready)
    for task in tasks:
        task.cancel()
    print(json.dumps(watch.take()))


def speculative() -> SpeculativeConfig:
    """What is measured: the defaults."""
    return SpeculativeConfig(method="suffix")


if __name__ == "__main__":
    run_as_served(run(Path(sys.argv[1])))
