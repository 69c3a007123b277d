"""A stand-in for Redis servers that cannot be had: very old ones, ones that load for hours.

It answers each command with what ``answer`` says, in RESP2; that is all a fault test needs.
"""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from tests.threads import ended

Answer = Callable[[list[bytes]], bytes]
"""From a command and its arguments to raw RESP."""


class RespStandIn:
    """Use as a context manager; ``url`` is where it listens."""

    def __init__(self, answer: Answer) -> None:
        self.commands: list[bytes] = []

        class Handler(socketserver.StreamRequestHandler):
            def handle(handler) -> None:  # noqa: N805
                while command := read_command(handler.rfile):
                    self.commands.append(command[0].upper())
                    handler.wfile.write(answer(command))

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            daemon=True, target=self._server.serve_forever, args=(0.05,)
        )

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> RespStandIn:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        ended([self._thread])
        self._server.server_close()


class _Stream(Protocol):
    def readline(self) -> bytes: ...
    def read(self, size: int) -> bytes: ...


def read_command(stream: _Stream) -> list[bytes]:
    """One command, an array of bulk strings; empty at the end."""
    header = stream.readline()
    if not header.startswith(b"*"):
        return []
    parts = []
    for _ in range(int(header[1:])):
        length = int(stream.readline()[1:])
        parts.append(stream.read(length + 2)[:-2])
    return parts


def hello(version: str, mode: str = "standalone") -> bytes:
    """The reply to HELLO."""
    pairs = {"server": "redis", "version": version, "proto": 2, "mode": mode, "role": "master"}
    parts = [f"*{2 * len(pairs)}\r\n"]
    for name, value in pairs.items():
        parts.append(f"${len(name)}\r\n{name}\r\n")
        number = isinstance(value, int)
        parts.append(f":{value}\r\n" if number else f"${len(str(value))}\r\n{value}\r\n")
    return "".join(parts).encode()
