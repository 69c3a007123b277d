"""Measures how long the event loop was busy with something else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable


class LoopLag:
    """A timer that notes how late it is called.

    Args:
        observe: called with every delay in seconds, in the event loop.
        interval_s: between two looks. A blockage that begins and ends between them is seen with
            what is left of it when the timer is due, so shorter ones are seen by chance only.
    """

    def __init__(self, observe: Callable[[float], object], *, interval_s: float = 0.05) -> None:
        self._observe, self._interval = observe, interval_s
        self._task: asyncio.Task[None] | None = None
        self._worst = 0.0

    def start(self) -> None:
        """Begin, in the running event loop."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="suffixspec-loop-lag")

    async def stop(self) -> None:
        """End. May be called twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def take_worst(self) -> float:
        """The longest delay since the last call, in seconds."""
        worst, self._worst = self._worst, 0.0
        return worst

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + self._interval
            await asyncio.sleep(self._interval)
            late = max(0.0, loop.time() - due)
            self._worst = max(self._worst, late)
            self._observe(late)
