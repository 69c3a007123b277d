"""The log in memory: the contract, and its own budget and sharing."""

from __future__ import annotations

import uuid

import pytest

from suffixspec_index.errors import ConfigError
from suffixspec_index.log import START, open_log
from tests.index.log.contract import KEY, LogContract, OpenLog, numbers, read_all, record


class TestMemoryLog(LogContract):
    @pytest.fixture
    def open_log(self) -> OpenLog:
        url = f"memory:{uuid.uuid4().hex}"
        return lambda **options: open_log(url, **options)


def test_logs_without_a_name_are_apart() -> None:
    with open_log("memory:") as one, open_log("memory:") as other:
        one.append(KEY, [record(1)])
        assert numbers(other) == []


def test_a_named_log_goes_with_its_last_user() -> None:
    with open_log("memory:gone") as log:
        log.append(KEY, [record(1)])
    del log
    with open_log("memory:gone") as log:
        assert numbers(log) == []


def test_the_budget_drops_the_oldest_and_readers_are_told() -> None:
    with open_log("memory:?max_bytes=4KiB") as log:
        first = log.append(KEY, [record(1, range(100))])
        for number in range(2, 30):
            log.append(KEY, [record(number, range(100))])
        kept = numbers(log)
        assert kept == list(range(kept[0], 30))
        assert 2 <= len(kept) <= 8
        statistics = log.statistics(KEY)
        assert statistics.trimmed == 29 - len(kept)
        assert statistics.bytes <= 4096
        assert log.read({KEY: first})[0].missed
        assert log.read({KEY: START})[0].missed
        assert log.behind(KEY, first) == len(kept)


def test_wrong_settings() -> None:
    for url in ("memory:?max_byte=1", "memory:?max_bytes=many", "memory:?max_bytes=3", "tape:x"):
        with pytest.raises(ConfigError):
            open_log(url)
    with pytest.raises(ConfigError):
        open_log("nothing")


def test_a_purge_takes_nothing_of_what_is_younger() -> None:
    with open_log("memory:") as log:
        log.append(KEY, [record(1, time=1.0), record(2, time=3.0)])
        log.purge(KEY, before=2.0, origin=1, number=1)
        log.purge(KEY, before=1.5, origin=1, number=2)  # reaches less far: both marks stay
        assert [(r.number, r.before) for r in read_all(log)][1:] == [(1, 2.0), (2, 1.5)]
