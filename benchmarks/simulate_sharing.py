"""What N replicas that share through one Redis would need: measured costs, a model, a check of it.

``python -m benchmarks.simulate_sharing``: starts a real Redis and real followers (a process each),
measures what an append, a read and a token cost each of them in processor time, fits a model,
compares it with runs it has not seen (2, 4 and 8 followers), and prints what it says about more.
``docs/sizing.md`` explains the figures.

Costs are processor time, which a busy machine changes little. A follower reads in rounds; one round
takes everything that came since the last, so under load rounds get rarer and larger instead of
falling behind. The model: with ``A`` appends and ``R`` tokens per second in all,

```
publisher   cores = appends * append + tokens * token
Redis       cores = A * append + R * token + N * rounds * round + N * R * delivered
follower    cores = rounds * round + R * token
            rounds = min(A, 1 / read_pause, what is left of the core)
```
"""

from __future__ import annotations

import argparse
import json
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, combinations, cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import Tokens
from benchmarks.harness import Context
from benchmarks.redis_server import BenchmarkRedis, running_redis
from benchmarks.sharing import KEY, varied
from suffixspec_index.log import Record, RecordKind, SequenceLog, open_log
from suffixspec_index.log.redis_scripts import Keys

SECONDS = 3.0  # of each run
PATIENCE = 60.0
_TINY = 1e-12
SHARE = 0.7  # of a core that may be used before somebody waits too long
LEAST_ROUNDS = 20.0  # per second and follower: what is finished is drafted after 50 ms


@dataclass(frozen=True, slots=True)
class Load:
    """What is written: appends per second, sequences in each."""

    appends: float
    sequences: int


FIT = (Load(400, 1), Load(150, 8), Load(40, 64))
CHECK = Load(200, 4)


@dataclass(slots=True)
class Run:
    """What a run took, per second: ``cores`` are processor seconds."""

    followers: int
    appends: float = 0.0
    tokens: float = 0.0
    publisher_cores: float = 0.0
    redis_cores: float = 0.0
    follower_cores: list[float] = field(default_factory=list)
    rounds: list[float] = field(default_factory=list)
    bytes_per_token: tuple[float, float] = (0.0, 0.0)  # compressed, in Redis's memory

    @property
    def follower_core(self) -> float:
        """Mean of the followers."""
        return float(np.mean(self.follower_cores)) if self.follower_cores else 0.0

    @property
    def reads(self) -> float:
        """Rounds per second of all followers."""
        return sum(self.rounds)

    @property
    def round(self) -> float:
        """Mean rounds per second."""
        return float(np.mean(self.rounds)) if self.rounds else 0.0


# --- a follower in a process of its own ----------------------------------------------------------


def follow(url: str) -> None:
    """Follow; for each line of standard input say what was used since the line before."""
    from benchmarks.sharing import Replica

    replica = Replica(f"{url}#follow")
    assert replica.sharing is not None
    rounds = _count_reads(replica.sharing.log)
    warm_up(replica)
    replica.attach()
    print("{}", flush=True)
    for _ in sys.stdin:
        (status,) = replica.sharing.status().namespaces
        said = {
            "cpu": time.process_time(),
            "rounds": rounds[0],
            "tokens": status.applied_tokens,
            "bytes": replica.index.nbytes,
        }
        print(json.dumps(said), flush=True)
    replica.close()


def warm_up(replica: Any) -> None:
    """Load the kernels before anything is measured."""
    from benchmarks import ours

    ours.compile_kernels()
    replica.index.ingest(np.arange(64, dtype=np.int32))


def _count_reads(log: SequenceLog) -> list[int]:
    """Count reads that brought something."""
    count, read = [0], log.read

    def counting(*arguments: Any, **options: Any) -> Any:
        found = read(*arguments, **options)
        count[0] += bool(found)
        return found

    log.read = counting  # type: ignore[method-assign]
    return count


class Follower:
    """The other end of :func:`follow`."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, "-m", "benchmarks.simulate_sharing", "--follow", url]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def hear(self) -> dict[str, Any]:
        """Its next line."""
        assert self.process.stdout is not None
        said: dict[str, Any] = json.loads(self.process.stdout.readline())
        return said

    def ask(self) -> dict[str, Any]:
        """What it used so far."""
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)
        return self.hear()

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate()


@contextmanager
def followers(url: str, count: int) -> Iterator[list[Follower]]:
    """So many, warm."""
    made = [Follower(url) for _ in range(count)]
    try:
        for one in made:
            one.hear()
        yield made
    finally:
        for one in made:
            one.close()


# --- measuring -----------------------------------------------------------------------------------


def measure(server: BenchmarkRedis, load: Load, outputs: Iterator[Tokens], count: int) -> Run:
    """Write a load for a while to a stream of its own, with so many followers."""
    run = Run(count)
    prefix = secrets.token_hex(4)
    url = f"{server.url}?prefix={prefix}&max_bytes=4GiB&read_pause=1ms"
    with followers(url, count) as those, open_log(url) as log:
        _wait_for(those, _write(log, load, outputs, 0.5)[1])
        before = [one.ask() for one in those]
        redis, began, cpu = server.cpu_seconds(), time.monotonic(), time.process_time()
        appends, tokens = _write(log, load, outputs, SECONDS)
        mine = time.process_time() - cpu
        _wait_for(those, tokens, before)
        after = [one.ask() for one in those]
        seconds = time.monotonic() - began
        run.redis_cores = (server.cpu_seconds() - redis) / seconds
        stored = log.statistics(KEY)
    if not count and stored.tokens:
        name = Keys.of(prefix, KEY.digest).log
        used = server.client.memory_usage(name, samples=0)
        run.bytes_per_token = (stored.bytes / stored.tokens, used / stored.tokens)
    run.appends, run.tokens = appends / seconds, tokens / seconds
    run.publisher_cores = mine / seconds
    run.follower_cores = _differences(before, after, "cpu", seconds)
    run.rounds = _differences(before, after, "rounds", seconds)
    print(load, run, file=sys.stderr, flush=True)
    return run


def _write(
    log: SequenceLog, load: Load, outputs: Iterator[Tokens], seconds: float
) -> tuple[int, int]:
    """Append at the load's pace; how many appends and tokens."""
    began = time.monotonic()
    appends = tokens = 0
    while (now := time.monotonic() - began) < seconds:
        if appends < now * load.appends:
            said = [next(outputs) for _ in range(load.sequences)]
            log.append(KEY, [_record(tokens + at, one) for at, one in enumerate(said)])
            appends, tokens = appends + 1, tokens + sum(map(len, said))
        else:
            time.sleep(0.0005)
    return appends, tokens


_number = iter(range(1 << 62))


def _record(_: int, tokens: Tokens) -> Record:
    number = next(_number)
    return Record(RecordKind.SEQUENCE, 1, number, number, round(time.time(), 6), tokens)


def _wait_for(
    those: Sequence[Follower], tokens: int, before: Sequence[dict[str, Any]] = ()
) -> None:
    """Until every follower took in so many tokens, since ``before``."""
    ends = time.monotonic() + PATIENCE
    for at, one in enumerate(those):
        start = before[at]["tokens"] if before else 0
        while one.ask()["tokens"] - start < tokens:
            if time.monotonic() > ends:
                raise TimeoutError("a follower does not catch up: the machine is too busy")
            time.sleep(0.05)


def _differences(
    before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]], name: str, seconds: float
) -> list[float]:
    return [(b[name] - a[name]) / seconds for a, b in zip(before, after, strict=True)]


# --- the model -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Model:
    """Processor seconds: of a publisher per append and token, of Redis per append, token written,
    read of a follower and token delivered, of a follower per round and token."""

    publisher: NDArray[np.float64]
    redis_write: NDArray[np.float64]
    redis_read: NDArray[np.float64]
    follower: NDArray[np.float64]

    @classmethod
    def fit(cls, alone: Sequence[Run], followed: Sequence[Run]) -> Model:
        """Least squares without negative costs, over runs without and with followers."""
        writes = np.array([[run.appends, run.tokens] for run in alone])
        runs = [*alone, *followed]
        redis = _nonnegative(
            np.array([[r.appends, r.tokens, r.reads, r.followers * r.tokens] for r in runs]),
            np.array([run.redis_cores for run in runs]),
        )
        return cls(
            _nonnegative(writes, np.array([run.publisher_cores for run in alone])),
            redis[:2],
            redis[2:],
            _nonnegative(
                np.array([[run.round, run.tokens] for run in followed]),
                np.array([run.follower_core for run in followed]),
            ),
        )

    def redis_cores(self, appends: float, tokens: float, followers: int, rounds: float) -> float:
        """What Redis needs."""
        written = float(self.redis_write @ (appends, tokens))
        return written + followers * float(self.redis_read @ (rounds, tokens))

    def follower_cores(self, rounds: float, tokens: float) -> float:
        """What a follower needs."""
        return float(self.follower @ (rounds, tokens))

    def rounds(self, appends: float, tokens: float, pause: float) -> float:
        """How often a follower reads, as long as one core is enough for it."""
        left = max(SHARE - tokens * self.follower[1], 0.0)
        return float(min(appends, 1 / pause, left / max(self.follower[0], 1e-9)))

    def most_tokens(self, replicas: int, sequence: float, per_append: float) -> dict[str, float]:
        """Tokens per second in all at which each part has used its share of one core, with
        sequences of so many tokens, so many sequences to an append."""
        size = sequence * per_append
        own, write = (float(cost @ (1 / size, 1)) for cost in (self.publisher, self.redis_write))
        read = replicas * float(self.redis_read[1])
        fixed = replicas * LEAST_ROUNDS * float(self.redis_read[0])
        return {
            "publisher": SHARE / max(own, _TINY),
            "Redis": max(SHARE - fixed, 0.0) / max(write + read, _TINY),
            "follower": max(SHARE - LEAST_ROUNDS * self.follower[0], 0.0)
            / max(float(self.follower[1]), _TINY),
        }


def _nonnegative(rows: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least squares for a few unknowns, none below zero, relative errors counting alike."""
    scale = 1 / np.maximum(values, 1e-6)
    rows, values = rows * scale[:, None], values * scale
    unknowns = range(rows.shape[1])
    best, least = np.zeros(rows.shape[1]), np.inf
    for chosen in chain.from_iterable(
        combinations(unknowns, n) for n in range(1, len(unknowns) + 1)
    ):
        found = np.zeros(rows.shape[1])
        found[list(chosen)] = np.linalg.lstsq(rows[:, chosen], values, rcond=None)[0]
        error = float(np.sum((rows @ found - values) ** 2))
        if (found >= 0).all() and error < least:
            best, least = found, error
    return best


# --- what is printed -----------------------------------------------------------------------------


def simulate(counts: Sequence[int], say: Any = print) -> dict[str, Any]:
    """Measure, fit, check, look ahead; everything as plain values."""
    outputs = Context().corpus.outputs()
    mean = float(np.mean([len(one) for one in outputs]))
    order = np.random.default_rng(0).permutation(len(outputs))
    said = cycle(list(varied([outputs[at] for at in order], 2_000_000)))
    with running_redis() as server:
        alone = [measure(server, load, said, 0) for load in FIT]
        followed = [measure(server, load, said, count) for load in FIT for count in (1, 3)]
        model = Model.fit(alone, followed)
        checks = [_checked(model, measure(server, CHECK, said, count)) for count in counts]
    report = {
        "mean_sequence_tokens": mean,
        "micros": {name: _micros(getattr(model, name)) for name in Model.__slots__},
        "bytes_per_token": {
            f"{load.sequences} to an append": [round(value, 3) for value in run.bytes_per_token]
            for load, run in zip(FIT, alone, strict=True)
        },
        "index_bytes_per_token": _index_bytes(outputs),
        "checks": checks,
        "ahead": [_ahead(model, replicas, mean) for replicas in (2, 10, 30, 100)],
    }
    say(json.dumps(report, indent=1))
    return report


def _micros(pair: NDArray[np.float64]) -> list[float]:
    return [round(float(value) * 1e6, 4) for value in pair]


def _checked(model: Model, run: Run) -> dict[str, float]:
    """What was measured beside what the model says of the same rounds."""
    return {
        "followers": run.followers,
        "tokens_per_s": round(run.tokens),
        "rounds_per_s": round(run.round, 1),
        "redis_cores": round(run.redis_cores, 4),
        "redis_cores_predicted": round(
            model.redis_cores(run.appends, run.tokens, run.followers, run.round), 4
        ),
        "follower_cores": round(run.follower_core, 4),
        "follower_cores_predicted": round(model.follower_cores(run.round, run.tokens), 4),
    }


def _ahead(model: Model, replicas: int, mean: float) -> dict[str, Any]:
    """What one stream carries, and what each part needs at 1,000 tokens/s from each replica."""
    tokens = 1_000.0 * replicas
    appends = tokens / mean
    most = model.most_tokens(replicas, mean, 1.0)
    return {
        "replicas": replicas,
        "most_tokens_per_s": {name: round(value) for name, value in most.items()},
        "at_1000_tokens_per_s_each": [
            {
                "read_pause_ms": pause,
                "redis_cores": round(model.redis_cores(appends, tokens, replicas, rounds), 3),
                "follower_cores": round(model.follower_cores(rounds, tokens), 3),
                "rounds_per_s": round(rounds, 1),
            }
            for pause in (1, 10, 50)
            for rounds in (model.rounds(appends, tokens, pause / 1e3),)
        ],
    }


def _index_bytes(outputs: Sequence[Tokens]) -> float:
    """Bytes per token of an index of two million tokens."""
    from suffixspec_index.index import SuffixIndex
    from suffixspec_index.index_config import IndexConfig

    index = SuffixIndex(IndexConfig(max_bytes=4 << 30))
    for output in varied(outputs, 2_000_000):
        index.ingest(output)
    return index.nbytes / index.world.statistics().tokens


def main() -> None:
    """Run it, or be one of its followers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--follow", metavar="URL", help="be a follower (used by itself)")
    parser.add_argument("--check", default="2,4,8", help="numbers of followers to check with")
    chosen = parser.parse_args()
    if chosen.follow:
        follow(chosen.follow)
    else:
        simulate([int(count) for count in chosen.check.split(",")])


if __name__ == "__main__":
    main()
