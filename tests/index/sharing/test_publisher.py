"""The publisher: order, bounds and second attempts, against a log that fails on command."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from suffixspec_index.errors import InputError, LogRefusedError, LogUnavailableError
from suffixspec_index.log import Record, RecordKind, purge_mark
from suffixspec_index.log.memory import MemoryLog
from suffixspec_index.namespaces import NamespaceKey
from suffixspec_index.sharing.publisher import Publisher
from tests.index.log.contract import KEY, OTHER, numbers, read_all, record
from tests.index.sharing.replicas import LONG


class FailingLog(MemoryLog):
    """Calls ``before`` in each append, which may wait or raise."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[NamespaceKey, Sequence[Record]], None] = lambda key, records: None
        self.attempts = 0

    def append(self, key: NamespaceKey, records: Sequence[Record]) -> str:
        self.attempts += 1
        self.before(key, records)
        return super().append(key, records)


@pytest.fixture
def log() -> Iterator[FailingLog]:
    with FailingLog() as log:
        yield log


def publisher(log: FailingLog, spool_bytes: int = 1 << 20) -> Publisher:
    return Publisher(log, spool_bytes=spool_bytes, linger=0.0)


def refuse(error: Exception) -> Callable[[NamespaceKey, Sequence[Record]], None]:
    def raising(key: NamespaceKey, records: Sequence[Record]) -> None:
        raise error

    return raising


def wait_for(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + LONG
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.002)


def test_records_arrive_in_order(log: FailingLog) -> None:
    sender = publisher(log)
    for number in range(1, 500):
        sender.put(KEY if number % 2 else OTHER, record(number))
    assert sender.close(LONG)
    assert numbers(log) == list(range(1, 500, 2))
    assert numbers(log, OTHER) == list(range(2, 500, 2))
    assert sender.nbytes == 0
    assert sender.spool(KEY).sent == 250


def test_what_failed_is_sent_again_in_order(log: FailingLog) -> None:
    log.before = refuse(LogUnavailableError("gone"))
    sender = publisher(log)
    for number in range(1, 20):
        sender.put(KEY, record(number))
    ends = time.monotonic() + LONG
    while log.attempts < 3 and time.monotonic() < ends:
        time.sleep(0.005)
    assert sender.error == "gone"
    assert sender.spool(KEY).unsent == 19
    assert not sender.flush(0.01)
    log.before = lambda key, records: None
    assert sender.flush(LONG)
    assert sender.error is None
    sender.close(LONG)
    assert numbers(log) == list(range(1, 20))


def test_one_namespace_that_is_refused_does_not_stop_the_others(log: FailingLog) -> None:
    def only_other(key: NamespaceKey, records: Sequence[Record]) -> None:
        if key == KEY:
            raise LogRefusedError("not you")

    log.before = only_other
    sender = publisher(log)
    sender.put(KEY, record(1))
    sender.put(OTHER, record(2))
    ends = time.monotonic() + LONG
    while not numbers(log, OTHER) and time.monotonic() < ends:
        time.sleep(0.005)
    assert numbers(log, OTHER) == [2]
    assert sender.spool(KEY).error == "not you"
    assert not sender.close(0.01)


def test_the_oldest_are_dropped_and_counted(log: FailingLog) -> None:
    log.before = refuse(LogUnavailableError("gone"))
    sender = publisher(log, spool_bytes=5_000)
    for number in range(1, 101):
        sender.put(KEY if number % 2 else OTHER, record(number, range(50)))
    assert sender.nbytes <= 5_000
    log.before = lambda key, records: None
    assert sender.close(LONG)
    arrived = sorted(numbers(log) + numbers(log, OTHER))
    assert arrived == list(range(101 - len(arrived), 101))
    assert 8 <= len(arrived) <= 13
    dropped = sender.spool(KEY).dropped + sender.spool(OTHER).dropped
    assert dropped == 100 - len(arrived)


def test_a_batch_that_hangs_does_not_push_out_what_is_newer(log: FailingLog) -> None:
    hangs, goes_on = threading.Event(), threading.Event()

    def hang(key: NamespaceKey, records: Sequence[Record]) -> None:
        hangs.set()
        goes_on.wait(LONG)
        raise LogUnavailableError("gone")

    log.before = hang
    sender = publisher(log, spool_bytes=5_000)
    for number in range(1, 13):
        sender.put(KEY, record(number, range(50)))
    assert hangs.wait(LONG)
    for number in range(13, 60):
        sender.put(KEY, record(number, range(50)))
    log.before = lambda key, records: None
    goes_on.set()
    assert sender.close(LONG)
    assert numbers(log) == list(range(60 - len(numbers(log)), 60))
    assert len(numbers(log)) >= 10


def test_marks_are_never_dropped_and_keep_their_place(log: FailingLog) -> None:
    log.before = refuse(LogUnavailableError("gone"))
    sender = publisher(log, spool_bytes=3_000)
    for number in range(1, 40):
        mark = purge_mark(origin=7, number=number)
        sender.put(KEY, mark if number == 5 else record(number, range(50)))
    log.before = lambda key, records: None
    assert sender.close(LONG)
    kinds = [r.kind for r in read_all(log)]
    assert kinds[0] is RecordKind.PURGE
    assert set(kinds[1:]) == {RecordKind.SEQUENCE}


def test_what_no_log_would_take_does_not_block_the_rest(log: FailingLog) -> None:
    def picky(key: NamespaceKey, records: Sequence[Record]) -> None:
        if records[0].number == 1:
            raise InputError("tokens: never")

    log.before = picky
    sender = publisher(log)
    sender.put(KEY, record(1))
    assert sender.flush(LONG)
    sender.put(KEY, record(2))
    assert sender.close(LONG)
    assert numbers(log) == [2]
    assert sender.spool(KEY).dropped == 1


def test_a_namespace_that_hangs_holds_up_no_other(log: FailingLog) -> None:
    """Its first attempt does; from then on it is tried aside."""
    hangs, goes_on = threading.Event(), threading.Event()

    def before(key: NamespaceKey, records: Sequence[Record]) -> None:
        if key != KEY:
            return
        if log.attempts > 1:
            hangs.set()
            goes_on.wait(LONG)
        raise LogUnavailableError("its node is gone")

    log.before = before
    sender = publisher(log, spool_bytes=5_000)
    for number in range(1, 8):
        sender.put(KEY, record(number, range(50)))
    assert hangs.wait(LONG)
    assert sender.error == "its node is gone"
    for number in range(100, 200):  # far more than the spool holds
        sender.put(OTHER, record(number, range(50)))
        wait_for(lambda number=number: numbers(log, OTHER)[-1:] == [number])  # type: ignore[misc]
    assert sender.spool(OTHER).dropped == 0
    assert sender.spool(KEY).dropped == 0
    log.before = lambda key, records: None
    goes_on.set()
    assert sender.close(LONG)
    assert numbers(log) == list(range(1, 8))
    assert numbers(log, OTHER) == list(range(100, 200))


def test_an_emptied_log_is_noticed_by_the_next_append(log: FailingLog) -> None:
    sender = Publisher(log, spool_bytes=1 << 20, linger=0.0, resend_bytes=1 << 20)
    for number in range(1, 6):
        sender.put(KEY, record(number))
        assert sender.flush(LONG)
    log._store.streams.clear()
    log._store.epoch = "another"
    sender.put(KEY, record(6))
    wait_for(lambda: sender.spool(KEY).resent == 5)
    assert sorted(numbers(log)) == [1, 2, 3, 4, 5, 6]
    sender.start_over(KEY, f"{log._store.epoch}.0")  # the reader's word comes later
    sender.put(KEY, record(7))
    assert sender.close(LONG)
    assert sorted(numbers(log)) == [1, 2, 3, 4, 5, 6, 7]
    assert sender.spool(KEY).resent == 5


def test_a_resend_that_fails_is_taken_up_again(log: FailingLog) -> None:
    sender = Publisher(log, spool_bytes=1 << 20, linger=0.0, resend_bytes=1 << 20)
    for number in range(1, 6):
        sender.put(KEY, record(number))
    assert sender.flush(LONG)
    log.before = refuse(LogUnavailableError("gone"))
    attempts = log.attempts
    log._store.streams.clear()
    sender.start_over(KEY, "")
    wait_for(lambda: log.attempts > attempts + 1)
    assert sender.error == "gone"
    log.before = lambda key, records: None
    wait_for(lambda: sender.spool(KEY).resent == 5)
    assert numbers(log) == [1, 2, 3, 4, 5]
    assert sender.close(LONG)
    assert sender.error is None
