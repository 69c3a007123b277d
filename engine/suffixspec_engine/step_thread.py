"""The engine's thread: it steps while there is something to do, and does between steps what others
must not do during one."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from suffixspec_engine.core import EngineCore
from suffixspec_engine.request import Request
from suffixspec_index.errors import CapacityError


class StepThread:
    """Runs the steps of a core, from the first request on until it is closed.

    Args:
        core: whose steps. Once the thread runs, nobody else may touch it but through this.
    """

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._actions: deque[Callable[[], None]] = deque()

    def close(self) -> None:
        """End all requests with an error and stop. May be called twice."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def add(self, request: Request, *, wait: bool) -> None:
        """Take a request into the queue; the first one starts the thread.

        Args:
            request: checked, and such that it could fit.
            wait: wait while the queue is full.

        Raises:
            CapacityError: the thread was closed, or the queue is full.
        """
        with self._changed:
            while wait and self._core.scheduler.full and not self._closed:
                self._changed.wait()
            if self._closed:
                raise CapacityError("engine: it is closed; make a new one")
            request.metrics.queued_at = time.perf_counter()
            self._core.scheduler.add(request)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="suffixspec-engine", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def cancel(self, request: Request) -> None:
        """End a request with the next step."""
        with self._changed:
            request.cancelled = True
            self._changed.notify_all()

    def between(self, action: Callable[[], None]) -> None:
        """Run ``action`` while no step is running, and wait for it."""
        with self._changed:
            if self._thread is None or self._thread is threading.current_thread():
                action()
                return
            thread = self._thread
            done: Future[None] | None = None
            if not self._closed:
                done = Future()
                self._actions.append(partial(_settle, done, action))
                self._changed.notify_all()
        if done is not None:
            done.result()
        else:
            thread.join()
            action()

    def _run(self) -> None:
        """Step while there is something to do. The lock is free while the model runs, so that
        requests can come and be cancelled at any moment."""
        while True:
            with self._changed:
                while not (self._closed or self._actions or len(self._core.scheduler)):
                    self._changed.wait()
                while self._actions:
                    self._actions.popleft()()
                if self._closed:
                    self._core.fail_all("the engine was closed")
                    self._changed.notify_all()
                    return
                self._core.admit()
                self._changed.notify_all()
            try:
                self._core.step()
            except Exception as error:  # a step must never take the engine down
                self._core.fail_running(error)


def _settle(done: Future[None], action: Callable[[], None]) -> None:
    try:
        action()
    except Exception as error:  # it belongs to the caller who waits
        done.set_exception(error)
    else:
        done.set_result(None)
