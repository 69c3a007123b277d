"""Replicas for the benchmarks of sharing: an index, a proposer and a sharing of its own each.

Where threads wait for each other, the clock is the one on the wall: how busy the machine is shows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np

from benchmarks.clock import clock
from benchmarks.data import Tokens, Turns
from suffixspec_index.index import SuffixIndex
from suffixspec_index.index_config import IndexConfig
from suffixspec_index.log import open_log
from suffixspec_index.namespaces import NamespaceKey
from suffixspec_index.proposers.suffix import SuffixProposer
from suffixspec_index.sharing import Sharing

KEY = NamespaceKey("benchmark", "model", "tokenizer")
LONG = 300.0
FIRST = 3  # delays thrown away: they connect and load kernels


class Replica:
    """One process's part; ``url=None``: it shares with nobody."""

    def __init__(self, url: str | None, *, max_bytes: int = 4 << 30) -> None:
        self.index = SuffixIndex(IndexConfig(max_bytes=max_bytes))
        self.proposer = SuffixProposer(index=self.index)
        self.sharing: Sharing | None = None
        if url is not None:
            self.sharing = Sharing(open_log(*_parts(url)[:1], read_only=_parts(url)[1]))

    def attach(self) -> None:
        """Begin to share."""
        if self.sharing is not None:
            self.sharing.attach(KEY, self.index, self.proposer)

    def close(self) -> None:
        """End sharing."""
        if self.sharing is not None:
            self.sharing.close()


def _parts(url: str) -> tuple[str, bool]:
    """``#follow`` at the end of a URL: opened read-only, as a second process opens a journal."""
    return url.removesuffix("#follow"), url.endswith("#follow")


@contextmanager
def replicas(*urls: str | None) -> Iterator[list[Replica]]:
    """Attached replicas, closed at the end."""
    made: list[Replica] = []
    try:
        for url in urls:
            made.append(Replica(url))
            made[-1].attach()
        yield made
    finally:
        for replica in reversed(made):
            replica.close()


@dataclass(slots=True)
class Counted:
    """Tokens and steps of teacher-forced decoding."""

    tokens: int = 0
    steps: int = 0

    @property
    def tokens_per_step(self) -> float:
        """Steps without a draft included."""
        return self.tokens / self.steps if self.steps else 0.0


def decode(replica: Replica, session: str, turns: Turns, counted: Counted) -> None:
    """Say a recorded session, keeping the drafted tokens that it goes on with."""
    proposer = replica.proposer
    for prompt, output in turns:
        request = proposer.begin(session, prompt)
        at = 0
        while at < len(output):
            draft = proposer.propose(request, max(len(output) - at - 1, 0)).token_ids
            accepted = 0
            while accepted < len(draft) and draft[accepted] == output[at + accepted]:
                accepted += 1
            proposer.advance(request, output[at : at + accepted + 1])
            at += accepted + 1
            counted.steps += 1
        counted.tokens += len(output)
        proposer.finish(request)
    proposer.end_session(session)


def settle(those: Sequence[Replica]) -> None:
    """Wait until all have taken in what all said."""
    for replica in those:
        if replica.sharing is not None and not replica.sharing.flush(LONG):
            raise TimeoutError("the log did not take everything")
    for replica in those:
        if replica.sharing is not None and not replica.sharing.wait_until_current(LONG):
            raise TimeoutError("a replica did not catch up")


def delays(first: str, second: str, count: int) -> list[float]:
    """Seconds from the end of a request on one replica to its draft on another.

    Wall time: most of it passes in other threads, which the clock of the rows does not see.
    """
    rng = np.random.default_rng(0)
    found: list[float] = []
    with replicas(first, second) as (one, other):
        for number in range(count + FIRST):
            said = rng.integers(0, 40_000, 60).astype(np.int32)
            probe = other.proposer.begin(f"probe {number}", said[:8])
            request = one.proposer.begin("session", said[:1])
            one.proposer.advance(request, said[1:])
            began = time.perf_counter()
            one.proposer.finish(request)
            while other.index.world.match(said[:40]) < 39:
                time.sleep(0.0002)
            found.append(time.perf_counter() - began)
            other.proposer.finish(probe, keep=False)
            time.sleep(float(rng.random()) * 0.02)
    return found[FIRST:]


def finishing(url: str | None, outputs: Sequence[Tokens]) -> float:
    """Mean seconds that :meth:`finish` takes."""
    total = 0.0
    with replicas(url) as (one,):
        for output in outputs:
            request = one.proposer.begin("session", output[:1])
            one.proposer.advance(request, output)
            began = clock()
            one.proposer.finish(request)
            total += clock() - began
            one.proposer.end_session("session")
            time.sleep(0.001)  # requests end now and then, not in a tight loop
        settle([one])
    return total / len(outputs)


def varied(outputs: Sequence[Tokens], tokens: int) -> Iterator[Tokens]:
    """Outputs over and over with one token in twenty changed, until there are so many tokens."""
    rng = np.random.default_rng(0)
    while True:
        for output in outputs:
            said = output.copy()
            changed = rng.random(len(said)) < 0.05
            said[changed] = rng.integers(0, 40_000, int(changed.sum()))
            yield said
            tokens -= len(said)
            if tokens <= 0:
                return


@dataclass(frozen=True, slots=True)
class WarmStart:
    """Until a replica has read everything: ``seconds`` by the clock on the wall, ``processor``
    seconds of all threads, and how long drafts took meanwhile (``waits``, by the wall)."""

    seconds: float
    processor: float
    tokens: int
    waits: list[float]


def warm_start(url: str) -> WarmStart:
    """A new replica reads a log back, drafting meanwhile."""
    replica = Replica(url)
    assert replica.sharing is not None
    try:
        request = replica.proposer.begin("probe", [1, 2, 3, 1, 2])
        waits: list[float] = []
        began, used_before = time.perf_counter(), time.process_time()
        replica.attach()
        while not replica.sharing.status().caught_up:
            asked = time.perf_counter()
            replica.proposer.propose(request)
            waits.append(time.perf_counter() - asked)
            time.sleep(0.005)
        seconds = time.perf_counter() - began
        used = time.process_time() - used_before
        return WarmStart(seconds, used, replica.index.world.statistics().tokens, waits)
    finally:
        with suppress(TimeoutError):
            replica.close()
