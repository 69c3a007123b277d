"""A running service for tests: HTTP on a free port, in a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from suffixspec_engine.engine import Engine
from suffixspec_engine.models import TargetModel
from suffixspec_service.config import ServiceConfig
from suffixspec_service.runtime import Runtime
from suffixspec_service.server import Addresses, listen, serve
from tests.threads import ended

CHATML = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@dataclass(slots=True)
class Served:
    """What a test needs of a running service."""

    runtime: Runtime
    engine: Engine
    url: str
    grpc: tuple[str, ...]
    model: str
    stop: Any

    @property
    def api(self) -> str:
        """The base URL of OpenAI's API."""
        return f"{self.url}/v1"

    def client(self, **options: Any) -> httpx.Client:
        """A plain client."""
        return httpx.Client(base_url=self.url, timeout=120, **options)

    def chat(self, client: httpx.Client, text: str = "hello", **fields: Any) -> httpx.Response:
        """One chat request."""
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 8,
            "temperature": 0,
        }
        return client.post("/v1/chat/completions", json=body | fields)

    def left_behind(self) -> dict[str, int]:
        """Everything that a request holds while it runs, and that is not 0."""
        held = {
            "running": self.engine.num_running,
            "waiting": self.engine.num_waiting,
            "admitted": self.runtime.admission.running,
            "in the index": self.runtime.spaces.live_requests,
            "reserved tokens": self.engine._core.cache.live_tokens,
        }
        return {name: count for name, count in held.items() if count}

    def settle(self, seconds: float = 20.0) -> None:
        """Wait until nothing is left behind; fail where something stays."""
        end = time.monotonic() + seconds
        while self.left_behind() and time.monotonic() < end:
            time.sleep(0.01)
        assert self.left_behind() == {}


@contextmanager
def served(
    target: TargetModel,
    *,
    name: str = "tiny",
    chat_template: str | None = None,
    grpc_port: int | None = None,
    **config: Any,
) -> Iterator[Served]:
    """A service over a loaded model; ``config`` are fields of ``ServiceConfig``."""
    engine = Engine(target, speculative={"method": "suffix"})
    runtime = Runtime(
        ServiceConfig(port=0, grpc_port=grpc_port, **config),
        engine,
        model_name=name,
        chat_template=chat_template,
    )
    bound = listen(runtime.config)
    started = threading.Event()
    found: list[Addresses] = []
    failed: list[BaseException] = []
    loop = asyncio.new_event_loop()
    stopping = asyncio.Event()

    def ready(addresses: Addresses) -> None:
        found.append(addresses)
        started.set()

    def run() -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(serve(runtime, bound, ready=ready, stop=stopping))
        except BaseException as error:
            failed.append(error)
        finally:
            started.set()
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    def stop() -> None:
        loop.call_soon_threadsafe(stopping.set)

    thread = threading.Thread(daemon=True, target=run, name="service")
    thread.start()
    assert started.wait(120)
    if failed:
        ended([thread])
        raise failed[0]
    try:
        yield Served(runtime, engine, found[0].http, found[0].grpc, name, stop)
    finally:
        if not loop.is_closed():
            stop()
        ended([thread], 30)
        assert failed == []
