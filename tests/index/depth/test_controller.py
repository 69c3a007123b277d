"""The dynamic rule over many steps: load, calibration, collapse and backing off."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import ArrayLike

from suffixspec_index.depth import (
    DepthController,
    DepthSettings,
    DraftCalibration,
    create_depth_rule,
)
from suffixspec_index.depth.controller import DepthController as Controller
from suffixspec_index.depth.costs import Floats
from suffixspec_index.depth.scheduled import ScheduledDepth
from suffixspec_index.draft import Draft, DraftBatch, Source
from suffixspec_index.errors import ConfigError, SnapshotCorruptError
from suffixspec_index.speculative_config import SpeculativeConfig


class Gpu:
    """Free up to ``room`` tokens, then every token costs."""

    def __init__(self, room: int = 64, ms: float = 0.2) -> None:
        self.room, self.ms = room, ms

    def step_ms(self, tokens: ArrayLike, context_tokens: ArrayLike, requests: int = 1) -> Floats:
        ms: Floats = 10.0 + self.ms * np.maximum(np.asarray(tokens, np.float64) - self.room, 0.0)
        return ms


def drafts_of(rows: int, probs: Sequence[float], source: Source = Source.SESSION) -> DraftBatch:
    path = Draft.path(range(len(probs)), source=source, probs=probs, match_len=4)
    return DraftBatch.of([path] * rows)


def step(
    rule: Controller,
    requests: Sequence[int],
    drafts: DraftBatch,
    accepted: Sequence[int],
    *,
    propose_ms: float = 0.0,
) -> DraftBatch:
    """One step in which ``accepted`` tokens of each row's draft come true."""
    rule.plan(requests, context_tokens=1000.0 * len(requests))
    chosen = rule.choose(drafts)
    rows = [np.append(drafts[r].token_ids[:n], -1).astype(np.int32) for r, n in enumerate(accepted)]
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    rule.learn(np.concatenate(rows), offsets, propose_ms=propose_ms)
    return chosen


def test_the_same_drafts_are_verified_less_the_more_requests_there_are() -> None:
    kept = []
    for rows in (1, 8, 64):
        rule = DepthController(Gpu())
        probs = [0.8, 0.6, 0.4, 0.3, 0.2]
        for _ in range(60):
            chosen = step(rule, range(rows), drafts_of(rows, probs), [1] * rows)
        kept.append(len(chosen.token_ids) / rows)
    assert kept[0] == 5
    assert kept[0] >= kept[1] > kept[2]


def test_a_saturated_step_verifies_nothing_and_comes_back() -> None:
    rule = DepthController(Gpu(room=0))
    for _ in range(30):
        full = step(rule, range(200), drafts_of(200, [0.3, 0.1]), [0] * 200)
    assert len(full.token_ids) == 0
    for _ in range(30):
        alone = step(rule, [0], drafts_of(1, [0.3, 0.1]), [0])
    assert len(alone.token_ids) > 0


def test_a_plan_bounds_what_need_not_be_drafted() -> None:
    rule = DepthController(Gpu())
    assert rule.plan([1], context_tokens=10.0).min_prob == pytest.approx(0.01)
    rule.choose(drafts_of(1, []))
    rule.learn(np.array([1], np.int32), np.array([0, 1]))
    crowded = rule.plan(range(100), context_tokens=10.0)
    assert crowded.min_prob is not None
    assert crowded.min_prob > 0.5
    assert crowded.limits.tolist() == [64] * 100


def test_a_replay_may_stand_for_more_requests_than_it_has() -> None:
    few, many = (DepthController(Gpu(), DepthSettings(load=n)) for n in (4, 128))
    probs = [0.7, 0.4, 0.2]
    for _ in range(40):
        kept = [len(step(r, range(4), drafts_of(4, probs), [1] * 4).token_ids) for r in (few, many)]
    assert kept[0] == 12
    assert kept[1] < 8


def test_claims_of_other_methods_are_calibrated() -> None:
    """Prompt lookup says 1 of every token; half of its first tokens come true, then nearly all."""
    rng = np.random.default_rng(3)
    rule = DepthController(Gpu())
    for _ in range(400):
        came = 0 if rng.random() < 0.5 else 4
        step(rule, [0], drafts_of(1, [1.0] * 4, Source.NGRAM), [came])
    probs = rule.calibration.probabilities(drafts_of(1, [1.0] * 4, Source.NGRAM))
    assert probs == pytest.approx([0.5] * 4, abs=0.1)
    untouched = rule.calibration.probabilities(drafts_of(1, [0.9, 0.8], Source.SESSION))
    assert untouched == pytest.approx([0.9, 0.8])
    forced = rule.calibration.probabilities(drafts_of(1, [1.0, 1.0], Source.FORCED))
    assert forced == pytest.approx([1.0, 1.0])


def test_a_request_whose_acceptance_collapses_stops_and_is_found_again() -> None:
    rule = DepthController(Gpu(room=0, ms=2.0))
    drafts = drafts_of(2, [0.9, 0.8, 0.7])
    for _ in range(60):
        kept = step(rule, [7, 8], drafts, [3, 0])
    assert np.diff(kept.offsets)[0] == 3
    assert np.diff(kept.offsets)[1] == 0
    trust = rule.acceptance(8)
    assert trust is not None
    assert trust < 0.2
    for _ in range(60):  # its drafts come true again, though none is verified at first
        kept = step(rule, [7, 8], drafts, [3, 3])
    assert np.diff(kept.offsets).tolist() == [3, 3]


def test_slow_proposers_are_asked_ever_more_rarely_but_never_for_ever_not() -> None:
    rule = DepthController(Gpu(room=0), DepthSettings(longest_wait=8))
    asked = []
    for _ in range(300):
        plan = rule.plan([1], context_tokens=100.0)
        asked.append(bool(plan.limits[0]))
        rule.choose(drafts_of(1, [0.01] if asked[-1] else []))
        propose_ms = 5.0 if asked[-1] else 0.0
        rule.learn(np.array([99], np.int32), np.array([0, 1]), propose_ms=propose_ms)
    assert all(asked[:5])
    assert 0.05 < np.mean(asked[100:]) < 0.2
    gaps = np.diff(np.flatnonzero(asked[100:]))
    assert gaps.max() <= 9


def test_quick_proposers_are_always_asked() -> None:
    rule = DepthController(Gpu(room=0))
    for _ in range(100):
        assert rule.plan([1], context_tokens=100.0).limits[0] > 0
        rule.choose(drafts_of(1, [0.01]))
        rule.learn(np.array([99], np.int32), np.array([0, 1]), propose_ms=0.002)


def test_slow_drafts_are_no_longer_than_they_are_likely_to_come_true() -> None:
    """2 ms a token in steps of 10: drafting 16 tokens of which 2 come true would cost more than it
    gains."""
    rule = DepthController(Gpu())
    limit = 64
    for _ in range(80):
        limit = int(rule.plan([1], context_tokens=100.0).limits[0])
        n = min(limit, 16)
        rule.choose(drafts_of(1, [0.9] * n, Source.DRAFT_MODEL))
        tokens = np.append(np.arange(min(2, n)), -1).astype(np.int32)
        rule.learn(tokens, np.array([0, len(tokens)]), propose_ms=2.0 * n)
    assert 2 <= limit <= 4


def test_numbers_of_requests_may_be_used_again() -> None:
    rule = DepthController(Gpu(room=0))
    for request in range(100):
        step(rule, [request], drafts_of(1, [0.9]), [0])
        rule.forget(request)
    assert rule.acceptance(5) is None
    rule.forget(12345)


def test_rules_by_configuration() -> None:
    cost = Gpu()
    schedule = [[1, 4, 8], [5, 99, 0]]
    both = {"method": "suffix", "num_speculative_tokens_per_batch_size": schedule}
    assert isinstance(create_depth_rule(SpeculativeConfig(), cost), DepthController)
    assert create_depth_rule(SpeculativeConfig(dynamic=False), cost) is None
    assert create_depth_rule(SpeculativeConfig(method="none"), cost) is None
    static = create_depth_rule(SpeculativeConfig.from_dict(both), cost)
    assert isinstance(static, ScheduledDepth)
    assert static.plan(range(50), context_tokens=0.0).limits.tolist() == [0] * 50
    bounded = create_depth_rule(SpeculativeConfig.from_dict(both | {"dynamic": True}), cost)
    assert isinstance(bounded, DepthController)
    assert bounded.plan([1], context_tokens=0.0).limits.tolist() == [8]
    with pytest.raises(ConfigError, match="load"):
        DepthSettings(load=0)


def test_calibration_is_kept() -> None:
    rule = DepthController(Gpu())
    for _ in range(30):
        step(rule, [0], drafts_of(1, [1.0] * 3, Source.NGRAM), [1])
    data = rule.calibration.to_bytes()
    read = DraftCalibration.from_bytes(data)
    batch = drafts_of(1, [1.0] * 3, Source.NGRAM)
    assert read.probabilities(batch).tolist() == rule.calibration.probabilities(batch).tolist()
    with pytest.raises(SnapshotCorruptError):
        DraftCalibration.from_bytes(data[:-8])
    with pytest.raises(SnapshotCorruptError):
        DraftCalibration.from_bytes(b"\xff" * len(data))
