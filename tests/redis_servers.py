"""Real Redis servers for tests, with every fault one can meet.

Each server is a process of its own on a free loopback port, with its own folder, so tests run side
by side (pytest-xdist). ``kill`` is kill -9; ``pause`` stops the process with SIGSTOP, so that its
port still accepts connections and nothing answers.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.certificates import Certificates

INSTALL = (
    "redis-server is not installed; the tests of sharing need a real one (6.2 or newer): "
    "`apt-get install redis-server`, `brew install redis`, or your system's package"
)


def require_redis() -> str:
    """The path of ``redis-server``. Without one the tests fail in CI, and are skipped elsewhere."""
    found = shutil.which("redis-server")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(INSTALL, pytrace=False)
        pytest.skip(INSTALL)
    return found


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass
class RedisServer:
    """One server. ``options`` are lines of redis.conf, e.g. ``("maxmemory 8mb",)``."""

    folder: Path
    options: Sequence[str] = ()
    password: str | None = None
    user: str | None = None  # an ACL user with that password; None: the default user
    acl: str = "+@all"
    tls: Certificates | None = None
    port: int = 0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    # --- its life --------------------------------------------------------------------------------

    def start(self) -> RedisServer:
        """Start it and wait until it answers. Later starts keep the port."""
        assert self.process is None, "it runs already"
        self.folder.mkdir(parents=True, exist_ok=True)
        for _ in range(1 if self.port else 10):  # another process may have taken the port
            port = self.port or free_port()
            self._launch(port)
            if self._came_up(port):
                self.port = port
                return self
            self._reap()
        raise RuntimeError(f"redis-server does not start: {self.log()[-2000:]}")

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.kill()
        self._reap()

    def pause(self) -> None:
        """SIGSTOP: connections are still accepted by the kernel, nothing answers."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def restart(self, *, empty: bool = False) -> None:
        """Start it again, killing it first where it runs; ``empty``: with nothing on its disk."""
        if self.process is not None:
            self.kill()
        if empty:
            shutil.rmtree(self.folder)
        self.start()

    def close(self) -> None:
        if self.process is not None:
            self.kill()

    # --- talking to it ---------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """What a replica is given, credentials included."""
        login = f"{self.user or ''}:{self.password}@" if self.password else ""
        if self.tls is None:
            return f"redis://{login}127.0.0.1:{self.port}/0"
        return f"rediss://{login}localhost:{self.port}/0?ssl_ca_certs={self.tls.authority}"

    @contextlib.contextmanager
    def client(self) -> Iterator[Any]:
        """A plain client; it uses the same login as the replicas."""
        client = redis.Redis.from_url(self.url, socket_timeout=10)
        try:
            yield client
        finally:
            client.close()

    def call(self, *command: Any) -> Any:
        with self.client() as client:
            return client.execute_command(*command)

    def log(self) -> str:
        file = self.folder / "redis.log"
        return file.read_text(errors="replace") if file.exists() else ""

    # --- inside ----------------------------------------------------------------------------------

    def _launch(self, port: int) -> None:
        lines = ["bind 127.0.0.1", "save ''", f"dir {self.folder}", "logfile redis.log"]
        lines += ["tcp-backlog 128", *self.options]
        if self.tls is None:
            lines.append(f"port {port}")
        else:
            lines += ["port 0", f"tls-port {port}", "tls-auth-clients no"]
            lines += [f"tls-cert-file {self.tls.certificate}", f"tls-key-file {self.tls.key}"]
            lines.append(f"tls-ca-cert-file {self.tls.authority}")
        if self.user is not None:
            lines += ["user default off", f"user {self.user} on >{self.password} ~* &* {self.acl}"]
        elif self.password is not None:
            lines.append(f"requirepass {self.password}")
        config = self.folder / "redis.conf"
        config.write_text("\n".join(lines) + "\n")
        self.process = subprocess.Popen(
            [require_redis(), str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def _came_up(self, port: int, patience_s: float = 20.0) -> bool:
        assert self.process is not None
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                return False
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                if self.tls is not None or _answers(port):
                    return True
            time.sleep(0.02)
        return False

    def _reap(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def _answers(port: int) -> bool:
    """Whether the server on ``port`` has loaded its data (a refused login is an answer too)."""
    with socket.create_connection(("127.0.0.1", port), 1) as connection:
        connection.settimeout(2)
        connection.sendall(b"*1\r\n$4\r\nPING\r\n")
        reply = connection.recv(256)
    return bool(reply) and not reply.startswith((b"-LOADING", b"-MASTERDOWN"))


@dataclass
class RedisCluster:
    """Three masters on loopback, every slot covered."""

    folder: Path
    nodes: list[RedisServer] = field(default_factory=list)

    def start(self) -> RedisCluster:
        for number in range(3):
            options = ["cluster-enabled yes", "cluster-node-timeout 2000", "appendonly yes"]
            options += [f"cluster-port {free_port()}", "cluster-require-full-coverage no"]
            # ``everysec``: a busy disk delays writes that were acknowledged; kill -9 loses them
            options.append("appendfsync always")
            self.nodes.append(RedisServer(self.folder / str(number), options).start())
        self._join()
        return self

    def _join(self) -> None:
        """What ``redis-cli --cluster create`` does, without its waits of a second."""
        slots = [(0, 5460), (5461, 10922), (10923, 16383)]
        for node, (first, last) in zip(self.nodes, slots, strict=True):
            node.call("CLUSTER", "ADDSLOTSRANGE", first, last)
        for number, node in enumerate(self.nodes):
            node.call("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            bus = self.nodes[0].options[3].split()[1]
            if number:
                node.call("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port, bus)
        deadline = time.monotonic() + 30
        while not all(self._sees_all(node) for node in self.nodes):
            if time.monotonic() > deadline:
                raise RuntimeError("the cluster does not form")
            time.sleep(0.05)

    @staticmethod
    def _sees_all(node: RedisServer) -> bool:
        info = node.call("CLUSTER", "INFO")
        text = info if isinstance(info, dict) else dict(_pairs(info))
        return text["cluster_state"] == "ok" and int(text["cluster_known_nodes"]) == 3

    def move_slot(self, slot: int) -> None:
        """Move a slot that has keys to another node, as resharding does."""
        owner = next(n for n in self.nodes if n.call("CLUSTER", "COUNTKEYSINSLOT", slot))
        taker = self.nodes[(self.nodes.index(owner) + 1) % len(self.nodes)]
        name, other = (node.call("CLUSTER", "MYID").decode() for node in (owner, taker))
        taker.call("CLUSTER", "SETSLOT", slot, "IMPORTING", name)
        owner.call("CLUSTER", "SETSLOT", slot, "MIGRATING", other)
        for key in owner.call("CLUSTER", "GETKEYSINSLOT", slot, 1000):
            owner.call("MIGRATE", "127.0.0.1", taker.port, key, 0, 5000)
        for node in (taker, owner):
            node.call("CLUSTER", "SETSLOT", slot, "NODE", other)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.nodes[0].port}/0"

    def close(self) -> None:
        for node in self.nodes:
            node.close()


def _pairs(info: bytes | str) -> Iterator[tuple[str, str]]:
    text = info.decode() if isinstance(info, bytes) else info
    for line in text.split():
        name, _, value = line.partition(":")
        yield name, value
