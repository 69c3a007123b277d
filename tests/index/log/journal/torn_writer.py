"""Processes that append to a journal until they are killed: started by the kill tests.

Each round of threads appends batches and, once they are acknowledged, says so in a file of its own:
``origin number`` a line, written by one call, so that a line is there whole or not at all.
"""

from __future__ import annotations

import os
import random
import sys
import threading

import numpy as np

from suffixspec_index.log import Record, RecordKind, SequenceLog, open_log
from suffixspec_index.log.codec import encode_records
from suffixspec_index.namespaces import NamespaceKey

KEYS = [NamespaceKey("tenant", "model", "tokenizer", str(n)) for n in range(2)]


def tokens_of(origin: int, number: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """What record ``number`` of an origin says: anybody can tell whether it is right."""
    rng = np.random.default_rng([origin, number])
    said = rng.integers(0, 50_000, int(rng.integers(1, 300)))
    return said.astype(np.int32)


def write(log: SequenceLog, origin: int, acknowledged: int) -> None:
    rng = random.Random(origin)
    key = KEYS[origin % 2]
    number = 0
    while True:
        numbers = range(number + 1, number + 1 + rng.randrange(1, 6))
        records = [
            Record(RecordKind.SEQUENCE, origin, n, n, float(n), tokens_of(origin, n))
            for n in numbers
        ]
        log.append(key, records)
        number = numbers[-1]
        os.write(acknowledged, f"{origin} {number}\n".encode())


def live(folder: str, acknowledged: str, first_origin: int) -> None:
    """Write and tidy until somebody kills the process."""
    log = open_log(f"journal:{folder}", fsync="always", segment_bytes="16KiB", max_bytes="1GiB")
    file = os.open(acknowledged, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for origin in range(first_origin, first_origin + 3):
        threading.Thread(target=write, args=(log, origin, file), daemon=True).start()
    while True:  # more often than the journal's own thread does
        for writer in list(log._writers.values()):  # type: ignore[attr-defined]
            writer.pack()


def main() -> None:
    """For each line ``first_origin`` of the input, a process to be killed: says its id, and says
    ``dead`` once it is. Forking spares loading the kernels in each round."""
    encode_records([])  # loads them
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            live(sys.argv[1], sys.argv[2], int(line))
        print(child, flush=True)
        os.waitpid(child, 0)
        print("dead", flush=True)


if __name__ == "__main__":
    main()
