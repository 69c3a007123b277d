"""The log in Redis: the contract on one server and on a cluster, budget, age, users, epochs."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator

import numpy as np
import pytest

from suffixspec_index.errors import ConfigError, LogFormatError
from suffixspec_index.log import START, Record, RecordKind, SequenceLog, open_log
from suffixspec_index.log.redis_scripts import Keys
from tests.index.log.contract import KEY, OTHER, LogContract, OpenLog, numbers, read_all, record
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


@pytest.fixture
def prefix() -> str:
    """Keys of a test's own."""
    return uuid.uuid4().hex


class TestRedisLog(LogContract):
    @pytest.fixture
    def open_log(self, server: RedisServer, prefix: str) -> OpenLog:
        return lambda **options: open_log(server.url, prefix=prefix, **options)


class TestRedisClusterLog(LogContract):
    @pytest.fixture
    def open_log(self, cluster: RedisCluster, prefix: str) -> OpenLog:
        url = cluster.url.replace("redis:", "redis+cluster:")
        return lambda **options: open_log(url, prefix=prefix, **options)


def noise(number: int, length: int = 200) -> Record:
    """A record that cannot be compressed much."""
    return record(number, np.random.default_rng(number).integers(0, 50_000, length))


def raw_entries(server: RedisServer, prefix: str) -> list[tuple[bytes, dict[bytes, bytes]]]:
    with server.client() as client:
        found = client.xrange(Keys.of(prefix, KEY.digest).log)
    return [(entry, dict(fields)) for entry, fields in found]


def check_counts(log: SequenceLog, server: RedisServer, prefix: str) -> None:
    """What the log says it holds is what is there."""
    entries = raw_entries(server, prefix)
    said = log.statistics(KEY)
    assert said.bytes == sum(len(fields[b"d"]) for _, fields in entries)
    assert said.tokens == sum(len(r.tokens) for r in read_all(log))
    assert said.records == sum(int(fields[b"r"]) for _, fields in entries)


# --- budget and age ------------------------------------------------------------------------------


def test_the_byte_budget_drops_the_oldest_and_readers_are_told(
    server: RedisServer, prefix: str
) -> None:
    with open_log(server.url, prefix=prefix, max_bytes="8KiB") as log:
        first = log.append(KEY, [noise(1)])
        for number in range(2, 60):
            log.append(KEY, [noise(number)])
            assert log.statistics(KEY).bytes <= 8192
        kept = numbers(log)
        assert kept == list(range(kept[0], 60))
        assert len(kept) >= 10
        check_counts(log, server, prefix)
        assert log.statistics(KEY).trimmed == 59 - len(kept)
        assert log.read({KEY: first})[0].missed
        assert log.read({KEY: START})[0].missed
        assert log.behind(KEY, first) == len(kept)


def test_a_reader_that_was_up_to_date_misses_nothing_when_all_it_knew_is_dropped(
    server: RedisServer, prefix: str
) -> None:
    with open_log(server.url, prefix=prefix, max_bytes="1KiB") as log:
        position = log.append(KEY, [noise(1)])
        log.append(KEY, [noise(2, 1000)])
        (batch,) = log.read({KEY: position})
        assert [r.number for r in batch.records] == [2]
        assert numbers(log) == [2]
        assert not batch.missed


def test_a_record_larger_than_the_budget_stays_until_the_next(
    server: RedisServer, prefix: str
) -> None:
    with open_log(server.url, prefix=prefix, max_bytes="1KiB") as log:
        log.append(KEY, [noise(1, 5000)])
        assert numbers(log) == [1]
        log.append(KEY, [noise(2, 10)])
        assert numbers(log) == [2]


def test_a_shrunken_budget_is_reached_little_by_little(server: RedisServer, prefix: str) -> None:
    with open_log(server.url, prefix=prefix) as log:
        for number in range(1, 101):
            log.append(KEY, [noise(number)])
    with open_log(server.url, prefix=prefix, max_bytes="4KiB") as log:
        before = len(numbers(log))
        log.append(KEY, [noise(101)])
        after = len(numbers(log))
        assert before - 30 < after < before
        for number in range(102, 112):
            log.append(KEY, [noise(number)])
        assert log.statistics(KEY).bytes <= 4096
        check_counts(log, server, prefix)


def test_records_over_age_go(server: RedisServer, prefix: str) -> None:
    with open_log(server.url, prefix=prefix, max_age=1.0) as log:
        first = log.append(KEY, [record(1)])
        time.sleep(0.7)
        second = log.append(KEY, [record(2)])
        assert numbers(log) == [1, 2]
        time.sleep(0.4)
        log.append(KEY, [record(3)])
        assert numbers(log) == [2, 3]
        assert log.read({KEY: START})[0].missed
        assert not log.read({KEY: first})[0].missed
        time.sleep(1.3)  # nobody writes any more: the stream goes by itself
        assert numbers(log) == []
        assert log.namespaces() == []
        assert log.statistics(KEY).records == 0
        (batch,) = log.read({KEY: second})
        assert not batch.reset
        end = log.append(KEY, [record(4)])
        assert numbers(log, position=batch.position) == [4]
        assert not log.read({KEY: second})[0].reset
        assert log.read({KEY: second})[0].missed
        assert log.read({KEY: end}) == []


def test_a_purge_that_the_budget_removed_still_reaches_readers(
    server: RedisServer, prefix: str
) -> None:
    with open_log(server.url, prefix=prefix, max_bytes="2KiB") as log:
        position = log.append(KEY, [noise(1)])
        log.purge(KEY, origin=7, number=2)
        for number in range(3, 40):
            log.append(KEY, [noise(number)])
        assert all(r.kind is not RecordKind.PURGE for r in decoded(server, prefix))
        (batch,) = log.read({KEY: position})
        assert batch.missed
        assert (batch.records[0].kind, batch.records[0].number) == (RecordKind.PURGE, 2)
        assert [r.number for r in batch.records[1:]] == numbers(log)


def decoded(server: RedisServer, prefix: str) -> list[Record]:
    from suffixspec_index.log.codec import decode_records

    entries = raw_entries(server, prefix)
    return [r for _, fields in entries for r in decode_records(fields[b"d"])]


# --- purging by age ------------------------------------------------------------------------------


def test_purging_by_age_rewrites_what_holds_both_old_and_new(
    server: RedisServer, prefix: str
) -> None:
    rng = np.random.default_rng(11)
    with open_log(server.url, prefix=prefix) as log:
        written: list[Record] = []
        positions = [START]
        for _ in range(80):
            part = [record(len(written) + i, time=float(rng.integers(100))) for i in range(9)]
            positions.append(log.append(KEY, part))
            written += part
        log.purge(KEY, before=50.0, origin=8, number=1)
        left = [r.number for r in written if r.time >= 50.0]
        assert numbers(log) == left
        check_counts(log, server, prefix)
        young = [r for r in decoded(server, prefix) if r.kind is not RecordKind.PURGE]
        assert [r.number for r in young] == left
        for at in (1, 20, 79):  # positions from before mean what they meant
            assert numbers(log, position=positions[at]) == [n for n in left if n >= 9 * at]
        log.append(KEY, [record(10_000)])
        assert numbers(log) == [*left, 10_000]


def test_marks_that_matter_no_more_are_forgotten(server: RedisServer, prefix: str) -> None:
    with open_log(server.url, prefix=prefix) as log:
        for number in range(1, 6):
            log.append(KEY, [record(number, time=float(number))])
            log.purge(KEY, before=number - 0.5, origin=7, number=10 + number)
        assert server.call("HLEN", Keys.of(prefix, KEY.digest).marks) == 1
        log.purge(KEY, before=1.0, origin=7, number=20)
        assert server.call("HLEN", Keys.of(prefix, KEY.digest).marks) == 2
        log.purge(KEY, origin=7, number=21)
        assert server.call("HLEN", Keys.of(prefix, KEY.digest).marks) == 1


# --- epochs --------------------------------------------------------------------------------------


def test_a_stream_that_vanished_begins_a_new_epoch(server: RedisServer, prefix: str) -> None:
    with open_log(server.url, prefix=prefix) as log:
        position = log.append(KEY, [record(1), record(2)])
        server.call("DEL", *[getattr(Keys.of(prefix, KEY.digest), n) for n in ("log", "meta")])
        server.call("DEL", f"{prefix}:namespaces")
        (batch,) = log.read({KEY: position})
        assert batch.reset
        assert batch.position == START
        assert log.read({KEY: START}) == []
        log.append(KEY, [record(3)])
        (batch,) = log.read({KEY: position})
        assert batch.reset
        assert [r.number for r in batch.records] == [3]
        assert log.namespaces() == [KEY]
        check_counts(log, server, prefix)


def test_an_evicted_stream_begins_a_new_epoch(server: RedisServer, prefix: str) -> None:
    """Only the stream is gone, its counts are still there."""
    with open_log(server.url, prefix=prefix) as log:
        position = log.append(KEY, [record(1)])
        server.call("DEL", Keys.of(prefix, KEY.digest).log)
        assert log.statistics(KEY).records == 0
        log.append(KEY, [record(2)])
        (batch,) = log.read({KEY: position})
        assert batch.reset
        assert [r.number for r in batch.records] == [2]
        check_counts(log, server, prefix)


def test_lost_counts_are_counted_again(server: RedisServer, prefix: str) -> None:
    with open_log(server.url, prefix=prefix) as log:
        for number in range(1, 200):
            log.append(KEY, [noise(number, 20)])
        server.call("DEL", Keys.of(prefix, KEY.digest).meta)
        log.append(KEY, [record(200)])
        assert numbers(log) == list(range(1, 201))
        check_counts(log, server, prefix)


def test_a_stream_that_was_set_back_begins_a_new_epoch(server: RedisServer, prefix: str) -> None:
    """As after a failover to a replica without the newest entries, though others wrote since."""
    keys = Keys.of(prefix, KEY.digest)
    with (
        open_log(server.url, prefix=prefix) as one,
        open_log(server.url, prefix=prefix) as other,
    ):
        one.append(KEY, [record(1)])
        saved = [server.call("DUMP", keys.log), server.call("DUMP", keys.meta)]
        lost = one.append(KEY, [record(2)])
        for name, dump in zip((keys.log, keys.meta), saved, strict=True):
            server.call("RESTORE", name, 0, dump, "REPLACE")
        assert other.read({KEY: lost})[0].reset  # the position is beyond the end
        other.append(KEY, [record(3, origin=9)])
        one.append(KEY, [record(4)])
        (batch,) = other.read({KEY: lost})
        assert batch.reset
        assert [r.number for r in batch.records] == [1, 3, 4]


def test_a_follower_lets_records_gather_and_the_rest_is_read_without_a_pause(
    server: RedisServer, prefix: str
) -> None:
    with open_log(server.url, prefix=prefix, read_pause="200ms") as log:
        first = log.append(KEY, [record(1)])
        assert log.read({KEY: START}, wait=5.0)
        for number in range(2, 8):
            log.append(KEY, [noise(number)])
        began = time.monotonic()
        (batch,) = log.read({KEY: first}, wait=5.0, max_bytes=1)
        assert time.monotonic() - began >= 0.1
        assert batch.more
        began = time.monotonic()
        while batch.more:
            (batch,) = log.read({KEY: batch.position}, wait=5.0, max_bytes=1)
        assert time.monotonic() - began < 0.2 * 5
        began = time.monotonic()
        assert numbers(log) == list(range(1, 8))  # who does not wait is not held up
        assert log.read({KEY: batch.position}, wait=0.05) == []
        assert time.monotonic() - began < 0.2


# --- particulars ---------------------------------------------------------------------------------


def test_a_damaged_entry_is_counted_and_left_out(server: RedisServer, prefix: str) -> None:
    keys = Keys.of(prefix, KEY.digest)
    with open_log(server.url, prefix=prefix) as log:
        log.append(KEY, [record(1)])
        (frame,) = (fields[b"d"] for _, fields in raw_entries(server, prefix))
        broken = frame[:-1] + bytes([frame[-1] ^ 1])
        server.call("XADD", keys.log, "*", "d", broken, "n", 3, "r", 1, "c", 2)
        log.append(KEY, [record(3)])
        (batch,) = log.read({KEY: START})
        assert [r.number for r in batch.records] == [1, 3]
        assert batch.damaged == 1
        assert log.statistics(KEY).damaged == 1
        log.purge(KEY, before=1e9, origin=1, number=1)  # nobody knows how old it is


def test_an_entry_of_a_later_version_says_so(server: RedisServer, prefix: str) -> None:
    with open_log(server.url, prefix=prefix) as log:
        log.append(KEY, [record(1)])
        (frame,) = (fields[b"d"] for _, fields in raw_entries(server, prefix))
        name = Keys.of(prefix, KEY.digest).log
        lead, tail = b"\x63" + frame[1:2], frame[10:]
        later = lead + hashlib.blake2b(lead + tail, digest_size=8).digest() + tail
        server.call("XADD", name, "*", "d", later, "n", 3, "r", 1, "c", 2)
        with pytest.raises(LogFormatError, match="update suffixspec"):
            read_all(log)


def test_a_long_append_is_several_entries_and_all_or_nothing(
    server: RedisServer, prefix: str
) -> None:
    with open_log(server.url, prefix=prefix) as log:
        log.append(KEY, [noise(n, 40_000) for n in range(1, 6)])
        assert len(raw_entries(server, prefix)) == 5
        assert numbers(log) == [1, 2, 3, 4, 5]
        assert log.behind(KEY, START) == 5
        check_counts(log, server, prefix)


def test_many_namespaces_in_a_cluster_are_polled(cluster: RedisCluster, prefix: str) -> None:
    """More than wait with a connection each."""
    from dataclasses import replace

    keys = [replace(KEY, adapter=str(number)) for number in range(70)]
    with open_log(cluster.url, prefix=prefix) as log:  # a plain URL of a node works too
        cursors = {key: log.append(key, [record(1)]) for key in keys}
        assert log.read(cursors, wait=0.05) == []
        log.append(keys[33], [record(2)])
        (batch,) = log.read(cursors, wait=5.0)
        assert batch.key == keys[33]
        assert sorted(map(str, log.namespaces())) == sorted(map(str, keys))
        slots = {node.port: node.call("DBSIZE") for node in cluster.nodes}
        assert all(slots.values())


def test_two_prefixes_are_two_logs(server: RedisServer) -> None:
    one, other = uuid.uuid4().hex, uuid.uuid4().hex
    with open_log(server.url, prefix=one) as first, open_log(server.url, prefix=other) as second:
        first.append(KEY, [record(1)])
        second.append(OTHER, [record(2)])
        assert first.namespaces() == [KEY]
        assert second.namespaces() == [OTHER]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis+sentinel://u:secret@localhost", "redis+cluster"),
        ("redis://localhost:port", "port"),
        ("redis://localhost:70000", "port"),
        ("redis://localhost/x", "database"),
        ("redis+cluster://localhost/1", "database 0"),
        ("redis:localhost", "redis://HOST"),
        ("redis://a,b", "several hosts"),
        ("redis://secret@localhost", "login"),
        ("redis://u:sec?ret@localhost", "%3F"),
        ("redis://localhost?max_bite=1", "max_bite"),
        ("redis://localhost?max_bytes=0", "max_bytes"),
        ("redis://localhost?prefix={x}", "prefix"),
        ("redis://localhost?replicas=-1", "replicas"),
        ("redis://u:secret@localhost?password_file=x", "password_file"),
        ("redis+cluster://localhost?replicas=1", "replicas"),
    ],
)
def test_wrong_urls_are_refused_without_repeating_secrets(url: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_log(url)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "sec?ret" not in str(caught.value)


def test_urls_are_read_as_documented() -> None:
    from suffixspec_index.log.redis_url import read_place

    place = read_place("rediss+cluster://us%40er:p%3A%2Fw@[::1]:7000,b,c:1/0?timeout=250ms", {})
    assert place.nodes == (("::1", 7000), ("b", 6379), ("c", 1))
    assert (place.user, place.password) == ("us@er", "p:/w")
    assert (place.tls, place.cluster, place.timeout) == (True, True, 0.25)
    assert place.url == "rediss+cluster://us@er:***@[::1]:7000,b:6379,c:1/0"
    assert "p:/w" not in repr(place)
    assert read_place("redis://", {"max_age": "7d"}).max_age == 7 * 86_400


def test_without_the_package_the_message_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['redis'] = None\n"
        "from suffixspec_index.errors import MissingDependencyError\n"
        "from suffixspec_index.log import open_log\n"
        "try: open_log('redis://localhost')\n"
        "except MissingDependencyError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'suffixspec[sharing]'" in done.stdout
