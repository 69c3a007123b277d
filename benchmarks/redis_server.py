"""A Redis of the benchmarks' own, on a free port, with what it used to show."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def available() -> bool:
    """Whether ``redis-server`` and the package ``redis`` are installed."""
    from importlib.util import find_spec

    return shutil.which("redis-server") is not None and find_spec("redis") is not None


@dataclass(frozen=True, slots=True)
class BenchmarkRedis:
    """A running server."""

    url: str
    client: Any

    def memory(self) -> int:
        """Bytes that its data takes, as it counts itself."""
        return int(self.client.info("memory")["used_memory"])

    def cpu_seconds(self) -> float:
        """Processor time it took so far, in the kernel too."""
        found = self.client.info("cpu")
        return float(found["used_cpu_sys"]) + float(found["used_cpu_user"])


@contextmanager
def running_redis(*options: str) -> Iterator[BenchmarkRedis]:
    """Start it with an append-only file that is synced every second, as it is deployed."""
    import redis

    folder = Path(tempfile.mkdtemp(prefix="suffixspec-redis-"))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    lines = ["bind 127.0.0.1", f"port {port}", "save ''", f"dir {folder}", "logfile redis.log"]
    lines += ["appendonly yes", "appendfsync everysec", *options]
    (folder / "redis.conf").write_text("\n".join(lines))
    process = subprocess.Popen(["redis-server", str(folder / "redis.conf")])
    client = redis.Redis(port=port, socket_timeout=60)
    try:
        _wait(client)
        yield BenchmarkRedis(f"redis://127.0.0.1:{port}/0", client)
    finally:
        client.close()
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait(client: Any) -> None:
    import redis

    ends = time.monotonic() + 20
    while True:
        try:
            client.ping()
            return
        except redis.ConnectionError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.05)
