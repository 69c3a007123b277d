"""A replica as a process of its own, for the tests to kill: ``python -m ... URL WORKER SEED``.

It says sequences that prove themselves (their tokens follow from their name) as fast as the log
takes them, and prints a line for each that was acknowledged. Commands come by standard input:
``quiet`` ends the talking; ``digest`` waits until everything was read and prints what it holds.
"""

from __future__ import annotations

import hashlib
import random
import sys
import threading
import time
from collections.abc import Iterable

import numpy as np

from suffixspec_index.log import open_log
from tests.index.sharing.replicas import LONG, Replica, closing, settle

NAMED = 3  # tokens that name a sequence: worker, seed, number


def sequence_of(worker: int, seed: int, number: int) -> tuple[int, ...]:
    """What the sequence of this name says."""
    rng = np.random.default_rng((worker, seed, number))
    body = rng.integers(0, 1_000, int(rng.integers(1, 40)))
    return (worker, seed, number, *map(int, body))


def is_whole(tokens: tuple[int, ...]) -> bool:
    """Whether a sequence says what its name says."""
    return len(tokens) > NAMED and tokens == sequence_of(*tokens[:NAMED])


def digest_of(sequences: Iterable[tuple[int, ...]]) -> str:
    """The same for the same sequences in any order."""
    return hashlib.sha256(repr(sorted(sequences)).encode()).hexdigest()


def open_patiently(url: str) -> Replica:
    """The journal of a process that was killed a moment ago may still be locked."""
    ends = time.monotonic() + LONG
    while True:
        try:
            return Replica(open_log(url))
        except Exception:
            if time.monotonic() > ends:
                raise
            time.sleep(0.02)


class Talker(threading.Thread):
    """Says sequences, several at a time, until told to be quiet."""

    def __init__(self, replica: Replica, worker: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.replica = replica
        self.names = (worker, seed)
        self.quiet = threading.Event()

    def run(self) -> None:
        rng = random.Random(repr(self.names))
        number = 0
        while not self.quiet.is_set():
            fresh = range(number, number + rng.randint(1, 5))
            for number in fresh:
                self.replica.index.ingest(sequence_of(*self.names, number))
            number = fresh.stop
            while not self.replica.sharing.flush(LONG):
                if self.quiet.is_set():
                    return
            for name in fresh:
                print("acknowledged", *self.names, name, flush=True)
            time.sleep(rng.random() * 0.004)


def warm_up() -> None:
    """Load the kernels, so that what is killed is at work and not at its beginning."""
    replicas = [Replica(open_log("memory:warm-up")) for _ in range(2)]
    with closing(replicas):
        replicas[0].index.ingest(sequence_of(0, 0, 0))
        settle(replicas)


def main() -> None:
    url, worker, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    warm_up()
    replica = open_patiently(url)
    talker = Talker(replica, worker, seed)
    print("ready", flush=True)
    talker.start()
    for line in sys.stdin:
        if line.strip() == "quiet":
            talker.quiet.set()
            talker.join()
            print("flushed", replica.sharing.flush(LONG), flush=True)
        elif line.strip() == "digest":
            current = replica.sharing.wait_until_current(LONG)
            replica.index.check_integrity()
            print("digest", current, digest_of(replica.sequences().elements()), flush=True)
    replica.sharing.close()


if __name__ == "__main__":
    main()
