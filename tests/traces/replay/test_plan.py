"""Order and limits of a plan."""

from __future__ import annotations

import numpy as np
import pytest

from suffixspec_index.errors import ConfigError
from suffixspec_traces.model import TokenSession
from suffixspec_traces.replay import ReplayPlan
from tests.traces.fake_proposer import session, turn


def order(plan: ReplayPlan) -> list[tuple[str, int]]:
    return [(plan.sessions[p.session].id, p.number) for p in plan.turns]


def some(n: int) -> list[TokenSession]:
    return [session(str(i), turn([1], [i, i]), turn([1], [i])) for i in range(n)]


def test_recorded_order_is_kept() -> None:
    plan = ReplayPlan.build(some(2))
    assert order(plan) == [("0", 0), ("0", 1), ("1", 0), ("1", 1)]
    assert plan.outputs.tolist() == [0, 0, 0, 1, 1, 1]
    assert [p.last for p in plan.turns] == [False, True, False, True]
    assert (plan.order, plan.concurrency, plan.seed) == ("recorded", 1, None)


def test_turns_with_times_are_interleaved_as_they_happened() -> None:
    sessions = [
        session("late", turn([1], [1], timestamp=20.0), turn([1], [2], timestamp=40.0)),
        session("early", turn([1], [3], timestamp=10.0), turn([1], [4], timestamp=30.0)),
    ]
    plan = ReplayPlan.build(sessions)
    assert order(plan) == [("early", 0), ("late", 0), ("early", 1), ("late", 1)]
    assert plan.order == "interleaved by time"
    assert [p.last for p in plan.turns] == [False, False, True, True]
    assert order(ReplayPlan.build(sessions, concurrency=1))[0] == ("late", 0)


def test_a_clock_that_runs_backwards_does_not_reorder_a_session() -> None:
    plan = ReplayPlan.build(
        [session("a", turn([1], [1], timestamp=20.0), turn([1], [2], timestamp=5.0))]
    )
    assert order(plan) == [("a", 0), ("a", 1)]


def test_one_turn_without_a_time_means_recorded_order() -> None:
    sessions = [
        session("a", turn([1], [1], timestamp=20.0)),
        session("b", turn([1], [1])),
        session("c", turn([1], [1], timestamp=1.0)),
    ]
    assert order(ReplayPlan.build(sessions)) == [("a", 0), ("b", 0), ("c", 0)]


def test_shuffling_is_seeded_and_keeps_turns_in_order() -> None:
    first, again, other = (ReplayPlan.build(some(9), shuffle=True, seed=s) for s in (1, 1, 2))
    assert order(first) == order(again) != order(other)
    assert all(b == a + 1 for a, b in zip(*[iter(p.number for p in first.turns)] * 2, strict=True))
    assert (first.order, first.seed) == ("shuffled", 1)


def test_limits_cut_sessions_and_tokens() -> None:
    assert order(ReplayPlan.build(some(4), limit_sessions=1)) == [("0", 0), ("0", 1)]
    plan = ReplayPlan.build(some(4), limit_tokens=4)
    assert order(plan) == [("0", 0), ("0", 1), ("1", 0)]
    assert plan.outputs.tolist() == [0, 0, 0, 1]
    assert plan.turns[-1].last
    assert len(plan.sessions) == 2


def test_what_has_no_output_is_left_out() -> None:
    plan = ReplayPlan.build(
        [session("a", turn([1], [])), session("b", turn([1], []), turn([1], [2]))]
    )
    assert order(plan) == [("b", 1)]
    empty = ReplayPlan.build([])
    assert empty.outputs.dtype == np.int32
    assert not empty.turns


@pytest.mark.parametrize("field", ["concurrency", "limit_sessions", "limit_tokens"])
def test_limits_below_one_are_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=rf"{field}: must be at least 1, got 0"):
        ReplayPlan.build(some(1), **{field: 0})  # type: ignore[arg-type]
