"""The log in Redis: the contract on one server and on a cluster, budget, age, users, epochs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from suffixspec_index.log import open_log
from tests.index.log.contract import LogContract, OpenLog
from tests.redis_servers import RedisCluster, RedisServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis") / "data").start()
    yield server
    server.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    cluster = RedisCluster(tmp_path_factory.mktemp("cluster")).start()
    yield cluster
    cluster.close()


class TestRedisLog(LogContract):
    @pytest.fixture
    def open_log(self, server: RedisServer) -> OpenLog:
        prefix = uuid.uuid4().hex
        return lambda **options: open_log(server.url, prefix=prefix, **options)


class TestRedisClusterLog(LogContract):
    @pytest.fixture
    def open_log(self, cluster: RedisCluster) -> OpenLog:
        prefix = uuid.uuid4().hex
        url = cluster.url.replace("redis:", "redis+cluster:")
        return lambda **options: open_log(url, prefix=prefix, **options)
