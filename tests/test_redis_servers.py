"""The servers other tests rely on do what they say."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis
import redis.cluster
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.certificates import write_certificates
from tests.redis_servers import RedisCluster, RedisServer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "redis"


def test_restart_keeps_the_port_and_empty_forgets(folder: Path) -> None:
    server = RedisServer(folder, ["appendonly yes", "appendfsync always"]).start()
    try:
        port = server.port
        server.call("SET", "a", "1")
        server.kill()
        server.start()
        assert server.port == port
        assert server.call("GET", "a") == b"1"
        server.restart(empty=True)
        assert server.call("GET", "a") is None
    finally:
        server.close()


def test_paused_server_does_not_answer(folder: Path) -> None:
    server = RedisServer(folder).start()
    try:
        server.pause()
        client = redis.Redis(port=server.port, socket_timeout=0.2, retry=Retry(NoBackoff(), 0))
        with pytest.raises(redis.TimeoutError):
            client.ping()
        client.close()
        server.resume()
        assert server.call("PING") in (True, b"PONG")
    finally:
        server.close()


def test_tls_with_a_user(folder: Path) -> None:
    certificates = write_certificates(folder / "tls")
    server = RedisServer(folder / "data", user="replica", password="se-cret", tls=certificates)
    server.start()
    try:
        assert server.url.startswith("rediss://replica:se-cret@")
        assert server.call("PING") in (True, b"PONG")
        wrong = server.url.replace("se-cret", "other")
        client = redis.Redis.from_url(wrong)
        with pytest.raises(redis.AuthenticationError):
            client.ping()
        client.close()
    finally:
        server.close()


def test_cluster_covers_every_slot(folder: Path) -> None:
    cluster = RedisCluster(folder).start()
    try:
        client = redis.cluster.RedisCluster.from_url(cluster.url)
        for i in range(50):
            assert client.set(f"key-{i}", i)
        assert sum(node.call("DBSIZE") for node in cluster.nodes) == 50
        assert all(node.call("DBSIZE") for node in cluster.nodes)
        client.close()
    finally:
        cluster.close()
