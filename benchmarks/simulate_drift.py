"""How often falling acceptance is noticed, how soon, and how often noise is taken for it.

``python -m benchmarks.simulate_drift``: requests are drawn as sessions that differ, requests that
differ within them, and tokens on top; the detectors are those of the service, as configured and
with one thing changed at a time. docs/decisions/0013 holds its figures.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from dataclasses import replace

from suffixspec_service.monitor.drift import DriftConfig, DriftDetector

RUNS, REQUESTS, FALL_AT = 100, 2000, 1000


def requests(seed: int, level: float, fallen: float | None) -> Iterator[tuple[int, int]]:
    """Drafted and accepted tokens of requests, eight to a session; the level falls half-way."""
    rng = random.Random(seed)
    base = level
    for number in range(REQUESTS):
        mean = fallen if fallen is not None and number >= FALL_AT else level
        if number % 8 == 0:
            base = rng.betavariate(mean * 12, (1 - mean) * 12)
        share = rng.betavariate(max(0.05, base) * 10, max(0.05, 1 - base) * 10)
        drafted = rng.randint(20, 200)
        yield drafted, sum(rng.random() < share for _ in range(drafted))


def raised(config: DriftConfig, seed: int, level: float, fallen: float | None) -> list[int]:
    """The requests at which an alarm was raised."""
    detector = DriftDetector(config)
    events = [detector.add(*r, float(at)) for at, r in enumerate(requests(seed, level, fallen))]
    return [int(e.at) for e in events if e is not None and e.kind == "raised"]


def row(name: str, config: DriftConfig) -> str:
    """A line of the table."""
    false = sum(bool(raised(config, seed, 0.8, None)) for seed in range(RUNS))
    cells = [f"{false} of {RUNS}"]
    for fallen in (0.4, 0.6):
        delays = [
            min(late) - FALL_AT
            for seed in range(RUNS // 4)
            if (late := [at for at in raised(config, seed, 0.8, fallen) if at >= FALL_AT])
        ]
        middle = f"{statistics.median(delays):.0f}" if delays else "–"
        cells.append(f"{middle} ({len(delays)} of {RUNS // 4})")
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    config = DriftConfig()
    print("| detector | runs with a false alarm | requests until 80 → 40 % | until 80 → 60 % |")
    print("| --- | --- | --- | --- |")
    print(row("as configured", config))
    print(row("slack 0.75", replace(config, slack=0.75)))
    print(
        row(
            "blocks of 4 requests, 200 tokens", replace(config, block_requests=4, block_drafted=200)
        )
    )


if __name__ == "__main__":
    main()
