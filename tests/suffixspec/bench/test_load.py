from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import numpy as np
import pytest

from suffixspec.bench.load import Load, run_round, warm_up
from suffixspec.bench.results import RequestResult, Round
from suffixspec.bench.speculation import SpeculationFigures
from suffixspec.bench.workload import BenchRequest, Workload
from suffixspec_index.errors import ConfigError


class Recording:
    """A backend that answers after a while and remembers who was served when."""

    def __init__(self, seconds: float = 0.0, error: str | None = None) -> None:
        self.seconds, self.error = seconds, error
        self.served: list[BenchRequest] = []
        self.sent: list[float] = []
        self.under_way: dict[str, int] = {}
        self.most = 0

    async def send(self, request: BenchRequest) -> RequestResult:
        self.served.append(request)
        self.sent.append(time.perf_counter())
        result = RequestResult(request, time.perf_counter(), error=self.error)
        assert request.session not in self.under_way, "turns of a session follow each other"
        self.under_way[request.session] = request.number
        self.most = max(self.most, len(self.under_way))
        await asyncio.sleep(self.seconds)
        del self.under_way[request.session]
        result.arrivals = [time.perf_counter()]
        result.ended = time.perf_counter()
        return result

    async def speculation(self) -> SpeculationFigures:
        return SpeculationFigures(drafts=len(self.served), steps=0, output_tokens=0)

    async def aclose(self) -> None:
        pass


def workload(*lengths: int) -> Workload:
    numbers = iter(range(100))
    return Workload(
        "made up",
        tuple(
            tuple(BenchRequest(next(numbers), f"s{i}", f"prompt {i}", 4) for _ in range(length))
            for i, length in enumerate(lengths)
        ),
    )


async def test_turns_follow_each_other_and_places_are_bounded() -> None:
    backend, done = Recording(0.002), Round()
    told: list[int] = []
    await run_round(backend, workload(3, 1, 2, 4), Load(max_concurrency=2), done, told.append)
    assert backend.most == 2
    assert sorted(r.number for r in backend.served) == list(range(10))
    assert told == list(range(1, 11))
    assert done.complete
    assert done.seconds > 0
    assert done.speculation == SpeculationFigures(drafts=10, steps=0, output_tokens=0)
    # A session keeps its place: the third begins when one of the first two has ended.
    order = [r.session for r in backend.served]
    assert order.index("s2") > order.index("s1")
    assert order.index("s3") > len(order) - 1 - order[::-1].index("s0") or order.index("s3") > 3


async def test_without_a_limit_all_are_served_at_once() -> None:
    backend = Recording(0.05)
    await run_round(backend, workload(*[1] * 9), Load(), Round())
    assert backend.most == 9


async def test_requests_come_at_their_time() -> None:
    load = Load(request_rate=100.0, seed=2)
    wanted = load.arrivals(8)
    backend, start = Recording(), time.perf_counter()
    await run_round(backend, workload(*[1] * 8), load, Round())
    came = [at - start for at in backend.sent]
    assert all(at >= due for at, due in zip(came, wanted, strict=True))


def test_intervals_have_the_rate_and_the_burstiness() -> None:
    for burstiness in (0.25, 1.0, 4.0):
        times = Load(request_rate=5.0, burstiness=burstiness, seed=1).arrivals(20_000)
        gaps = np.diff(times)
        assert gaps.mean() == pytest.approx(0.2, rel=0.05)
        # A gamma distribution's coefficient of variation is one over the root of its shape.
        assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.05)
    assert Load().arrivals(3) == [0.0] * 3
    assert Load(request_rate=2.0).arrivals(0) == []


async def test_an_interrupted_round_keeps_what_is_done() -> None:
    backend, done = Recording(0.02), Round()
    running = asyncio.create_task(
        run_round(backend, workload(50), Load(max_concurrency=1), done, lambda _: None)
    )
    while len(done.results) < 3:
        await asyncio.sleep(0.005)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert 3 <= len(done.results) < 50
    assert not done.complete
    assert done.seconds > 0
    assert done.speculation is not None


async def test_warm_up_leaves_nothing_behind() -> None:
    backend = Recording()
    await warm_up(backend, workload(2, 2), 3)
    assert [r.prompt for r in backend.served] == ["0 tpmorp", "0 tpmorp", "1 tpmorp"]
    assert {r.session for r in backend.served}.isdisjoint({"s0", "s1"})
    with pytest.raises(ConfigError, match="first request fails: out of order"):
        await warm_up(Recording(error="out of order"), workload(1), 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_concurrency": 0}, "--max-concurrency: 0"),
        ({"request_rate": 0.0}, "--request-rate: 0.0"),
        ({"request_rate": math.nan}, "--request-rate: nan"),
        ({"burstiness": 0.0}, "--burstiness: 0.0"),
        ({"burstiness": math.inf}, "--burstiness: inf"),
    ],
)
def test_wrong_values(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Load(**options)
