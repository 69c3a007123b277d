"""Group ``rpc``: what drafts of a service in another process cost an engine, per step of a batch.

A step is one round trip: what 64 requests gained, and their next drafts. Requests are turns of the
recorded traces, decoded as a verifier would; a request that ends makes room for the next, outside
the measured time. Wall-clock time: two processes share the machine, so quiet ones give the truth.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data import Tokens
from benchmarks.harness import ROOT, Context, Row, below, group, versus
from benchmarks.rpc_service import speculative
from suffixspec_index.draft import DraftBatch
from suffixspec_service.callers import Tenant
from suffixspec_service.client import DraftClient
from suffixspec_service.drafting import Drafting, NewRequest, OpenLease, Step
from suffixspec_service.spaces import Spaces

BATCH = 64
STEPS = 2_000
WARM = 200
HISTORY = 50_000
P50_MS, P99_MS, BLOCKED_MS = 1.0, 3.0, 20.0

Turn = tuple[Tokens, Tokens]
Gains = list[tuple[int, Tokens]]


class Target:
    """What is measured: begins, steps and ends requests by number."""

    def __init__(
        self,
        begin: Callable[[int, Tokens], None],
        step: Callable[[Gains, Sequence[int]], DraftBatch],
        finish: Callable[[int], None],
    ) -> None:
        self.begin, self.step, self.finish = begin, step, finish


@group("rpc", "a step of a batch of 64 drafted for by a service in another process")
def run(context: Context) -> list[Row]:
    """Every row of the group."""
    steps = 200 if context.quick else STEPS
    turns, history = _traffic(context)
    vocab_size = context.corpus.vocab_size
    with _in_process(vocab_size, history) as target:
        alone = _times(target, turns, steps)
    rows: list[Row] = []
    with _service() as (addresses, stop):
        for place, address in zip(("TCP", "Unix socket"), addresses, strict=True):
            for transport in ("stream", "unary"):
                context.say(f"{transport}, {place}")
                with _remote(address, transport, vocab_size, history) as target:
                    times = _times(target, turns, steps)
                rows += _rows(f"{transport}, {place}", times, alone)
        blocked = stop()
    return [
        versus("step of 64 in process, p50", _at(alone, 0.5), None, "ms"),
        *rows,
        below(
            "service's event loop busy at a stretch, longest, processor time",
            blocked["processor_ms"],
            None,
            "ms",
            limit=BLOCKED_MS,
        ),
        versus("the same, with what else the machine did", blocked["wall_ms"], None, "ms"),
    ]


def _rows(name: str, times: list[float], alone: list[float]) -> list[Row]:
    p50 = _at(times, 0.5)
    return [
        below(f"step of 64, {name}, p50", p50, None, "ms", limit=P50_MS),
        below(f"step of 64, {name}, p99", _at(times, 0.99), None, "ms", limit=P99_MS),
        versus(f"step of 64, {name}, over the same in process", p50 / _at(alone, 0.5), None, "×"),
    ]


def _at(times: list[float], share: float) -> float:
    """A quantile, in milliseconds."""
    return 1e3 * sorted(times)[int(share * len(times))]


def _traffic(context: Context) -> tuple[list[Turn], list[Tokens]]:
    """Turns to decode, of all sources alike, and outputs that the service knows beforehand."""
    by_source = [
        [turn for session in sessions for turn in session if len(turn[1]) >= 8]
        for sessions in context.corpus.sources.values()
    ]
    n = min(min(map(len, by_source)), 400)
    turns = [source[-1 - i] for i in range(n) for source in by_source]
    history: list[Tokens] = []
    for source in by_source:
        for _, output in source[: len(source) // 2]:
            history.append(output)
            if sum(map(len, history)) > HISTORY:
                return turns, history
    return turns, history


def _times(target: Target, turns: list[Turn], steps: int) -> list[float]:
    """Seconds per step."""
    upcoming = _numbered(turns)
    live: dict[int, tuple[Tokens, int]] = {}
    gains: Gains = []
    times: list[float] = []
    for count in range(WARM + steps):
        while len(live) < BATCH:
            number, (prompt, output) = next(upcoming)
            target.begin(number, prompt)
            live[number] = (output, 0)
        numbers = list(live)
        started = time.perf_counter()
        drafts = target.step(gains, numbers)
        if count >= WARM:
            times.append(time.perf_counter() - started)
        gains = []
        for number, draft in zip(numbers, drafts, strict=True):
            output, at = live[number]
            rest = output[at : at + len(draft) + 1]
            said = rest[: len(draft.accepted_by(rest)) + 1]
            live[number] = (output, at + len(said))
            gains.append((number, said))
        ended = [n for n, (output, at) in live.items() if at == len(output)]
        if ended:
            target.step(gains, [])
            gains = []
        for number in ended:
            target.finish(number)
            del live[number]
    for number in live:
        target.finish(number)
    return times


def _numbered(turns: list[Turn]) -> Iterator[tuple[int, Turn]]:
    number = 0
    while True:
        for turn in turns:
            number += 1
            yield number, turn


@contextmanager
def _in_process(vocab_size: int, history: list[Tokens]) -> Iterator[Target]:
    """The same work without a transport between."""
    drafting, tenant = Drafting(Spaces(speculative())), Tenant("local")
    drafting.warm_up()
    lease = drafting.open(tenant, OpenLease(model="m", tokenizer="t", vocab_size=vocab_size)).lease
    for tokens in history:
        drafting.ingest(tenant, lease, [tokens])

    def begin(number: int, prompt: Tokens) -> None:
        request = NewRequest(request=number, session=str(number), prompt=prompt)
        drafting.begin(tenant, lease, [request])

    def step(gains: Gains, numbers: Sequence[int]) -> DraftBatch:
        tokens = np.concatenate([t for _, t in gains]) if gains else np.empty(0, np.int32)
        order = Step([n for n, _ in gains], [len(t) for _, t in gains], tokens, numbers)
        return drafting.step(tenant, lease, order)

    def finish(number: int) -> None:
        drafting.finish(tenant, lease, [number])
        drafting.end_sessions(tenant, lease, [str(number)])

    yield Target(begin, step, finish)


@contextmanager
def _remote(
    address: str, transport: str, vocab_size: int, history: list[Tokens]
) -> Iterator[Target]:
    options: dict[str, Any] = {"transport": transport, "adapter": f"{transport} {address}"}
    with DraftClient(address, model="m", tokenizer="t", vocab_size=vocab_size, **options) as client:
        client.ingest(history)
        requests: dict[int, Any] = {}

        def begin(number: int, prompt: Tokens) -> None:
            requests[number] = client.begin(str(number), prompt)

        def step(gains: Gains, numbers: Sequence[int]) -> DraftBatch:
            gained = [(requests[number], tokens) for number, tokens in gains]
            return client.step(gained, [requests[number] for number in numbers])

        def finish(number: int) -> None:
            client.finish([requests.pop(number)])
            client.end_session(str(number))

        yield Target(begin, step, finish)


@contextmanager
def _service() -> Iterator[tuple[list[str], Callable[[], dict[str, float]]]]:
    """A service in another process; gives its addresses, and what ends it."""
    with tempfile.TemporaryDirectory(prefix="sxs") as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.rpc_service", str(Path(folder) / "s")],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def stop() -> dict[str, float]:
            stdin.close()
            found: dict[str, float] = json.loads(stdout.readline())
            return found

        try:
            yield json.loads(stdout.readline())["addresses"], stop
        finally:
            process.kill()
            process.wait()
            stdout.close()
            if not stdin.closed:
                stdin.close()
