"""kill -9 at random moments: of replicas, of Redis, of both, over and over.

Whatever was acknowledged is there afterwards, nothing was ever damaged, and every replica, survivor
or newcomer, holds the same. ``CHAOS_ROUNDS`` sets the number of rounds (default 3),
``SUFFIXSPEC_CHAOS_SEED`` what happens in them.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from suffixspec_index.log import open_log
from tests.index.sharing.chaos_replica import NAMED, digest_of, is_whole
from tests.index.sharing.replicas import LONG, Replica, closing
from tests.redis_servers import RedisServer
from tests.threads import ended

ROOT = Path(__file__).resolve().parents[3]
ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "3"))
SEED = int(os.environ.get("SUFFIXSPEC_CHAOS_SEED", "1"))
VICTIMS = ("replica", "redis", "both")

Name = tuple[int, ...]


class Process:
    """A replica process; ``acknowledged`` is what it said that the log had taken."""

    def __init__(self, url: str, worker: int, seed: int) -> None:
        self.acknowledged: list[Name] = []
        self.said: dict[str, list[str]] = {}
        self.heard = threading.Condition()
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.index.sharing.chaos_replica",
                url,
                str(worker),
                str(seed),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.listener = threading.Thread(daemon=True, target=self._listen)
        self.listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.endswith("\n"):
                break  # killed while it spoke
            word, *rest = line.split()
            with self.heard:
                if word == "acknowledged":
                    self.acknowledged.append(tuple(map(int, rest)))
                else:
                    self.said[word] = rest
                self.heard.notify_all()

    def wait_for(self, word: str) -> list[str]:
        """What it answers."""
        with self.heard:
            assert self.heard.wait_for(lambda: word in self.said, LONG), f"never said {word}"
            return self.said.pop(word)

    def ask(self, command: str, answer: str) -> list[str]:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.wait_for(answer)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        ended([self.listener])
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    started: list[Process] = []
    yield started
    for process in started:
        if process.process.poll() is None:
            process.kill()


def start(processes: list[Process], url: str, worker: int, seed: int) -> Process:
    processes.append(Process(url, worker, seed))
    return processes[-1]


def check(url: str, processes: list[Process], survivors: list[Process], **options: bool) -> None:
    """Newcomers read the log; everybody holds the same, and nothing acknowledged is missing."""
    assert all(survivor.ask("quiet", "flushed") == ["True"] for survivor in survivors)
    newcomers = [Replica(open_log(url, **options)) for _ in range(2)]
    with closing(newcomers):
        for newcomer in newcomers:
            assert newcomer.sharing.wait_until_current(LONG)
            newcomer.index.check_integrity()
            (status,) = newcomer.sharing.status().namespaces
            assert (status.damaged, status.resets, status.error) == (0, 0, None)
        held = newcomers[0].sequences()
        digests = {digest_of(newcomer.sequences().elements()) for newcomer in newcomers}
    for survivor in survivors:
        current, digest = survivor.ask("digest", "digest")
        assert current == "True"
        digests.add(digest)
    assert len(digests) == 1
    assert all(is_whole(tokens) for tokens in held)
    assert set(held.values()) == {1}
    acknowledged = Counter(name for process in processes for name in process.acknowledged)
    assert len(acknowledged) > 10 * len(processes)
    assert acknowledged <= Counter(tokens[:NAMED] for tokens in held)


def test_the_process_with_the_journal_is_killed(tmp_path: Path, processes: list[Process]) -> None:
    rng = random.Random(SEED)
    url = f"journal:{tmp_path / 'journal'}?fsync=always&segment_bytes=8KiB"
    for turn in range(ROUNDS):
        process = start(processes, url, 1, turn)
        process.wait_for("ready")
        time.sleep(rng.uniform(0.05, 0.5))
        process.kill()
    last = start(processes, url, 1, ROUNDS)
    last.wait_for("ready")
    time.sleep(0.3)
    check(url, processes, [last], read_only=True)


def test_replicas_and_redis_are_killed(tmp_path: Path, processes: list[Process]) -> None:
    rng = random.Random(SEED)
    server = RedisServer(tmp_path / "redis", ["appendonly yes", "appendfsync always"]).start()
    try:
        url = f"{server.url}?timeout=1&connect_timeout=1"
        alive = [start(processes, url, worker, 0) for worker in (1, 2)]
        for process in alive:
            process.wait_for("ready")
        for turn in range(1, ROUNDS + 1):
            time.sleep(rng.uniform(0.05, 0.5))
            victim, at = VICTIMS[turn % len(VICTIMS)], rng.randrange(2)
            if victim != "redis":
                alive[at].kill()
            if victim != "replica":
                server.kill()
                time.sleep(rng.uniform(0.0, 0.3))
                server.start()
            if victim != "redis":
                alive[at] = start(processes, url, at + 1, turn)
                alive[at].wait_for("ready")
        time.sleep(0.3)
        check(url, processes, alive)
    finally:
        server.close()
