"""A service that listens, in a thread of its own, and a browser that looks at it."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import uvicorn

from suffixspec_service.app import create_app
from suffixspec_service.runtime import Runtime
from tests.threads import ended


class Served:
    """A runtime behind a real server on a free loopback port."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._server = uvicorn.Server(
            uvicorn.Config(create_app(runtime), port=0, log_level="warning", lifespan="off")
        )
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> Served:
        self._thread.start()
        deadline = time.monotonic() + 120
        while not (self._server.started and self.runtime.ready):
            assert self._thread.is_alive(), "the server ended"
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.02)
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.should_exit = True
        ended([self._thread], 30)

    @property
    def url(self) -> str:
        """Where it listens."""
        port = self._server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}"

    async def _serve(self) -> None:
        await self.runtime.start()
        try:
            await self._server.serve()
        finally:
            await self.runtime.close()


class Visit:
    """An open page, with what it complained about and what it asked for."""

    def __init__(self, browser: Any, url: str, path: str = "/", **context: Any) -> None:
        self.url = url
        self.context = browser.new_context(**context)
        self.page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda m: self.complaints.append(f"{m.type}: {m.text}"))
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.on("dialog", lambda d: self.complaints.append("dialog"))
        self.page.on("request", lambda r: self.requests.append(r.url))
        self.page.goto(url + path)

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        self.context.close()
        if kind is None:
            assert self.complaints == []
            outside = [r for r in self.requests if not r.startswith((self.url, "blob:", "data:"))]
            assert outside == []
