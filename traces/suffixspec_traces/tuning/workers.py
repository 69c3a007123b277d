"""Where trials run: in this process, or in several others."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from abc import ABC, abstractmethod
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.synchronize import Event as ProcessEvent

from suffixspec_index.errors import CapacityError
from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_traces.tuning.evaluate import Bench, BenchRecipe, Score

_POLL_S = 0.2


class Workers(ABC):
    """Evaluates settings, some at once. ``width`` is how many it likes to have under way."""

    width: int

    @abstractmethod
    def submit(self, config: SpeculativeConfig, concurrency: int) -> Future[Score | None]:
        """Start a trial; the future holds its score, or ``None`` if it was stopped."""

    @abstractmethod
    def close(self) -> None:
        """Stop what is under way and end the processes."""


class InProcess(Workers):
    """One trial after the other, here; ``submit`` returns when it is done."""

    width = 1

    def __init__(self, bench: Bench, halt: threading.Event) -> None:
        self._bench, self._halt = bench, halt

    def submit(self, config: SpeculativeConfig, concurrency: int) -> Future[Score | None]:
        """Run the trial."""
        future: Future[Score | None] = Future()
        try:
            future.set_result(self._bench.evaluate(config, concurrency, stop=self._halt))
        except KeyboardInterrupt:
            future.set_result(None)
            raise
        return future

    def close(self) -> None:
        """Nothing to end."""


class Processes(Workers):
    """Trials in ``count`` processes, each with a copy of the sessions.

    Trials are handed out so that none waits for another, and their results are taken in the order
    of their start: so the same seed and the same number of processes give the same trials.
    """

    def __init__(self, recipe: BenchRecipe, count: int) -> None:
        self.width = count + 1  # one waits, so that no process does
        context = multiprocessing.get_context("spawn")  # compiled code and threads do not fork well
        self._stop = context.Event()
        self._pool = ProcessPoolExecutor(
            count, mp_context=context, initializer=_start, initargs=(recipe, self._stop)
        )

    def submit(self, config: SpeculativeConfig, concurrency: int) -> Future[Score | None]:
        """Queue the trial."""
        return self._pool.submit(_evaluate, config, concurrency)

    def close(self) -> None:
        """Stop the trials under way; they end within a step."""
        self._stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)


def result_of(future: Future[Score | None], halt: threading.Event) -> Score | None:
    """Wait for a trial, but not beyond ``halt``.

    Raises:
        CapacityError: a process died. Else whatever the trial raised.
    """
    while True:
        try:
            return future.result(timeout=_POLL_S)
        except FutureTimeoutError:
            if halt.is_set():
                return None
        except BrokenProcessPool as error:
            raise CapacityError(
                "workers: a process ended unexpectedly, most likely for lack of memory; use fewer"
            ) from error


_bench: Bench | None = None
_halted = threading.Event()


def _start(recipe: BenchRecipe, stop: ProcessEvent) -> None:
    """Prepare a process. Ctrl-C reaches it too, but is the parent's to handle."""
    global _bench
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _bench = recipe.bench()

    def watch() -> None:  # asking the other process's event in every step would cost more
        stop.wait()
        _halted.set()

    threading.Thread(target=watch, daemon=True).start()


def _evaluate(config: SpeculativeConfig, concurrency: int) -> Score | None:
    assert _bench is not None
    return _bench.evaluate(config, concurrency, stop=_halted)
