"""The service in a process of its own, for group ``service``: ``python -m
benchmarks.http_service``.

Prints where it listens as JSON. For every line on its standard input it prints how long its event
loop was ever blocked since the line before, and how much memory it holds; it ends with the input.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path

from suffixspec_service.config import ServiceConfig
from suffixspec_service.runtime import Runtime
from suffixspec_service.server import Addresses, listen, serve

_TICK_S = 0.001


class LagWatch:
    """Sleeps for a millisecond, again and again, and notes how much later it wakes up."""

    def __init__(self) -> None:
        self.lags: list[float] = []

    async def run(self) -> None:
        """Watch until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            await asyncio.sleep(_TICK_S)
            self.lags.append(max(loop.time() - started - _TICK_S, 0.0))

    def take(self) -> dict[str, float]:
        """The longest blockage since the last call, and the 99.9th percentile, in ms."""
        lags, self.lags = sorted(self.lags), []
        if not lags:
            return {"longest_ms": 0.0, "p999_ms": 0.0}
        return {"longest_ms": 1e3 * lags[-1], "p999_ms": 1e3 * lags[int(0.999 * len(lags))]}


async def run() -> None:
    """See the module docstring."""
    from suffixspec_engine.engine import Engine
    from suffixspec_engine.engine_config import EngineConfig

    config = ServiceConfig(port=0, grpc_port=None)
    engine = Engine("smollm2", speculative={"method": "suffix"}, config=EngineConfig(threads=1))
    runtime = Runtime(config, engine, model_name="smollm2")
    bound = listen(config)
    watch, stop = LagWatch(), asyncio.Event()

    def ready(addresses: Addresses) -> None:
        print(json.dumps({"url": addresses.http}), flush=True)

    watching = asyncio.create_task(watch.run())
    answering = asyncio.create_task(asyncio.to_thread(_answer, watch.take))
    answering.add_done_callback(lambda _: stop.set())
    await serve(runtime, bound, ready=ready, stop=stop)
    watching.cancel()


def _answer(take: Callable[[], dict[str, float]]) -> None:
    for _ in sys.stdin:
        print(json.dumps(take() | {"rss_mib": _rss_mib()}), flush=True)


def _rss_mib() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def main() -> None:
    """Run it, in uvloop where that is installed, as ``suffixspec serve`` does."""
    import structlog

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    try:
        import uvloop
    except ImportError:
        asyncio.run(run())
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())


if __name__ == "__main__":
    main()
