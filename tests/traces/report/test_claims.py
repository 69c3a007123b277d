"""Probabilities before learning: ratios of counts against counting strings, claims as they were."""

from __future__ import annotations

import numpy as np

from suffixspec_index.depth import create_depth_rule
from suffixspec_index.proposers import create_proposer
from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_traces.cost import PointsCost
from suffixspec_traces.model import TokenSession
from suffixspec_traces.replay import ReplayPlan, ReplayResult, Step, replay
from suffixspec_traces.report import ReplayReport, build_report
from suffixspec_traces.report.claims import DEPTH, claims_of
from tests.traces.fake_proposer import session, turn


def _sessions(seed: int, count: int = 5) -> list[TokenSession]:
    """Sessions that repeat some phrases of a small vocabulary."""
    random = np.random.default_rng(seed)
    phrases = [random.integers(0, 30, 7).tolist() for _ in range(5)]

    def text(n: int) -> list[int]:
        return [t for i in random.integers(0, 5, n) for t in phrases[i]]

    return [session(f"s{i}", turn(text(6), text(8)), turn(text(9), text(8))) for i in range(count)]


def _decoded(values: dict[str, object], cost: PointsCost, *, depth: bool = True) -> ReplayResult:
    config = SpeculativeConfig.from_dict(values)
    rule = create_depth_rule(config, cost) if depth else None
    plan = ReplayPlan.build(_sessions(3), concurrency=1)
    return replay(plan, create_proposer(config, vocab_size=30), depth=rule)


def _occurrences(texts: list[list[int]], wanted: list[int]) -> int:
    n = len(wanted)
    return sum(text[i : i + n] == wanted for text in texts for i in range(len(text) - n + 1))


def _visible(context: list[int], wanted: int) -> list[int]:
    """What of an open sequence a tree of windows counts for strings of that length."""
    return context[: max(len(context) - DEPTH + wanted, 0)]


def test_ratios_are_those_of_counting_strings(cost: PointsCost) -> None:
    result = _decoded({"method": "suffix", "dynamic": False}, cost, depth=False)
    found = claims_of(result)
    assert found.basis == "ratios of counts"
    log, plan = result.log, result.plan
    assert len(found.nodes) > 100
    step_of = np.searchsorted(log.node_offsets, found.nodes, side="right") - 1
    checked = 0
    for node, ratio, step in zip(found.nodes, found.probs, step_of, strict=True):
        if log.node_parents[node] >= 0:
            continue
        planned = plan.turns[log.column(Step.TURN)[step]]
        at = planned.start + int(log.column(Step.POSITION)[step])
        context = [*planned.turn.prompt.tolist(), *plan.outputs[planned.start : at].tolist()]
        ended = [
            plan.outputs[t.start : t.end].tolist() for t in plan.turns if t.end <= planned.start
        ]
        candidates = []
        for texts in ([context], ended):
            length = min(DEPTH - 1, len(context))
            own = texts is not ended

            def count(wanted: list[int], texts: list[list[int]] = texts, own: bool = own) -> int:
                shown = [_visible(t, len(wanted)) for t in texts] if own else texts
                return _occurrences(shown, wanted)

            while length and not count(context[-length:]):
                length -= 1
            if length:
                match = context[-length:]
                candidates.append(count([*match, int(log.node_tokens[node])]) / count(match))
        assert any(abs(ratio - c) < 1e-6 for c in candidates)
        checked += 1
    assert checked > 30


def test_learning_makes_an_n_grams_claims_true(cost: PointsCost) -> None:
    result = _decoded({"method": "ngram", "num_speculative_tokens": 8}, cost)
    found = claims_of(result)
    assert found.basis == "as claimed"
    assert (found.probs == 1.0).all()
    assert (result.log.node_probs < 1.0).any()
    report = build_report([result], cost)
    before = report.methods[0].calibration_before
    assert before is not None
    assert before.draft_tokens == report.methods[0].totals.drafted
    assert before.after == report.methods[0].calibration
    accepted = result.log.node_accepted.mean()
    assert before.before.expected_calibration_error is not None
    assert abs(before.before.expected_calibration_error - (1 - accepted)) < 1e-6


def test_fixed_depth_claims_what_it_judges_by(cost: PointsCost) -> None:
    result = _decoded(
        {"method": "ngram", "num_speculative_tokens": 8, "dynamic": False}, cost, depth=False
    )
    assert np.array_equal(result.log.node_claims, result.log.node_probs)


def test_a_report_without_it_still_reads(cost: PointsCost) -> None:
    report = build_report([_decoded({"method": "suffix"}, cost)], cost)
    text = report.model_dump(mode="json")
    assert ReplayReport.model_validate(text) == report
    for method in text["methods"]:
        del method["calibration_before"]
    assert ReplayReport.model_validate(text).methods[0].calibration_before is None
