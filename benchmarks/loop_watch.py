"""What the benchmarks' services have in common: they run as ``suffixspec serve`` does, and watch
their event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

_TICK_S = 0.001


class LoopWatch:
    """Sleeps for a millisecond, again and again, and notes how much later it wakes up, and how long
    the loop's thread worked meanwhile, which leaves out what other threads and processes took."""

    def __init__(self) -> None:
        self._waits: list[float] = []
        self._work: list[float] = []

    async def run(self) -> None:
        """Watch until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            started, worked = loop.time(), time.thread_time()
            await asyncio.sleep(_TICK_S)
            self._waits.append(max(loop.time() - started - _TICK_S, 0.0))
            self._work.append(time.thread_time() - worked)

    def take(self) -> dict[str, float]:
        """Since the last call, in ms: the longest blockage and the 99.9th percentile by the clock,
        and the longest that the loop's thread worked at a stretch."""
        waits, self._waits = sorted(self._waits), []
        work, self._work = self._work, []
        return {
            "wall_ms": 1e3 * waits[-1] if waits else 0.0,
            "p999_ms": 1e3 * waits[int(0.999 * len(waits))] if waits else 0.0,
            "processor_ms": 1e3 * max(work, default=0.0),
        }


def until_input_ends(each_line: Callable[[], None] = lambda: None) -> None:
    """Call ``each_line`` for every line of standard input, in a thread, and end the process as a
    supervisor would (SIGTERM) when there are no more."""

    def read() -> None:
        for _ in sys.stdin:
            each_line()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=read, daemon=True).start()


def run_as_served(main: Coroutine[Any, Any, None]) -> None:
    """Run it in uvloop where that is installed, with the log on standard error."""
    import structlog

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main)
