"""Sending a workload: when sessions arrive, and how many are served at once."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from suffixspec.bench.backends.base import Backend
from suffixspec.bench.results import Round
from suffixspec.bench.workload import BenchRequest, Workload
from suffixspec_index.errors import ConfigError

WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How requests arrive.

    Attributes:
        max_concurrency: sessions served at once, and so requests; ``None``: no limit. A session
            holds its place through all its turns, as an agent does.
        request_rate: sessions per second; infinite: all at once. (A session of one request is a
            request: then this is vLLM's figure. Later turns follow the answer before them.)
        burstiness: shape of the gamma distribution of the intervals; 1: a Poisson process, less:
            burstier.
        seed: of the intervals.

    Raises:
        ConfigError: a value is out of range.
    """

    max_concurrency: int | None = None
    request_rate: float = math.inf
    burstiness: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise ConfigError(f"--max-concurrency: {self.max_concurrency} is not at least 1")
        if not self.request_rate > 0:
            raise ConfigError(f"--request-rate: {self.request_rate} is not above 0; leave it out")
        if not 0 < self.burstiness < math.inf:
            raise ConfigError(f"--burstiness: {self.burstiness} is not above 0")

    def arrivals(self, count: int) -> list[float]:
        """Seconds from the start at which each session arrives, rising; the first at once."""
        if math.isinf(self.request_rate):
            return [0.0] * count
        scale = 1.0 / (self.request_rate * self.burstiness)
        gaps = np.random.default_rng(self.seed).gamma(self.burstiness, scale, count)
        times: list[float] = (np.cumsum(gaps) - gaps[0]).tolist() if count else []
        return times


async def run_round(
    backend: Backend,
    workload: Workload,
    load: Load,
    into: Round,
    told: Callable[[int], None] | None = None,
) -> None:
    """Serve the whole workload once.

    Args:
        into: filled while it runs, so that an interrupted round keeps what is done.
        told: called after every request with how many are done.
    """
    places = asyncio.Semaphore(load.max_concurrency or len(workload.sessions))
    before = await backend.speculation()
    start = time.perf_counter()

    async def serve(session: tuple[BenchRequest, ...], arrival: float) -> None:
        await asyncio.sleep(max(0.0, start + arrival - time.perf_counter()))
        async with places:
            for request in session:
                into.results.append(await backend.send(request))
                if told is not None:
                    told(len(into.results))

    try:
        arrivals = load.arrivals(len(workload.sessions))
        async with asyncio.TaskGroup() as group:
            for session, arrival in zip(workload.sessions, arrivals, strict=True):
                group.create_task(serve(session, arrival))
        into.complete = True
    finally:
        ended = [result.ended for result in into.results]
        into.seconds = max(ended, default=start) - start
        after = await asyncio.shield(backend.speculation())
        if before is not None and after is not None:
            into.speculation = after - before


async def warm_up(backend: Backend, workload: Workload, count: int) -> None:
    """Send a few short requests that leave nothing behind which the workload could use.

    Each prompt is one of the workload's backwards: as long, but no beginning that a prefix cache
    could keep, and no text that an index could draft.

    Raises:
        ConfigError: one of them fails, with the server's reason.
    """
    for number, request in enumerate(workload.requests[:count]):
        messages = request.messages
        if messages is not None:
            asked = str(messages[-1].get("content") or "")
            messages = ({"role": "user", "content": asked[::-1]},)
        result = await backend.send(
            BenchRequest(
                number,
                f"warm-up-{number}",
                request.prompt[::-1],
                min(request.max_tokens, WARM_UP_TOKENS),
                messages,
            )
        )
        if result.error is not None:
            raise ConfigError(f"warm-up: the first request fails: {result.error}")
