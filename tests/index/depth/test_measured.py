from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import ArrayLike

from suffixspec_index.depth import MeasuredCost
from suffixspec_index.depth.costs import CostCurves, Floats
from suffixspec_index.depth.measured import KNOTS, weighted_non_decreasing


def truth(tokens: int, context: float, requests: int) -> float:
    return 6.0 + 0.02 * tokens + 0.3 * max(tokens - 40, 0) + 0.4 * context / 1000 + 0.1 * requests


def learned(steps: int = 4000, *, noise: float = 0.05, seed: int = 1) -> MeasuredCost:
    rng = np.random.default_rng(seed)
    cost = MeasuredCost()
    for _ in range(steps):
        requests = int(rng.integers(1, 17))
        tokens = requests * int(rng.integers(1, 9))
        context = float(requests * rng.integers(200, 4000))
        ms = truth(tokens, context, requests) * float(np.exp(noise * rng.standard_normal()))
        if rng.random() < 0.02:
            ms *= 15.0  # the machine did something else
        cost.observe(tokens, context, requests, ms)
    return cost


def test_it_finds_the_curve_behind_noise_and_outliers() -> None:
    cost = learned()
    for tokens, context, requests in ((4, 4000.0, 4), (16, 20000.0, 8), (64, 20000.0, 12)):
        expected = truth(tokens, context, requests)
        assert float(cost.step_ms(tokens, context, requests)) == pytest.approx(expected, rel=0.15)
    rise = float(cost.step_ms(112, 2e4, 14) - cost.step_ms(56, 2e4, 14))
    assert rise == pytest.approx(truth(112, 2e4, 14) - truth(56, 2e4, 14), rel=0.3)


def test_context_costs_what_it_costs() -> None:
    cost = learned()
    assert cost.ms_per_1000_context_tokens == pytest.approx(0.4, rel=0.35)


def test_the_first_step_of_a_size_does_not_count() -> None:
    cost = MeasuredCost()
    cost.observe(1, 0.0, 1, 9000.0)
    for _ in range(50):
        cost.observe(1, 0.0, 1, 5.0)
    assert float(cost.step_ms(1, 0.0, 1)) == pytest.approx(5.0, rel=0.02)


def test_what_was_never_seen_looks_cheap_until_it_is_tried() -> None:
    cost = MeasuredCost()
    for _ in range(30):
        cost.observe(1, 0.0, 1, 10.0)
        cost.observe(64, 0.0, 1, 100.0)
    assert float(cost.step_ms(8, 0.0, 1)) < 25.0
    for _ in range(10):
        cost.observe(8, 0.0, 1, 60.0)
    assert float(cost.step_ms(8, 0.0, 1)) == pytest.approx(60.0, rel=0.1)


def test_a_machine_that_slows_down_slows_all_sizes() -> None:
    cost = MeasuredCost()
    for _ in range(40):
        cost.observe(1, 0.0, 1, 10.0)
        cost.observe(16, 0.0, 1, 20.0)
    for _ in range(300):
        cost.observe(1, 0.0, 1, 20.0)
    one, sixteen = (float(cost.step_ms(n, 0.0, 1)) for n in (1, 16))
    assert one == pytest.approx(20.0, rel=0.05)
    assert sixteen > 1.3 * one


class Line:
    def step_ms(self, tokens: ArrayLike, context_tokens: ArrayLike, requests: int = 1) -> Floats:
        ms: Floats = 5.0 + np.asarray(tokens, np.float64)
        return ms


def test_a_seed_gives_the_shape_and_the_first_steps_the_scale() -> None:
    cost = MeasuredCost(Line())
    for _ in range(12):
        cost.observe(1, 0.0, 1, 60.0)
    assert float(cost.step_ms(1, 0.0, 1)) == pytest.approx(60.0, rel=0.05)
    assert float(cost.step_ms(7, 0.0, 1)) == pytest.approx(120.0, rel=0.1)


def test_nonsense_is_not_counted() -> None:
    cost = MeasuredCost()
    for tokens, ms in ((0, 1.0), (1, 0.0), (1, float("nan")), (1, float("inf"))):
        cost.observe(tokens, 0.0, 1, ms)
    assert not cost.ready
    assert float(cost.step_ms(1, 0.0, 1)) < 0.01


def test_curves_never_fall_and_follow_what_is_learned() -> None:
    cost = learned(800)
    curves = CostCurves(cost)
    ms, slopes = curves.curve(4, 5000.0, 4, 200)
    assert len(ms) >= 202
    assert (np.diff(ms) >= 0).all()
    assert slopes[10] == pytest.approx(np.diff(ms)[:11].min())
    for _ in range(200):
        cost.observe(4, 5000.0, 4, 3.0 * truth(4, 5000.0, 4))
    assert curves.curve(4, 5000.0, 4, 200)[0][0] > 1.5 * ms[0]


def test_the_fit_is_isotonic() -> None:
    fit = weighted_non_decreasing(np.array([1.0, 3.0, 2.0, 5.0]), np.array([1.0, 1.0, 3.0, 1.0]))
    assert fit.tolist() == [1.0, 2.25, 2.25, 5.0]
    assert list(KNOTS[:8]) == [1, 2, 3, 4, 6, 8, 12, 16]


def beside_prompts(tokens: int, context: float, requests: int) -> float:
    """A small model on one core: bound by its weights up to 8 tokens, then by each token."""
    return 70.0 + 2.2 * max(tokens - 8, 0) + 8.0 * context / 1000 + 0.8 * requests


def served_in_chunks(seed: int, waves: int = 2) -> MeasuredCost:
    """Sixteen requests at a time, their prompts in chunks of 64 beside those that generate.

    Requests and tokens then rise and fall together, a few sizes see nearly all steps, and all of
    those near 64 tokens stand on one side of it.
    """
    rng = np.random.default_rng(seed)
    cost = MeasuredCost()
    for _ in range(waves):
        prompts, left = [200] * 16, [12] * 16
        while any(left):
            generating = [i for i in range(16) if not prompts[i] and left[i] > 0]
            budget = 64 if generating else 512
            tokens, context, rows = 0, 0.0, len(generating)
            for i in generating:
                tokens += 1 + int(rng.integers(0, 4))
                context += 212 - left[i]
                left[i] -= 1
            for i in np.flatnonzero(prompts).tolist():
                count = min(prompts[i], budget)
                if count:
                    tokens, context, rows = tokens + count, context + 200 - prompts[i], rows + 1
                    prompts[i] -= count
                    budget -= count
            ms = beside_prompts(tokens, context, rows) * float(np.exp(0.04 * rng.standard_normal()))
            cost.observe(tokens, context, rows, ms)
    return cost


@pytest.mark.parametrize("seed", range(5))
def test_a_draft_token_beside_a_chunk_of_a_prompt_costs_what_it_costs(seed: int) -> None:
    cost = served_in_chunks(seed)
    rise = float(cost.step_ms(96, 2500.0, 14) - cost.step_ms(64, 2500.0, 14))
    assert rise == pytest.approx(32 * 2.2, rel=0.5)


def test_steps_timed_beforehand_are_believed_at_once() -> None:
    cost = MeasuredCost()
    cost.expect({1: 40.0, 4: 42.0, 8: 90.0, 16: 50.0, 32: 66.0})  # 8 was disturbed
    assert cost.ready
    assert cost.steps == 0
    assert float(cost.step_ms(8, 0.0)) == pytest.approx(50.0, rel=0.01)
    assert float(cost.step_ms(24, 0.0)) == pytest.approx(58.0, rel=0.01)
    for _ in range(80):
        cost.observe(16, 0.0, 1, 100.0)
        cost.observe(1, 0.0, 1, 40.0)
    assert float(cost.step_ms(16, 0.0)) == pytest.approx(100.0, rel=0.1)


def test_what_comes_too_late_is_ignored() -> None:
    cost = MeasuredCost()
    for _ in range(8):
        cost.observe(1, 0.0, 1, 10.0)
    cost.expect({1: 99.0})
    cost.expect({})
    assert float(cost.step_ms(1, 0.0)) == pytest.approx(10.0, rel=0.02)


def test_a_seed_is_fitted_to_steps_timed_beforehand() -> None:
    cost = MeasuredCost(Line())
    cost.expect({1: 60.0, 4: 90.0, 8: 900.0})
    assert cost.ready
    assert float(cost.step_ms(15, 0.0)) == pytest.approx(200.0, rel=0.01)
    late = MeasuredCost()
    late.expect({1: 60.0, 4: 90.0, 8: 130.0})
    late.start_from(Line())
    assert float(late.step_ms(15, 0.0)) == pytest.approx(200.0, rel=0.01)


def test_a_seed_is_not_fitted_to_a_single_slow_step() -> None:
    cost = MeasuredCost(Line())
    for ms in (12.0, 60.0, 12.0, 12.0, 12.0):  # one is dropped, the median of the next three counts
        cost.observe(7, 0.0, 1, ms)
    assert float(cost.step_ms(7, 0.0)) == pytest.approx(12.0, rel=0.05)


def test_a_slow_step_does_not_keep_a_size_from_being_tried_again() -> None:
    cost = MeasuredCost()
    for _ in range(30):
        cost.observe(1, 0.0, 1, 40.0)
    for _ in range(2):  # the first one is dropped
        cost.observe(6, 0.0, 1, 100.0)
    rise = float(cost.step_ms(6, 0.0) - cost.step_ms(1, 0.0))
    assert rise < 35.0
    for _ in range(6):
        cost.observe(6, 0.0, 1, 100.0)
    rise = float(cost.step_ms(6, 0.0) - cost.step_ms(1, 0.0))
    assert rise == pytest.approx(60.0, rel=0.15)
