"""A tiny server with OpenAI's streaming API: what it says is a function of the prompt."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from tests.threads import ended

CHUNK = 2
"""Tokens (words) per chunk, as speculation gives them."""


@dataclass
class FakeServer:
    """The server's state.

    Attributes:
        bodies, headers: of every generation asked for, in order of arrival.
        fail_from: requests from this number on are refused; ``None``: none.
        pause: seconds before every chunk.
        most_at_once: requests that were under way together.
        usage: whether the last chunk tells token counts.
    """

    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    fail_from: int | None = None
    pause: float = 0.0
    most_at_once: int = 0
    usage: bool = True
    under_way: int = 0
    accepted: int = 0

    def app(self) -> FastAPI:
        app = FastAPI()
        app.get("/v1/models")(self.models)
        app.get("/metrics")(self.metrics)
        app.post("/v1/completions")(self.generate)
        app.post("/v1/chat/completions")(self.generate)
        return app

    async def models(self) -> dict[str, Any]:
        return {"object": "list", "data": [{"id": "fake-model", "object": "model"}]}

    async def metrics(self) -> Response:
        label = 'model_name="fake"'
        return PlainTextResponse(
            "# HELP vllm:spec_decode_num_drafts_total Drafts.\n"
            f"vllm:spec_decode_num_drafts_total{{{label}}} {self.accepted}.0\n"
            f"vllm:spec_decode_num_draft_tokens_total{{{label}}} {2 * self.accepted}.0\n"
            f"vllm:spec_decode_num_accepted_tokens_total{{{label}}} {self.accepted}.0\n"
            "vllm:spec_decode_num_accepted_tokens_per_pos_total"
            f'{{{label},position="0"}} {self.accepted}.0\n'
        )

    async def generate(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        if self.fail_from is not None and len(self.bodies) > self.fail_from:
            return JSONResponse({"error": {"message": "too busy"}}, status_code=503)
        return StreamingResponse(self._stream(body), media_type="text/event-stream")

    async def _stream(self, body: dict[str, Any]) -> AsyncIterator[str]:
        chat = "messages" in body
        asked = body["messages"][-1]["content"] if chat else body["prompt"]
        count = body.get("max_tokens") or body["max_completion_tokens"]
        words = [f"{len(asked)}.{i} " for i in range(count)]
        self.under_way += 1
        self.most_at_once = max(self.most_at_once, self.under_way)
        try:
            for at in range(0, count, CHUNK):
                await asyncio.sleep(self.pause)
                text = "".join(words[at : at + CHUNK])
                choice = {"index": 0, **({"delta": {"content": text}} if chat else {"text": text})}
                yield _event({"choices": [choice]})
                self.accepted += 1
            if self.usage:
                counts = {"prompt_tokens": len(asked), "completion_tokens": count}
                yield _event({"choices": [], "usage": counts})
            yield "data: [DONE]\n\n"
        finally:
            self.under_way -= 1


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value)}\n\n"


@contextmanager
def running() -> Iterator[FakeServer]:
    """Serve on a free port, in a thread."""
    fake = FakeServer()
    config = uvicorn.Config(fake.app(), port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            threading.Event().wait(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        fake.url = f"http://127.0.0.1:{port}"
        yield fake
    finally:
        server.should_exit = True
        ended([thread], 10)
