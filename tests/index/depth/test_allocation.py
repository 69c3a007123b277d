"""The allocation against trying every subset, and the going rate that makes it optimal."""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suffixspec_index.depth import GoingRates, allocate
from suffixspec_index.draft import Draft, DraftBatch, Source


def batch_of(*paths: list[float]) -> DraftBatch:
    return DraftBatch.of(
        [Draft.path(range(len(p)), source=Source.SESSION, probs=p, match_len=1) for p in paths]
    )


def net_gain(
    batch: DraftBatch, weights: np.ndarray, curve: np.ndarray, rate: float, nodes: tuple[int, ...]
) -> float | None:
    """What choosing these nodes is worth; ``None`` where one stands without its parent."""
    rows = np.repeat(np.arange(len(batch)), np.diff(batch.offsets))
    total = 0.0
    for node in nodes:
        row = rows[node]
        parent = batch.parents[node]
        if parent >= 0 and batch.offsets[row] + parent not in nodes:
            return None
        total += weights[row] * float(batch.probs[node])
    return total - rate * float(curve[len(nodes)] - curve[0])


def best_by_trying(batch: DraftBatch, weights: np.ndarray, curve: np.ndarray, rate: float) -> float:
    n = len(batch.token_ids)
    subsets = chain.from_iterable(combinations(range(n), k) for k in range(n + 1))
    values = (net_gain(batch, weights, curve, rate, nodes) for nodes in subsets)
    return max(v for v in values if v is not None)


@st.composite
def trees(draw: st.DrawFn) -> Draft:
    n = draw(st.integers(0, 5))
    parents = [draw(st.integers(-1, i - 1)) for i in range(n)]
    probs: list[float] = []
    for parent in parents:
        above = probs[parent] if parent >= 0 else 1.0
        probs.append(above * draw(st.sampled_from((1.0, 0.9, 0.5, 0.25, 0.1))))
    return Draft(
        np.arange(n, dtype=np.int32),
        np.array(parents, np.int32),
        np.array(probs, np.float32),
        np.full(n, Source.SESSION, np.uint8),
        3,
    )


@settings(deadline=None, max_examples=150)
@given(
    st.lists(trees(), min_size=1, max_size=3),
    st.lists(st.sampled_from((0.0, 0.05, 0.2, 1.0, 3.0)), min_size=16, max_size=16),
    st.sampled_from((0.01, 0.3, 1.0, 4.0)),
    st.lists(st.sampled_from((0.2, 1.0, 2.5)), min_size=3, max_size=3),
)
def test_it_is_the_best_subset(
    drafts: list[Draft], rises: list[float], rate: float, weights: list[float]
) -> None:
    batch = DraftBatch.of(drafts)
    curve = 5.0 + np.cumsum([0.0, *rises])  # rises as it likes: convex or not
    given_weights = np.array(weights[: len(drafts)])
    chosen = allocate(batch, given_weights, curve, rate)
    for draft, kept in zip(batch, chosen, strict=True):
        kept.check_integrity()
        assert len(kept) <= len(draft)
        assert set(kept.token_ids.tolist()) <= set(draft.token_ids.tolist())
    kept_nodes = tuple(
        int(batch.offsets[r]) + int(t)
        for r, row in enumerate(chosen)
        for t in row.token_ids  # the token is the node's number within its row
    )
    value = net_gain(batch, given_weights, curve, rate, kept_nodes)
    assert value is not None
    assert value == pytest.approx(best_by_trying(batch, given_weights, curve, rate), abs=1e-5)


def test_free_steps_take_everything_and_dear_ones_nothing() -> None:
    batch = batch_of([0.9, 0.5, 0.01], [0.3])
    ones = np.ones(2)
    assert len(allocate(batch, ones, np.full(8, 4.0), 1.0).token_ids) == 4
    assert len(allocate(batch, ones, np.linspace(0.0, 14.0, 8), 1.0).token_ids) == 0


def test_a_step_that_jumps_is_crossed_where_what_lies_behind_pays() -> None:
    """From 2 draft tokens on the step costs 1 more, and then nothing: all or nothing."""
    jump = np.array([1.0, 2.0, 2.0, 2.0, 2.0, 2.0])
    assert len(allocate(batch_of([0.6, 0.5, 0.4]), np.ones(1), jump, 1.0).token_ids) == 3
    assert len(allocate(batch_of([0.6, 0.2, 0.1]), np.ones(1), jump, 1.0).token_ids) == 0


def test_requests_are_weighed_against_each_other() -> None:
    batch = batch_of([0.6, 0.6], [0.6, 0.6])
    curve = np.linspace(0.0, 3.5, 6)
    assert allocate(batch, np.array([1.0, 2.0]), curve, 1.0).offsets.tolist() == [0, 0, 2]


def test_a_row_may_stand_for_several_requests() -> None:
    """Two draft tokens in one row of four requests each make the step 8 tokens longer."""
    curve = np.concatenate([np.zeros(5), np.arange(1, 9)])  # 4 tokens are free
    chosen = allocate(batch_of([0.9, 0.8]), np.ones(1), curve, 1.0, scale=4.0)
    assert len(chosen.token_ids) == 1


def test_beyond_the_curve_the_last_rise_goes_on() -> None:
    curve = np.array([0.0, 0.5])
    assert len(allocate(batch_of([0.9, 0.6, 0.4]), np.ones(1), curve, 1.0).token_ids) == 2


def test_the_rule_with_the_rate_it_attains_beats_every_fixed_length() -> None:
    """Dinkelbach: steps drawn from three kinds; the learned rate finds the best quotient."""
    rng = np.random.default_rng(5)
    kinds = ([0.95, 0.9, 0.85, 0.8], [0.5, 0.25, 0.1, 0.05], [0.2, 0.04, 0.01, 0.0])
    curve = 10.0 + np.array([0.0, 2.0, 4.0, 6.0, 8.0])
    rates = GoingRates()
    gained = spent = 0.0
    fixed = {k: np.zeros(2) for k in range(5)}
    for step in range(6000):
        probs = kinds[rng.integers(3)]
        rate = rates.speedup(1) / curve[0]
        k = len(allocate(batch_of(probs), np.ones(1), curve, rate).token_ids)
        rates.learn(1, 1.0 + sum(probs[:k]), curve[k] / curve[0])
        if step >= 1000:
            gained, spent = gained + 1.0 + sum(probs[:k]), spent + curve[k]
            for j, totals in fixed.items():
                totals += (1.0 + sum(probs[:j]), curve[j])
    best = max(float(t[0] / t[1]) for t in fixed.values())
    assert gained / spent > 1.05 * best
    assert rates.speedup(1) == pytest.approx(gained / spent * curve[0], rel=0.03)
