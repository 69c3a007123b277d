"""The rings against a list of everything that ever happened."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suffixspec_service.monitor.series import TIERS, Tier, TimeSeries
from tests.service.monitor.recorded import made_up, record


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 60), pause=st.sampled_from([0.2, 3, 40]))
def test_a_window_holds_what_happened_in_it(seed: int, count: int, pause: float) -> None:
    rng = random.Random(seed)
    tier = Tier("t", 5, 12)
    series = TimeSeries([tier])
    at, events = 1000.0, []
    for _ in range(count):
        at += rng.expovariate(1 / pause)
        one = made_up(rng)
        series.add(one, one.tenant, at)
        events.append((at, one))
    now = at + rng.random() * 10
    window = series.snapshot("t", now).window()
    first, last = window["start"], int(now // 5) * 5
    assert last - first == 5 * 11
    for column in range(11):
        begin = first + 5 * column
        inside = [r for t, r in events if begin <= t < begin + 5]
        assert window["total"]["steps"][column] == sum(r.steps for r in inside)
        assert window["total"]["requests"][column] == len(inside)
        assert window["total"]["failed"][column] == sum(r.status == "cancelled" for r in inside)
        for tenant, columns in window["tenants"].items():
            own = [r for r in inside if r.tenant == tenant]
            assert columns["output_tokens"][column] == sum(r.output_tokens for r in own)
        for source, counts in window["sources"].items():
            drafted = sum(r.by_source.get(source, (0, 0))[0] for r in inside)
            assert counts["drafted"][column] == drafted


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), fold=st.integers(1, 9))
def test_folded_columns_are_sums_and_the_newest_is_whole(seed: int, fold: int) -> None:
    rng = random.Random(seed)
    series = TimeSeries([Tier("t", 1, 30)])
    for _ in range(60):
        at = 1000 + rng.uniform(0, 40)
        series.add(made_up(rng), "a", at)
        series.gauge({"running": rng.randint(0, 9)}, at)
    snapshot = series.snapshot("t", 1040.0)
    fine, folded = snapshot.window(), snapshot.window(fold=fold)
    assert folded["seconds"] == fold
    assert len(folded["total"]["steps"]) == 29 // fold
    assert folded["start"] + fold * (29 // fold) == fine["start"] + 29
    fine_steps = fine["total"]["steps"][29 % fold :]
    fine_gauges = fine["gauges"]["running"][29 % fold :]
    for column, steps in enumerate(folded["total"]["steps"]):
        span = slice(column * fold, (column + 1) * fold)
        assert steps == sum(fine_steps[span])
        known = [v for v in fine_gauges[span] if v is not None]
        assert folded["gauges"]["running"][column] == max(known, default=None)


def test_only_the_wanted_tenants_are_counted() -> None:
    series = TimeSeries([Tier("t", 1, 10)])
    series.add(record(tenant="a", steps=1), "a", 100.0)
    series.add(record(tenant="b", steps=5), "b", 100.0)
    window = series.snapshot("t", 102.0).window(frozenset({"a"}))
    assert sum(window["total"]["steps"]) == 1
    assert list(window["tenants"]) == ["a"]


def test_a_gauge_keeps_the_highest_of_a_bucket() -> None:
    series = TimeSeries([Tier("t", 10, 4)])
    series.gauge({"running": 2.0}, 101.0)
    series.gauge({"running": 7.0}, 103.0)
    series.gauge({"running": 1.0}, 112.0)
    assert series.snapshot("t", 125.0).window()["gauges"]["running"] == [None, 7.0, 1.0]


def test_a_clock_that_goes_back_loses_nothing_and_breaks_nothing() -> None:
    series = TimeSeries([Tier("t", 1, 5)])
    series.add(record(steps=1), "a", 1003.0)
    series.add(record(steps=2), "a", 998.0)
    assert sum(series.snapshot("t", 1004.0).window()["total"]["steps"]) == 3


@pytest.mark.parametrize("tier", TIERS, ids=lambda t: t.name)
def test_tiers_are_as_long_as_their_names_say(tier: Tier) -> None:
    number, unit = int(tier.name[:-1]), tier.name[-1]
    assert tier.seconds * tier.buckets == number * {"m": 60, "h": 3600}[unit]
