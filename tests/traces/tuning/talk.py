"""Sessions that repeat themselves and each other, small enough for many trials."""

from __future__ import annotations

import numpy as np

from suffixspec_traces.cost import PointsCost
from suffixspec_traces.model import TokenSession, Turn

VOCABULARY = 200


def talk(
    name: str,
    *,
    turns: int = 3,
    source: str = "work",
    seed: int = 0,
    start: float | None = None,
    repetitive: bool = True,
) -> TokenSession:
    """A session whose outputs repeat phrases of a common stock, or are noise."""
    stock = np.random.default_rng(7).integers(20, VOCABULARY, (6, 12))
    rng = np.random.default_rng(seed)
    context = rng.integers(20, VOCABULARY, 10)
    made = []
    for _ in range(turns):
        if repetitive:
            output = np.concatenate([stock[rng.integers(6)] for _ in range(3)])
        else:
            output = rng.integers(20, VOCABULARY, 36)
        made.append(Turn(context.astype(np.int32), output.astype(np.int32)))
        context = np.concatenate([context, output, rng.integers(20, VOCABULARY, 5)])
    return TokenSession(name, tuple(made), source=source, start=start)


def talks(count: int, *, repetitive: bool = True) -> list[TokenSession]:
    return [talk(f"s{i}", seed=i, repetitive=repetitive) for i in range(count)]


FLAT = PointsCost(
    kind="points", name="flat", provenance="made up: tokens cost little", points={1: 10, 65: 12}
)
STEEP = PointsCost(
    kind="points", name="steep", provenance="made up: each token costs", points={1: 10, 101: 1010}
)
