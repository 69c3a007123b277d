from __future__ import annotations

import threading
import time

import pytest

from suffixspec_index.locks import ReadWriteLock
from tests.threads import ended


def test_readers_share() -> None:
    lock, together = ReadWriteLock(), threading.Barrier(3)

    def read() -> None:
        with lock.reading():
            together.wait(timeout=5)  # passes only if all three are inside at once

    threads = [threading.Thread(daemon=True, target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    ended(threads, 5)
    assert not together.broken


def test_a_writer_is_alone() -> None:
    lock, shared = ReadWriteLock(), [0, 0]
    torn: list[bool] = []

    def write() -> None:
        for _ in range(300):
            with lock.writing():
                value = shared[0] + 1
                shared[0] = value
                time.sleep(0)  # let the others run between the two
                shared[1] = value

    def read() -> None:
        for _ in range(300):
            with lock.reading():
                torn.append(shared[0] != shared[1])

    threads = [
        threading.Thread(daemon=True, target=target) for target in (write, write, read, read)
    ]
    for thread in threads:
        thread.start()
    ended(threads)
    assert shared == [600, 600]  # no writer saw another half done
    assert not any(torn)


def test_a_writer_waits_for_readers_and_holds_new_ones_back() -> None:
    lock, order = ReadWriteLock(), []
    first_in, leave = threading.Event(), threading.Event()

    def first() -> None:
        with lock.reading():
            first_in.set()
            leave.wait(5)
            order.append("first reader")

    def writer() -> None:
        with lock.writing():
            order.append("writer")

    def second() -> None:
        with lock.reading():
            order.append("second reader")

    threads = [threading.Thread(daemon=True, target=first)]
    threads[0].start()
    first_in.wait(5)
    for target in (writer, second):
        threads.append(threading.Thread(daemon=True, target=target))
        threads[-1].start()
        time.sleep(0.05)
    leave.set()
    ended(threads, 5)
    assert order == ["first reader", "writer", "second reader"]


@pytest.mark.parametrize("kind", ["reading", "writing"])
def test_an_exception_lets_go(kind: str) -> None:
    lock = ReadWriteLock()
    with pytest.raises(KeyError), getattr(lock, kind)():
        raise KeyError
    with lock.writing():
        pass
    with lock.reading():
        pass


def test_a_writer_that_is_interrupted_lets_the_readers_go_who_waited_for_it() -> None:
    lock, order = ReadWriteLock(), []
    waiting = lock._condition.wait

    def interrupted_wait() -> bool:
        waiting()
        raise KeyboardInterrupt

    def write() -> None:
        lock._condition.wait = interrupted_wait  # type: ignore[method-assign,assignment]
        with pytest.raises(KeyboardInterrupt):
            lock.acquire_write()
        order.append("interrupted")

    def read() -> None:
        lock._condition.wait = waiting  # type: ignore[method-assign]
        with lock.reading():
            order.append("reader")

    lock.acquire_read()
    writer = threading.Thread(daemon=True, target=write)
    writer.start()
    _until_waiting(lock, 1)
    reader = threading.Thread(daemon=True, target=read)
    reader.start()
    _until_waiting(lock, 2)
    with lock._mutex:
        lock._condition.notify(1)  # the writer: it was there first
    ended([writer, reader], 5)
    assert sorted(order) == ["interrupted", "reader"]
    lock.release_read()


def _until_waiting(lock: ReadWriteLock, threads: int) -> None:
    """Until so many threads wait inside the lock."""
    end = time.monotonic() + 5
    while len(lock._condition._waiters) < threads:  # type: ignore[attr-defined]
        assert time.monotonic() < end
        time.sleep(0.001)
