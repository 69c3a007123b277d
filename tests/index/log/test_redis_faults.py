"""What goes wrong with Redis, with real servers: each fault has its error, nothing acknowledged is
lost, and the log works again by itself once the fault is mended."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suffixspec_index.errors import LogClosedError, LogError, LogRefusedError, LogUnavailableError
from suffixspec_index.log import START, SequenceLog, open_log
from suffixspec_index.namespaces import NamespaceKey
from tests.certificates import write_certificates
from tests.index.log.contract import KEY, numbers, record
from tests.redis_servers import RedisCluster, RedisServer, free_port
from tests.resp_stand_in import RespStandIn, hello
from tests.threads import ended

Start = Callable[..., RedisServer]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts servers that end with the test."""
    quickly = ("repl-diskless-sync-delay 0",)
    servers: list[RedisServer] = []

    def start_one(*options: str, **settings: object) -> RedisServer:
        folder = tmp_path / f"redis-{len(servers)}"
        servers.append(RedisServer(folder, quickly + options, **settings))  # type: ignore[arg-type]
        return servers[-1].start()

    yield start_one
    for server in servers:
        server.close()


def eventually(does: Callable[[], object], patience_s: float = 20.0) -> object:
    """Try again while the log is in trouble, as publishers and followers do."""
    ends = time.monotonic() + patience_s
    while True:
        try:
            return does()
        except LogError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.02)


def quick(url: str, **options: Any) -> SequenceLog:
    return open_log(url, timeout=0.3, connect_timeout=0.3, **options)


# --- gone, restarted, slow -----------------------------------------------------------------------


def test_nothing_listens_and_calls_fail_quickly() -> None:
    with quick(f"redis://127.0.0.1:{free_port()}") as log:  # opening succeeds
        began = time.monotonic()
        for _ in range(50):
            with pytest.raises(LogUnavailableError, match="cannot be reached"):
                log.append(KEY, [record(1)])
        assert time.monotonic() - began < 2.0
        with pytest.raises(LogUnavailableError):
            log.check()


def test_killed_and_started_again_with_its_data(start: Start) -> None:
    server = start("appendonly yes", "appendfsync always")
    with quick(server.url) as log:
        position = log.append(KEY, [record(1)])
        server.kill()
        with pytest.raises(LogUnavailableError):
            log.append(KEY, [record(2)])
        server.start()
        eventually(lambda: log.append(KEY, [record(2)]))
        assert numbers(log) == [1, 2]
        assert not log.read({KEY: position})[0].reset


def test_a_restart_between_two_calls_goes_unnoticed(start: Start) -> None:
    server = start("appendonly yes", "appendfsync always")
    with quick(server.url) as log:
        log.append(KEY, [record(1)])
        server.restart()
        log.append(KEY, [record(2)])
        assert numbers(log) == [1, 2]


def test_a_waiting_reader_survives_a_restart(start: Start) -> None:
    server = start("appendonly yes", "appendfsync always")
    found: list[int] = []
    with quick(server.url) as log, quick(server.url) as reader:
        position = log.append(KEY, [record(1)])

        def follow() -> None:
            batches = eventually(lambda: reader.read({KEY: position}, wait=20.0))
            assert isinstance(batches, list)
            found.extend(r.number for batch in batches for r in batch.records)

        thread = threading.Thread(daemon=True, target=follow)
        thread.start()
        time.sleep(0.1)
        server.restart()
        eventually(lambda: log.append(KEY, [record(2)]))
        ended([thread], 20.0)
    assert found == [2]


def test_restarted_empty_readers_start_over(start: Start) -> None:
    server = start()
    with quick(server.url) as log:
        position = log.append(KEY, [record(n) for n in range(1, 10)])
        server.restart(empty=True)
        batches = eventually(lambda: log.read({KEY: position}))
        assert isinstance(batches, list)
        assert batches[0].reset
        assert batches[0].position == START
        eventually(lambda: log.append(KEY, [record(20)]))
        assert log.read({KEY: position})[0].reset
        assert numbers(log) == [20]
        assert log.namespaces() == [KEY]


def test_a_paused_server_is_given_up_on_and_found_again(start: Start) -> None:
    server = start()
    with quick(server.url) as log:
        log.append(KEY, [record(1)])
        server.pause()
        began = time.monotonic()
        with pytest.raises(LogUnavailableError, match="in time"):
            log.append(KEY, [record(2)])
        assert time.monotonic() - began < 3.0
        server.resume()
        eventually(lambda: log.append(KEY, [record(3)]))
        assert [n for n in numbers(log) if n != 2] == [1, 3]  # 2 may have arrived: nobody knows


def test_closing_while_the_server_is_paused(start: Start) -> None:
    server = start()
    log = open_log(server.url)
    log.append(KEY, [record(1)])
    server.pause()
    failed: list[LogError] = []

    def append() -> None:
        try:
            log.append(KEY, [record(2)])
        except LogError as error:
            failed.append(error)

    thread = threading.Thread(daemon=True, target=append)
    thread.start()
    time.sleep(0.1)
    began = time.monotonic()
    log.close()
    ended([thread])
    assert time.monotonic() - began < 2.0
    assert isinstance(failed[0], LogClosedError)


# --- refusals ------------------------------------------------------------------------------------


def test_full_memory_refuses_writing_and_still_reads(start: Start) -> None:
    server = start("maxmemory 3mb", "maxmemory-policy noeviction")
    rng = np.random.default_rng(3)
    with quick(server.url) as log:
        written = 0

        def fill() -> None:
            nonlocal written
            while True:
                log.append(KEY, [record(written + 1, rng.integers(0, 50_000, 20_000))])
                written += 1

        with pytest.raises(LogRefusedError, match=r"memory is full.*max_bytes"):
            fill()
        assert written
        assert numbers(log) == list(range(1, written + 1))
        server.call("CONFIG", "SET", "maxmemory", "1mb")
        with pytest.raises(LogRefusedError, match="memory is full"):
            log.check()
        server.call("CONFIG", "SET", "maxmemory", "0")
        log.append(KEY, [record(5_000)])
        log.check()
        assert numbers(log)[-1] == 5_000


def test_a_replica_refuses_writing_until_it_is_promoted(start: Start) -> None:
    master = start()
    with quick(master.url) as log:
        log.append(KEY, [record(1)])
    replica = start(f"replicaof 127.0.0.1 {master.port}")
    with quick(replica.url) as log:
        ends = time.monotonic() + 20
        while replica.call("INFO", "replication")["master_link_status"] != "up":
            assert time.monotonic() < ends
            time.sleep(0.05)
        with pytest.raises(LogRefusedError, match="cannot be written to"):
            log.append(KEY, [record(2)])
        assert numbers(log) == [1]
        replica.call("REPLICAOF", "NO", "ONE")
        eventually(lambda: log.append(KEY, [record(3)]))
        assert numbers(log) == [1, 3]


def test_a_failover_that_lost_records_makes_readers_start_over(start: Start) -> None:
    master = start()
    replica = start(f"replicaof 127.0.0.1 {master.port}")
    with quick(master.url, replicas=1) as log:
        eventually(lambda: log.append(KEY, [record(1)]))  # waits until the replica has it
        replica.call("REPLICAOF", "NO", "ONE")
        with pytest.raises(LogUnavailableError, match="0 of 1 replicas"):
            log.append(KEY, [record(2)])
    with quick(master.url) as log:
        lost = log.append(KEY, [record(3)])
        port = master.port
        master.kill()
        replica.call("CONFIG", "SET", "port", port)  # the address moves, as behind a proxy
        replica.port = port
        eventually(lambda: log.append(KEY, [record(4)]))
        (batch,) = log.read({KEY: lost})
        assert batch.reset
        assert {r.number for r in batch.records} == {1, 4}  # 1 was sent until the replica had it


def test_a_disk_that_cannot_be_written(start: Start) -> None:
    server = start("save 3600 1", "stop-writes-on-bgsave-error yes")
    with quick(server.url) as log:
        log.append(KEY, [record(1)])
        (server.folder / "dump.rdb").mkdir()  # so that saving fails
        server.call("BGSAVE")
        ends = time.monotonic() + 20
        while server.call("INFO", "persistence")["rdb_last_bgsave_status"] != "err":
            assert time.monotonic() < ends
            time.sleep(0.05)
        with pytest.raises(LogRefusedError, match="cannot save to its disk"):
            log.append(KEY, [record(2)])


# --- who may -------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", [None, "replica"])
def test_wrong_and_missing_passwords(
    start: Start, user: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server = start(password="open-sesame", user=user)
    wrong = server.url.replace("open-sesame", "hocus-pocus")
    none = server.url.replace(f"{user or ''}:open-sesame@", "")
    for url, word in ((wrong, "WRONGPASS"), (none, "NOAUTH")):
        with quick(url) as log:
            for _ in range(20):  # tried again slowly, answered at once
                with pytest.raises(LogRefusedError, match=word) as caught:
                    log.append(KEY, [record(1)])
                assert "pocus" not in str(caught.value)
            assert "pocus" not in log.url
    with quick(server.url) as log:
        log.append(KEY, [record(1)])
        assert numbers(log) == [1]
        assert "sesame" not in log.url + repr(log)
    assert "sesame" not in caplog.text
    assert "pocus" not in caplog.text


def test_a_user_with_just_the_documented_rights(start: Start) -> None:
    rights = (
        "resetkeys ~suffixspec:* +@connection +evalsha +eval +exists +time +persist +pexpireat "
        "+hmget +hget +hset +hdel +hgetall +hlen +hincrby +del +rename +pttl +pexpire +set "
        "+xadd +xlen +xrange +xrevrange +xread +xtrim +xdel +xsetid"
    )
    server = start(password="pw", user="replica", acl=rights)
    with quick(server.url) as log:
        position = log.append(KEY, [record(n, time=float(n)) for n in range(1, 6)])
        log.purge(KEY, before=3.0, origin=1, number=1)
        log.check()
        assert log.namespaces() == [KEY]
        assert log.statistics(KEY).records == 4
        assert numbers(log) == [3, 4, 5]
        assert log.read({KEY: position}, wait=0.1)
    with (
        quick(server.url, prefix="other") as log,
        pytest.raises(LogRefusedError, match="may not do this"),
    ):
        log.append(KEY, [record(1)])


def test_a_rotated_password_is_read_from_its_file(start: Start, tmp_path: Path) -> None:
    server = start(password="first")
    secret = tmp_path / "password"
    secret.write_text("first\n")
    url = f"redis://127.0.0.1:{server.port}"
    with quick(url, password_file=secret) as log:
        log.append(KEY, [record(1)])
        server.password = "second"
        server.restart()
        with pytest.raises(LogRefusedError, match="WRONGPASS"):
            log.append(KEY, [record(2)])
        secret.write_text("second\n")
        eventually(lambda: log.append(KEY, [record(2)]))
    with (
        quick(url, password_file=tmp_path / "none") as log,
        pytest.raises(LogRefusedError, match="cannot be read"),
    ):
        log.check()


def test_tls(start: Start, tmp_path: Path) -> None:
    server = start(
        password="p@ss", user="replica", tls=write_certificates(tmp_path / "tls"), acl="+@all"
    )
    # nothing is out of order here, so no short timeouts: the system's authorities take time to load
    url = server.url.replace("p@ss", "p%40ss")
    with open_log(url) as log:
        log.append(KEY, [record(1)])
        assert numbers(log) == [1]
    plain = url.partition("?")[0]
    with open_log(plain) as log, pytest.raises(LogRefusedError, match=r"not trusted.*ssl_ca_certs"):
        log.check()
    with open_log(plain, ssl_cert_reqs="none") as log:
        assert numbers(log) == [1]
    with open_log(plain.replace("rediss:", "redis:")) as log, pytest.raises(LogError):
        log.check()


# --- versions, loading ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "said"),
    [(b"-ERR unknown command 'HELLO'\r\n", "5 or older"), (hello("6.0.16"), "6.0.16")],
)
def test_a_version_that_is_too_old(reply: bytes, said: str) -> None:
    with RespStandIn(lambda command: reply) as old, quick(old.url) as log:
        with pytest.raises(LogRefusedError, match=rf"{said}; the log needs 6\.2 or newer"):
            log.append(KEY, [record(1)])
        assert b"EVALSHA" not in old.commands


def test_a_sentinel_is_no_place_for_a_log() -> None:
    with (
        RespStandIn(lambda command: hello("7.0.0", "sentinel")) as sentinel,
        quick(sentinel.url) as log,
        pytest.raises(LogRefusedError, match="Sentinel"),
    ):
        log.check()


def test_a_server_that_still_loads() -> None:
    loading = threading.Event()
    loading.set()

    def answer(command: list[bytes]) -> bytes:
        if command[0].upper() == b"HELLO":
            return hello("7.0.0")
        if loading.is_set():
            return b"-LOADING Redis is loading the dataset in memory\r\n"
        return b"+OK\r\n"

    with RespStandIn(answer) as stand_in, quick(stand_in.url) as log:
        with pytest.raises(LogUnavailableError, match="loading"):
            log.check()
        loading.clear()
        eventually(log.check)


# --- a cluster -----------------------------------------------------------------------------------


def test_a_cluster_whose_nodes_die_and_come_back(tmp_path: Path) -> None:
    cluster = RedisCluster(tmp_path).start()
    try:
        keys = [NamespaceKey("t", "m", str(n)) for n in range(8)]
        with open_log(cluster.url.replace("redis:", "redis+cluster:"), timeout=3.0) as log:
            for key in keys:
                eventually(lambda key=key: log.append(key, [record(1)]))  # type: ignore[misc]
            cluster.nodes[2].kill()
            works = [key for key in keys if _takes(log, key)]
            assert 0 < len(works) < len(keys)
            began = time.monotonic()
            assert all(_takes(log, key) for key in works)  # others do not suffer
            assert time.monotonic() - began < 10.0
            cluster.nodes[2].start()
            for key in keys:
                eventually(lambda key=key: log.append(key, [record(3)]), 30.0)  # type: ignore[misc]
                assert 1 in numbers(log, key)
                assert numbers(log, key)[-1] == 3
    finally:
        cluster.close()


def _takes(log: SequenceLog, key: NamespaceKey) -> bool:
    try:
        log.append(key, [record(2)])
    except LogUnavailableError:
        return False
    return True


def test_a_slot_that_moves(tmp_path: Path) -> None:
    """MOVED: the client follows."""
    cluster = RedisCluster(tmp_path).start()
    try:
        with open_log(cluster.url, timeout=1.0) as log:
            log.append(KEY, [record(1)])
            slot = cluster.nodes[0].call("CLUSTER", "KEYSLOT", KEY.digest)
            cluster.move_slot(slot)
            log.append(KEY, [record(2)])
            assert numbers(log) == [1, 2]
    finally:
        cluster.close()
