"""What the dynamic rule learned, kept by namespace and taken up again."""

from __future__ import annotations

import numpy as np
import pytest

from suffixspec_index.depth import DepthController, DraftCalibration, GoingRates, MeasuredCost
from suffixspec_index.draft import Source
from suffixspec_index.errors import SnapshotCorruptError
from tests.index.depth.test_controller import drafts_of


def _cost() -> MeasuredCost:
    cost = MeasuredCost()
    for i in range(60):
        n = 1 + i % 12
        cost.observe(n, 1000.0, 1, 10.0 + 2.0 * n)
    return cost


def test_costs_read_back() -> None:
    cost = _cost()
    again = MeasuredCost.from_bytes(cost.to_bytes())
    assert again.ready
    sizes = np.arange(1, 12)
    np.testing.assert_allclose(
        again.step_ms(sizes, 1000.0, 1), cost.step_ms(sizes, 1000.0, 1), rtol=0.02
    )
    engine = MeasuredCost()
    engine.start_from(again)
    for _ in range(2):  # one size, twice as slow as before: the shape is known, the scale is fitted
        engine.observe(1, 1000.0, 1, 24.0)
    grown = engine.step_ms([1, 8], 1000.0, 1)
    assert grown[1] / grown[0] == pytest.approx(26 / 12, rel=0.1)
    assert not MeasuredCost.from_bytes(MeasuredCost().to_bytes()).ready


def test_rates_read_back() -> None:
    rates = GoingRates()
    for _ in range(500):
        rates.learn(1, 3.0, 1.5)
        rates.learn(16, 18.0, 16.0)
    again = GoingRates()
    again.take(rates.to_bytes())
    assert again.to_dict() == rates.to_dict()
    assert again.speedup(1) == rates.speedup(1) > 1.8


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_what_makes_no_sense_is_refused(value: float) -> None:
    data = np.frombuffer(_cost().to_bytes(), "<f8").copy()
    data[3] = value if np.isnan(value) or np.isinf(value) else data[3]
    data[len(data) // 2] = value
    with pytest.raises(SnapshotCorruptError):
        MeasuredCost.from_bytes(data.tobytes())
    rates = GoingRates()
    before = rates.to_bytes()
    with pytest.raises(SnapshotCorruptError):
        rates.take(np.full(len(before) // 8, value).tobytes())
    assert rates.to_bytes() == before
    for cut in (MeasuredCost.from_bytes, rates.take):
        with pytest.raises(SnapshotCorruptError):
            cut(b"12345678")


def test_namespaces_learn_apart() -> None:
    rule = DepthController(_cost())
    ours, theirs = DraftCalibration(), DraftCalibration()
    drafts = drafts_of(2, [1.0, 1.0], Source.NGRAM)
    for _ in range(200):  # ours come true, theirs never do
        rule.plan([1, 2], context_tokens=100.0)
        rule.choose(drafts, [ours, theirs])
        gained = np.array([*drafts.token_ids[:2], 0, drafts.token_ids[2] + 1], np.int32)
        rule.learn(gained, np.array([0, 3, 4]))
    assert ours.probabilities(drafts)[1] > 0.9
    assert theirs.probabilities(drafts)[2] < 0.1
    assert not rule.calibration.coarse.any()
    rule.plan([1, 2], context_tokens=100.0)
    chosen = rule.choose(drafts, [ours, theirs])
    assert len(chosen[0]) == 2
    assert len(chosen[1]) == 0
    assert chosen[0].probs[0] == ours.probabilities(drafts)[0]
