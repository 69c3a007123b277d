"""The model behind docs/sizing.md: it finds the costs that made the figures, and adds up."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.simulate_sharing import SHARE, Model, Run

TRUE = Model(
    publisher=np.array([500e-6, 0.2e-6]),
    redis_write=np.array([100e-6, 0.04e-6]),
    redis_read=np.array([70e-6, 0.001e-6]),
    follower=np.array([900e-6, 0.6e-6]),
)


def run_of(appends: float, tokens: float, followers: int, rounds: float) -> Run:
    """What would be measured if the costs were those of TRUE."""
    return Run(
        followers,
        appends,
        tokens,
        float(TRUE.publisher @ (appends, tokens)),
        TRUE.redis_cores(appends, tokens, followers, rounds),
        [TRUE.follower_cores(rounds, tokens)] * followers,
        [rounds] * followers,
    )


LOADS = ((400.0, 50_000.0), (150.0, 150_000.0), (40.0, 320_000.0))


def test_the_costs_are_found_again() -> None:
    alone = [run_of(*load, 0, 0.0) for load in LOADS]
    followed = [run_of(*load, 1, load[0] * 0.9) for load in LOADS]
    found = Model.fit(alone, followed)
    for name in Model.__slots__:
        np.testing.assert_allclose(getattr(found, name), getattr(TRUE, name), rtol=1e-6)


def test_a_cost_is_never_negative() -> None:
    rng = np.random.default_rng(4)
    for _ in range(50):
        runs = [run_of(*load, 1, load[0]) for load in LOADS]
        for run in runs:
            run.redis_cores *= float(rng.uniform(0.2, 2.0))
            run.follower_cores = [float(rng.uniform(0.01, 1.0))]
        found = Model.fit([run_of(*load, 0, 0.0) for load in LOADS], runs)
        assert all((getattr(found, name) >= 0).all() for name in Model.__slots__)


@pytest.mark.parametrize("replicas", [2, 100])
def test_at_the_most_each_part_uses_its_share(replicas: int) -> None:
    most = TRUE.most_tokens(replicas, 125.0, 1.0)
    appends = most["Redis"] / 125.0
    used = TRUE.redis_cores(appends, most["Redis"], replicas, 20.0)
    assert used == pytest.approx(SHARE)
    assert TRUE.follower_cores(20.0, most["follower"]) == pytest.approx(SHARE)
    assert TRUE.publisher @ (most["publisher"] / 125.0, most["publisher"]) == pytest.approx(SHARE)


def test_rounds_get_rarer_under_load_and_by_the_pause() -> None:
    assert TRUE.rounds(10.0, 1_000.0, 0.01) == 10.0
    assert TRUE.rounds(5_000.0, 1_000.0, 0.01) == 100.0
    busy = TRUE.rounds(5_000.0, 1_000_000.0, 0.001)
    assert TRUE.follower_cores(busy, 1_000_000.0) == pytest.approx(SHARE)
