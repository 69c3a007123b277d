"""A small replay to report on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from suffixspec_traces.cost import PointsCost
from suffixspec_traces.replay import ReplayPlan, ReplayResult, replay
from tests.traces.fake_proposer import FakeProposer, counting, session, turn


class Texts:
    """Token ids as words."""

    def __init__(self, words: dict[int, str] | None = None) -> None:
        self.words = words or {}

    def token_texts(self, ids: Sequence[int] | NDArray[np.integer[Any]]) -> list[str]:
        return [self.words.get(int(i), f"w{int(i)} ") for i in np.asarray(ids)]


@pytest.fixture
def cost() -> PointsCost:
    return PointsCost(
        kind="points",
        name="made up",
        provenance="made up for the tests of reports",
        points={1: 10.0, 5: 18.0},
    )


@pytest.fixture
def texts() -> Texts:
    return Texts()


@pytest.fixture
def plan() -> ReplayPlan:
    return ReplayPlan.build(
        [
            session(
                "one",
                turn([1], [2, 3, 9, 10, 20], tool="search"),
                turn([1, 2, 3, 9, 10, 20, 5], [6, 7, 8, 9]),
            ),
            session("two", turn([1], [5, 5, 5]), source="other"),
        ]
    )


@pytest.fixture
def results(plan: ReplayPlan) -> list[ReplayResult]:
    return [
        replay(plan, FakeProposer(counting(3)), label="counting", config={"drafted": 3}),
        replay(plan, FakeProposer(), label="none"),
    ]
