"""Reading what others said, from a thread of its own, and taking it into the indexes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from suffixspec_index.errors import LogClosedError, LogError, SuffixSpecError
from suffixspec_index.log.base import Batch, SequenceLog
from suffixspec_index.namespaces import NamespaceKey
from suffixspec_index.rebuilding import rebuild_aside
from suffixspec_index.sharing.backoff import Backoff
from suffixspec_index.sharing.incoming import Incoming
from suffixspec_index.warm_up import warm_up

_WAIT = 0.2  # seconds that a read may block: a namespace attached meanwhile waits so long
_READ_BYTES = 1 << 17  # per namespace and read: about 200,000 tokens, an eighth of a second
_LOOK_EVERY = 1.0  # seconds between two looks at how far behind it is
_BYTES_PER_TOKEN = 64  # of a tree, on the safe side of what is reserved
_SMALL = 1 << 16  # tokens for which a tree may grow step by step
_LEAST_BYTES_PER_TOKEN = 40  # of a tree, on the safe side of what it cannot hold


@dataclass(slots=True)
class Following:
    """Where a namespace stands."""

    incoming: Incoming
    position: str
    total: int = -1  # records that were there when it began; -1: not looked at yet
    read: int = 0
    behind: int = 0
    caught_up: bool = False
    current_at: float = 0.0  # when nothing more was there to read
    looked_at: float = 0.0
    missed: int = 0
    resets: int = 0
    damaged: int = 0
    error: str | None = None

    @property
    def progress(self) -> float:
        """Of the warm start."""
        if self.caught_up:
            return 1.0
        return 0.0 if self.total <= 0 else min(self.read / self.total, 1.0)


@cache
def _load_kernels() -> None:
    """Here, so that nothing is compiled while an index is locked."""
    warm_up()


class Follower:
    """Follows namespaces of a log.

    Args:
        log: what is read.
        on_reset: called with a namespace whose log was found to start over and the position from
            which it goes on, before what it holds now is taken in.

    Attributes:
        error: why the last attempt to read failed; ``None``: it did not.
    """

    def __init__(
        self, log: SequenceLog, on_reset: Callable[[NamespaceKey, str], None] | None = None
    ) -> None:
        self.log = log
        self._on_reset = on_reset
        self.error: str | None = None
        self._lock = threading.Lock()
        self._following: dict[NamespaceKey, Following] = {}
        self._changed = threading.Event()
        self._stopping = threading.Event()
        self._backoff = Backoff()
        self._thread = threading.Thread(target=self._run, name="suffixspec-follower", daemon=True)
        self._thread.start()

    def add(self, key: NamespaceKey, incoming: Incoming, position: str) -> None:
        """Follow a namespace from a position on."""
        with self._lock:
            self._following[key] = Following(incoming, position, current_at=time.monotonic())
        self._changed.set()

    def remove(self, key: NamespaceKey) -> None:
        """Follow it no more; what is being applied at this moment still is."""
        with self._lock:
            self._following.pop(key, None)

    def get(self, key: NamespaceKey) -> Following | None:
        """Where a namespace stands."""
        with self._lock:
            return self._following.get(key)

    def stop(self) -> None:
        """Ask the thread to end; :meth:`join` waits for it."""
        self._stopping.set()
        self._changed.set()

    def join(self) -> None:
        """Wait until the thread ended."""
        self._thread.join()

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        _load_kernels()
        while not self._stopping.is_set():
            with self._lock:
                cursors = {key: found.position for key, found in self._following.items()}
            if not cursors:
                self._changed.wait()
                self._changed.clear()
                continue
            try:
                self._round(cursors)
            except LogClosedError as error:
                self.error = str(error)
                return
            except LogError as error:
                self.error = str(error)
                self._stopping.wait(self._backoff.next())
            else:
                self.error = None
                self._backoff.reset()

    def _round(self, cursors: dict[NamespaceKey, str]) -> None:
        self._look(cursors)
        batches = self.log.read(cursors, max_bytes=_READ_BYTES, wait=_WAIT)
        now = time.monotonic()
        busy = {batch.key for batch in batches if batch.more}
        for batch in batches:
            found = self.get(batch.key)
            if found is not None and not self._stopping.is_set():
                self._take(found, batch)
        for key in cursors.keys() - busy:
            found = self.get(key)
            if found is not None:
                found.current_at = now
                found.caught_up = True
                found.behind = 0

    def _take(self, found: Following, batch: Batch) -> None:
        found.missed += batch.missed
        if batch.reset:
            found.resets += 1
            if self._on_reset is not None:
                self._on_reset(batch.key, batch.position)
        found.damaged += batch.damaged
        try:
            found.incoming.take(batch.records)
            found.error = None
        except SuffixSpecError as error:  # what was taken stays; the rest of the batch is lost
            found.error = str(error)
        found.read += len(batch.records)
        found.position = batch.position

    def _look(self, cursors: dict[NamespaceKey, str]) -> None:
        """How far behind the namespaces are that have not caught up; once a second."""
        now = time.monotonic()
        for key, position in cursors.items():
            found = self.get(key)
            if found is None:
                continue
            if found.total < 0:
                if not position:
                    capacity = found.incoming.index.config.max_bytes // _LEAST_BYTES_PER_TOKEN
                    position = found.position = cursors[key] = self.log.recent(key, capacity)
                found.total = found.behind = self.log.behind(key, position)
                self._reserve(found, key)
            elif now - found.looked_at > _LOOK_EVERY:
                if not found.caught_up:
                    found.behind = self.log.behind(key, position)
                found.incoming.expire(time.time())
            else:
                continue
            found.looked_at = now

    def _reserve(self, found: Following, key: NamespaceKey) -> None:
        """Make room for a warm start at once, while the tree is small."""
        index = found.incoming.index
        tokens = self.log.statistics(key).tokens
        if tokens is None or not found.total:
            return
        room = (index.config.max_bytes - index.nbytes) // _BYTES_PER_TOKEN * 3 // 4
        if min(tokens, room) > _SMALL:
            rebuild_aside(index, lambda sequence: True, room=min(tokens, room))
