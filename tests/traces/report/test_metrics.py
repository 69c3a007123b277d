"""The figures of a report: by hand on a small replay, and their sums on random ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suffixspec_index.draft import Draft, Source
from suffixspec_index.errors import InputError
from suffixspec_traces.cost import PointsCost
from suffixspec_traces.model import ReadReport, SkippedLine
from suffixspec_traces.replay import ReplayPlan, ReplayResult, replay
from suffixspec_traces.report import ReplayReport, ReportOptions, build_report
from suffixspec_traces.report.bootstrap import ratio_interval
from suffixspec_traces.report.groups import bucket_labels, bucketed
from tests.traces.fake_proposer import FakeProposer, session, turn

# counting(3) on the fixture's plan:
#   one/1: drafts 2 3 4, accepts 2, gains 3; drafts 10 11 12, accepts 1, gains 2 (the end)
#   one/2: drafts 6 7 8, accepts 3, gains 4 (the end)
#   two/1: drafts 2 3 4, 6 7 8, 6 7 8, accepts none, gains 1 each


def test_totals_by_hand(results: list[ReplayResult], cost: PointsCost) -> None:
    report = build_report(results, cost)
    totals = report.method("counting").totals
    assert (totals.steps, totals.drafts, totals.output_tokens) == (6, 6, 12)
    assert (totals.drafted, totals.accepted, totals.wasted) == (18, 6, 12)
    assert totals.tokens_per_step == 2.0
    assert totals.acceptance_rate == pytest.approx(1 / 3)
    assert totals.vllm_mean_acceptance_length == 2.0
    none = report.method("none").totals
    assert (none.steps, none.drafts, none.tokens_per_step) == (12, 0, 1.0)
    assert none.acceptance_rate is None
    assert none.vllm_mean_acceptance_length is None
    with pytest.raises(InputError, match="no method 'ngram'; it has counting, none"):
        report.method("ngram")


def test_breakdowns_by_hand(results: list[ReplayResult], cost: PointsCost) -> None:
    method = build_report(results, cost).method("counting")
    # step by step the verifier decided on 3, 2, 3, 1, 1, 1 positions
    assert [(p.position, p.drafted, p.reached, p.accepted) for p in method.by_position] == [
        (1, 6, 6, 3),
        (2, 6, 3, 2),
        (3, 6, 2, 1),
    ]
    assert [(r.group, r.counts.steps) for r in method.by_match_length] == [("2", 6)]
    assert [(r.group, r.counts.output_tokens) for r in method.by_turn] == [("1", 8), ("2", 4)]
    assert [(r.group, r.counts.accepted) for r in method.by_tool] == [
        ("(no tool call)", 3),
        ("search", 3),
    ]
    assert [(r.group, r.counts.tokens_per_step) for r in method.by_workload] == [
        ("work", 3.0),
        ("other", 1.0),
    ]
    assert [(r.source, r.drafted, r.accepted, r.wasted) for r in method.by_source] == [
        ("session", 18, 6, 12)
    ]
    assert method.by_source[0].output_share == 0.5
    assert [(s.id, s.turns, s.counts.steps) for s in method.sessions] == [
        ("one", 2, 3),
        ("two", 1, 3),
    ]
    curve = [(p.first_session, p.last_session, p.tokens_per_step) for p in method.cold_to_warm]
    assert curve == [(1, 1, 3.0), (2, 2, 1.0)]
    assert method.cold_to_warm[-1].cumulative_tokens_per_step == 2.0
    spread = method.session_tokens_per_step
    assert spread is not None
    assert (spread.minimum, spread.median, spread.maximum) == (1.0, 2.0, 3.0)


def test_calibration_by_hand(results: list[ReplayResult], cost: PointsCost) -> None:
    found = build_report(results, cost).method("counting").calibration
    # probabilities 1/2, 1/4, 1/8 in each of six drafts; accepted 3, 2 and 1 times
    expected = (6 * 0.25 + 2 * 0.75**2 + 4 * 0.25**2 + 0.875**2 + 5 * 0.125**2) / 18
    assert found.brier_score == pytest.approx(expected)
    filled = {b.low: (b.drafted, b.accepted) for b in found.bins if b.drafted}
    assert filled == {0.1: (6, 1), 0.2: (6, 2), 0.5: (6, 3)}
    assert found.expected_calibration_error == pytest.approx((0 + 0.5 + 0.25) / 18)


def test_predicted_speedup_by_hand(results: list[ReplayResult], cost: PointsCost) -> None:
    report = build_report(results, cost)
    alone = report.method("counting").predicted_at(1)
    assert alone is not None
    # 12 tokens in 6 steps of 4 tokens, 16 ms each, and the proposer's own time
    assert alone.plain_ms_per_token == pytest.approx(10.0)
    assert alone.ms_per_token - alone.proposer_ms_per_token == pytest.approx(8.0)
    assert not alone.extrapolated
    many = report.method("counting").predicted_at(8)
    assert many is not None
    assert many.extrapolated
    assert report.method("none").speedup.value == pytest.approx(1.0, rel=0.05)
    value = report.method("counting").speedup
    assert value.low is not None
    assert value.high is not None
    assert value.value is not None
    assert value.low <= value.value <= value.high


def test_a_report_reads_back_from_its_json(
    results: list[ReplayResult], cost: PointsCost, tmp_path: Path
) -> None:
    read = ReadReport(files=1, formats={"openai": 2}, skipped=[SkippedLine("a", 3, "broken")])
    options = ReportOptions(paths=["a"], read=read, tokenizer={"tokenizer": "t"}, version="1")
    report = build_report(results, cost, options)
    path = tmp_path / "report.json"
    path.write_text(report.to_json())
    again = ReplayReport.load(path)
    assert again == report
    assert again.to_json() == report.to_json()
    assert again.run.skipped[0].line == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "schema_version is None"),
        ('{"schema_version": "suffixspec.replay/9"}', "suffixspec.replay/9"),
        ('{"schema_version": "suffixspec.replay/1"}', "run"),
    ],
)
def test_a_foreign_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        ReplayReport.load(path)


def test_results_of_different_plans_are_not_compared(
    results: list[ReplayResult], cost: PointsCost
) -> None:
    other = replay(ReplayPlan.build([session("a", turn([1], [2]))]), FakeProposer())
    with pytest.raises(InputError, match="different plans"):
        build_report([results[0], other], cost)
    with pytest.raises(InputError, match="no replay results"):
        build_report([], cost)


def test_a_replay_stopped_at_once_still_reports(plan: ReplayPlan, cost: PointsCost) -> None:
    def interrupted(context: list[int], prompt: int) -> Draft:
        raise KeyboardInterrupt

    method = build_report([replay(plan, FakeProposer(interrupted))], cost).methods[0]
    assert method.partial
    assert method.totals.steps == 0
    assert method.totals.tokens_per_step is None
    assert not (method.cold_to_warm)
    assert not (method.predicted)
    assert not method.sessions
    assert method.session_tokens_per_step is None


def test_buckets() -> None:
    edges = (0, 1, 2, 5)
    assert bucket_labels(edges) == ["0", "1", "2–4", "5+"]
    assert bucketed(np.array([0, 1, 2, 4, 5, 99]), edges).tolist() == [0, 1, 2, 2, 3, 3]


def test_intervals_are_seeded_and_cover_the_value() -> None:
    parts, wholes = [10, 30, 20, 0], [10, 10, 10, 0]
    first = ratio_interval(parts, wholes, samples=500, seed=1)
    assert first == ratio_interval(parts, wholes, samples=500, seed=1)
    assert first.value == 2.0
    assert first.low is not None
    assert first.high is not None
    assert 1.0 <= first.low < 2.0 < first.high <= 3.0
    assert ratio_interval([5], [2], samples=9, seed=0).low is None
    assert ratio_interval([], [], samples=9, seed=0).value is None


@st.composite
def random_results(draw: Any) -> list[ReplayResult]:
    outputs = st.lists(st.integers(0, 2), min_size=1, max_size=10)
    sessions = draw(st.lists(st.lists(outputs, min_size=1, max_size=3), min_size=1, max_size=4))
    built = [
        session(str(i), *[turn([1, 2], o, tool=draw(st.sampled_from([None, "t"]))) for o in turns])
        for i, turns in enumerate(sessions)
    ]
    rng = np.random.default_rng(draw(st.integers(0, 9)))

    def script(context: list[int], prompt: int) -> Draft:
        n = int(rng.integers(0, 5))
        source = Source.SESSION if n % 2 else Source.GLOBAL
        probs = np.sort(rng.random(n))[::-1].astype(np.float32)
        ids = rng.integers(0, 3, n).astype(np.int32)
        return Draft.path(ids, source=source, probs=probs, match_len=n * 3)

    plan = ReplayPlan.build(built, concurrency=draw(st.integers(1, 3)))
    return [replay(plan, FakeProposer(script))]


@given(random_results())
def test_every_breakdown_adds_up(results: list[ReplayResult]) -> None:
    cost = PointsCost(kind="points", name="p", provenance="x" * 20, points={1: 1.0, 9: 2.0})
    report = build_report(results, cost, ReportOptions(bootstrap_samples=20))
    method = report.methods[0]
    totals = method.totals
    assert totals.output_tokens == report.run.output_tokens
    assert totals.drafted == totals.accepted + totals.wasted
    assert 0 <= totals.steps + totals.accepted - totals.output_tokens <= report.run.turns
    assert method.sessions_completed == report.run.sessions
    for rows in (method.by_match_length, method.by_turn, method.by_tool, method.by_workload):
        for field in ("steps", "drafts", "output_tokens", "drafted", "accepted"):
            assert sum(getattr(r.counts, field) for r in rows) == getattr(totals, field)
    for field in ("steps", "output_tokens", "drafted"):
        counted = sum(getattr(s.counts, field) for s in method.sessions)
        assert counted == getattr(totals, field)
    assert sum(s.drafted for s in method.by_source) == totals.drafted
    assert sum(s.accepted for s in method.by_source) == totals.accepted
    assert sum(p.drafted for p in method.by_position) == totals.drafted
    assert sum(p.accepted for p in method.by_position) == totals.accepted
    assert all(p.accepted <= p.reached <= totals.drafts for p in method.by_position)
    assert sum(p.steps for p in method.cold_to_warm) == totals.steps
    assert sum(b.drafted for b in method.calibration.bins) == totals.drafted
    for row in method.predicted:
        assert row.speedup > 0
