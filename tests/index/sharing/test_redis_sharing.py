"""Sharing through a real Redis that fails: drafts go on, what is unsent waits, all catches up."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from suffixspec_index.log import open_log
from suffixspec_index.sharing import SharingConfig, SharingStatus
from tests.index.sharing.replicas import KEY, LONG, Replica, assert_equal, closing, settle
from tests.redis_servers import RedisCluster, RedisServer
from tests.threads import ended

AOF = ("appendonly yes", "appendfsync always")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis", AOF).start()
    yield server
    server.close()


def new_replicas(url: str, count: int = 2, config: SharingConfig | None = None) -> list[Replica]:
    return [Replica(open_log(url, timeout=0.5, connect_timeout=0.5), config) for _ in range(count)]


def status_where(replica: Replica, holds: Callable[[SharingStatus], bool]) -> SharingStatus:
    """Wait for a status."""
    ends = time.monotonic() + LONG
    while not holds(found := replica.sharing.status()):
        assert time.monotonic() < ends, found
        time.sleep(0.01)
    return found


def is_in_trouble(status: SharingStatus) -> bool:
    return not status.connected and status.error is not None


def wait_until_equal(replicas: Sequence[Replica]) -> None:
    """What is sent again comes when it comes."""
    ends = time.monotonic() + LONG
    while any(replica.sequences() != replicas[0].sequences() for replica in replicas):
        assert time.monotonic() < ends, [replica.sharing.status() for replica in replicas]
        time.sleep(0.02)
    assert_equal(replicas)


def assert_drafts_go_on(replica: Replica) -> None:
    """From what the replica itself knows, in less time than any timeout."""
    began = time.monotonic()
    replica.say("mine", [71, 72, 73, 74])
    request = replica.begin("asks", [71, 72])
    assert replica.proposer.propose(request).token_ids.tolist()[:2] == [73, 74]
    replica.proposer.finish(request, keep=False)
    assert time.monotonic() - began < 0.4


def test_redis_is_gone_and_comes_back(server: RedisServer) -> None:
    one, other = replicas = new_replicas(server.url)
    with closing(replicas):
        one.say("a", [1, 2, 3])
        settle(replicas)
        server.kill()
        assert_drafts_go_on(one)
        other.say("b", [4, 5, 6])
        found = status_where(one, lambda status: is_in_trouble(status) and status.spool_bytes > 0)
        assert found.namespaces[0].unsent >= 1
        assert "cannot be reached" in str(found.error)
        server.start()
        settle(replicas)
        assert_equal(replicas)
        assert other.index.world.count([71, 72]) == 1
        assert status_where(one, lambda status: status.connected).spool_bytes == 0


def test_redis_stands_still(server: RedisServer) -> None:
    one, other = replicas = new_replicas(server.url)
    with closing(replicas):
        one.say("a", [1, 2, 3])
        settle(replicas)
        server.pause()
        assert_drafts_go_on(one)
        status_where(one, is_in_trouble)
        server.resume()
        settle(replicas)
        assert_equal(replicas)
        assert other.index.world.count([71, 72]) == 1  # not twice, though it was sent again


def test_redis_was_not_there_at_the_start(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "redis", AOF).start()
    server.kill()
    one, other = replicas = new_replicas(server.url)
    try:
        with closing(replicas):
            assert_drafts_go_on(one)
            status_where(one, is_in_trouble)
            server.start()
            settle(replicas)
            assert other.index.world.count([71, 72]) == 1
    finally:
        server.close()


def test_the_spool_is_bounded_and_the_oldest_go_first(server: RedisServer) -> None:
    one, other = replicas = new_replicas(server.url, config=SharingConfig(spool_bytes=8192))
    with closing(replicas):
        server.kill()
        for number in range(60):
            one.index.ingest([1_000 + number] * 50)
        found = status_where(one, is_in_trouble)
        (namespace,) = found.namespaces
        assert found.spool_bytes <= 8192
        assert namespace.dropped >= 60 - 8192 // 200
        assert namespace.dropped + namespace.unsent == 60
        assert namespace.dropped_tokens == 50 * namespace.dropped
        server.start()
        settle(replicas)
        arrived = sorted(tokens[0] - 1_000 for tokens in other.sequences())
        # a batch that was under way above came back since, and may have been dropped for newer ones
        (namespace,) = one.sharing.status().namespaces
        assert len(arrived) == 60 - namespace.dropped
        assert arrived[-10:] == list(range(50, 60))  # only what was being sent may be older


def test_redis_is_full(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "redis", ["maxmemory-policy noeviction"]).start()
    one, other = replicas = new_replicas(server.url)
    try:
        with closing(replicas):
            one.say("a", [1, 2, 3])
            settle(replicas)
            server.call("CONFIG", "SET", "maxmemory", "1mb")
            assert_drafts_go_on(one)
            status_where(one, lambda status: "memory is full" in str(status.error))
            server.call("CONFIG", "SET", "maxmemory", "0")
            settle(replicas)
            assert other.index.world.count([71, 72]) == 1
    finally:
        server.close()


def test_redis_becomes_a_replica_and_a_master_again(server: RedisServer, tmp_path: Path) -> None:
    one, other = replicas = new_replicas(server.url)
    with closing(replicas):
        one.say("a", [1, 2, 3])
        settle(replicas)
        server.call("CONFIG", "SET", "replica-serve-stale-data", "yes")
        server.call("REPLICAOF", "127.0.0.1", "1")
        assert_drafts_go_on(one)
        status_where(one, lambda status: "cannot be written to" in str(status.namespaces[0].error))
        server.call("REPLICAOF", "NO", "ONE")
        settle(replicas)
        assert other.index.world.count([71, 72]) == 1


def test_the_password_changes(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "redis", AOF, password="first").start()
    secret = tmp_path / "password"
    secret.write_text("first")
    url = f"redis://127.0.0.1:{server.port}?password_file={secret}"
    one, other = replicas = new_replicas(url)
    try:
        with closing(replicas):
            one.say("a", [1, 2, 3])
            settle(replicas)
            server.password = "second"
            server.restart()
            assert_drafts_go_on(one)
            found = status_where(one, lambda status: "WRONGPASS" in str(status.error))
            assert "first" not in str(found)
            secret.write_text("second")
            settle(replicas)
            assert other.index.world.count([71, 72]) == 1
    finally:
        server.close()


def test_restarted_empty_nothing_is_forgotten_or_taken_twice(server: RedisServer) -> None:
    one, other = replicas = new_replicas(server.url)
    with closing(replicas):
        one.say("a", [1, 2, 3])
        other.say("b", [4, 5, 6])
        settle(replicas)
        server.restart(empty=True)
        one.say("c", [7, 8, 9])
        settle(replicas)
        assert_equal(replicas)
        assert other.sequences() == {(1, 2, 3): 1, (4, 5, 6): 1, (7, 8, 9): 1}
        status_where(other, lambda status: status.namespaces[0].resets >= 1)


def test_restarted_empty_everybody_sends_its_own_again(server: RedisServer) -> None:
    config = SharingConfig(resend_within=0.2)
    replicas = new_replicas(server.url, 3, config)
    rng = np.random.default_rng(3)
    with closing(replicas):
        for number in range(60):
            replicas[number % 3].say("a", rng.integers(0, 50, int(rng.integers(1, 30))))
        settle(replicas)
        unfinished = replicas[0].begin("long")
        replicas[0].proposer.advance(unfinished, np.arange(60, 70, dtype=np.int32))
        settle(replicas)
        server.restart(empty=True)
        replicas[1].say("b", [91, 92, 93])  # newer than what is sent again, and there before it
        replicas[0].proposer.advance(unfinished, np.arange(70, 80, dtype=np.int32))
        replicas[0].proposer.finish(unfinished)
        settle(replicas)
        for replica in replicas:
            status_where(replica, lambda status: status.namespaces[0].resent >= 20)
        (late,) = new_replicas(server.url, 1, config)
        with closing([late]):
            settle([*replicas, late])
            wait_until_equal([*replicas, late])
            assert late.index.world.count([91, 92, 93]) == 1
            assert sum(late.sequences().values()) == 62
            assert late.sequences()[tuple(range(60, 80))] == 1


def test_restarted_empty_what_was_purged_stays_away(server: RedisServer) -> None:
    config = SharingConfig(resend_within=0.0)
    one, other = replicas = new_replicas(server.url, 2, config)
    with closing(replicas):
        one.say("a", [1, 2, 3])
        other.say("a", [4, 5, 6])
        settle(replicas)
        other.index.purge()
        settle(replicas)
        one.say("a", [7, 8, 9])
        settle(replicas)
        server.restart(empty=True)
        for replica in replicas:  # one says its sequence again, the other its mark
            status_where(replica, lambda status: status.namespaces[0].resent >= 1)
        (late,) = new_replicas(server.url, 1, config)
        with closing([late]):
            settle([*replicas, late])
            assert one.sequences() == late.sequences() == {(7, 8, 9): 1}
            with open_log(server.url) as log:
                tokens = [r.tokens.tolist() for b in log.records(KEY) for r in b.records]
            assert [7, 8, 9] in tokens
            assert [1, 2, 3] not in tokens
            assert [4, 5, 6] not in tokens


def test_restarted_empty_again_and_again_while_everybody_talks(server: RedisServer) -> None:
    config = SharingConfig(resend_within=0.05)
    replicas = new_replicas(server.url, 3, config)
    said: Counter[tuple[int, ...]] = Counter()
    with closing(replicas):
        for number in range(90):
            if number % 30 == 29:
                server.restart(empty=True)
            sequence = (number, number + 1, number + 2)
            replicas[number % 3].say("a", sequence)
            said[sequence] += 1
            time.sleep(0.01)
        settle(replicas)
        wait_until_equal(replicas)
        (late,) = new_replicas(server.url, 1, config)
        with closing([late]):
            wait_until_equal([*replicas, late])
            assert late.sequences() == said


def test_a_purge_said_while_redis_was_gone_reaches_everybody(server: RedisServer) -> None:
    one, other = replicas = new_replicas(server.url)
    with closing(replicas):
        other.say("a", [1, 2, 3])
        settle(replicas)
        server.kill()
        one.index.purge()
        one.say("b", [4, 5, 6])
        server.start()
        settle(replicas)
        assert_equal(replicas)
        assert other.sequences() == {(4, 5, 6): 1}


def test_replicas_of_a_cluster(tmp_path: Path) -> None:
    cluster = RedisCluster(tmp_path / "cluster").start()
    replicas = new_replicas(cluster.url)
    try:
        with closing(replicas):
            rng = np.random.default_rng(2)
            for number in range(50):
                replicas[number % 2].say("a", rng.integers(0, 9, 20))
            settle(replicas)
            assert_equal(replicas)
            assert sum(replicas[0].sequences().values()) == 50
    finally:
        cluster.close()


def test_redis_is_restarted_again_and_again_while_everybody_talks(server: RedisServer) -> None:
    replicas = new_replicas(server.url, 3)
    done = threading.Event()

    def talk(replica: Replica, seed: int) -> None:
        rng = np.random.default_rng(seed)
        while not done.is_set():
            replica.say(f"s{seed}", rng.integers(0, 9, int(rng.integers(1, 12))))
            time.sleep(0.003)

    with closing(replicas):
        talkers = [
            threading.Thread(daemon=True, target=talk, args=(replica, seed))
            for seed, replica in enumerate(replicas)
        ]
        for talker in talkers:
            talker.start()
        for _ in range(4):
            time.sleep(0.2)
            server.restart()
        done.set()
        ended(talkers)
        settle(replicas)
        assert_equal(replicas)
        assert sum(replicas[0].sequences().values()) > 30
