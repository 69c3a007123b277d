"""kill -9 at random moments, many rounds: nothing acknowledged is lost, nothing is corrupted."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from suffixspec_index.log import START, open_log
from tests.index.log.journal.torn_writer import KEYS, tokens_of

ROUNDS = 30
ROOT = Path(__file__).parents[4]


def read_back(folder: Path) -> dict[int, list[int]]:
    """Numbers by origin, in the order of the log; every token compared."""
    found: dict[int, list[int]] = defaultdict(list)
    with open_log(f"journal:{folder}") as log:  # opening repairs
        for key in KEYS:
            assert log.statistics(key).damaged == 0
            for batch in log.records(key, START):
                assert batch.damaged == 0
                for one in batch.records:
                    assert np.array_equal(one.tokens, tokens_of(one.origin, one.number))
                    found[one.origin].append(one.number)
    return found


def acknowledged_in(file: Path) -> dict[int, int]:
    """The newest acknowledged number of each origin."""
    newest: dict[int, int] = {}
    for line in file.read_text().splitlines():
        if line != "ready":
            origin, number = map(int, line.split())
            newest[origin] = number
    return newest


def test_killed_at_any_moment(tmp_path: Path) -> None:
    rng = random.Random(1)
    folder, file = tmp_path / "journal", tmp_path / "acknowledged"
    command = [sys.executable, "-m", "tests.index.log.journal.torn_writer", str(folder), str(file)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as nursery:
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        for number in range(ROUNDS):
            nursery.stdin.write(f"{10 * number}\n")
            nursery.stdin.flush()
            child = int(nursery.stdout.readline())
            time.sleep(rng.random() ** 2 * 0.4)
            os.kill(child, signal.SIGKILL)
            assert nursery.stdout.readline() == "dead\n"
            if file.exists():
                check(read_back(folder), acknowledged_in(file))
        nursery.stdin.close()
    assert sum(acknowledged_in(file).values()) > 100


def check(found: dict[int, list[int]], acknowledged: dict[int, int]) -> None:
    """Whatever was acknowledged is there; what is there has no gaps."""
    for origin, newest in acknowledged.items():
        assert found[origin][:newest] == list(range(1, newest + 1))
    for origin, numbers in found.items():  # written and not acknowledged is fine
        assert numbers == list(range(1, len(numbers) + 1)), origin
