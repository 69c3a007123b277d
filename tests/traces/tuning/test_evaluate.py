from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest

from suffixspec_traces.cost import DecodeWork, PointsCost, predict
from suffixspec_traces.replay import ReplayPlan, replay
from suffixspec_traces.report import build_report
from suffixspec_traces.tuning.evaluate import Bench, BenchRecipe, score
from suffixspec_traces.tuning.space import NGRAM, SUFFIX
from suffixspec_traces.tuning.split import Parts, output_tokens
from tests.traces.fake_proposer import FakeProposer, counting
from tests.traces.tuning.talk import FLAT, STEEP, VOCABULARY, talks

NGRAM_CONFIG = NGRAM.config(NGRAM.starts[0])
CONTEXT = PointsCost(
    kind="points",
    name="context",
    provenance="made up: context costs too",
    points={1: 10, 65: 30},
    ms_per_1000_context_tokens=40,
)


@pytest.mark.parametrize("concurrency", [1, 3])
def test_figures_are_those_of_the_replay_report(concurrency: int) -> None:
    plan = ReplayPlan.build(talks(5), concurrency=concurrency)
    result = replay(plan, FakeProposer(counting(3)))
    found = score(result, CONTEXT, concurrency)
    method = build_report([result], CONTEXT).methods[0]
    row = method.predicted_at(concurrency)
    assert row is not None
    assert found.plain_ms_per_token == pytest.approx(row.plain_ms_per_token)
    assert found.ms_per_token == pytest.approx(row.ms_per_token - row.proposer_ms_per_token)
    # The longest hundredth of the steps is cut here.
    assert 0 < found.proposer_ms_per_token <= row.proposer_ms_per_token
    assert (found.steps, found.drafted) == (method.totals.steps, method.totals.drafted)
    assert found.wasted_per_token == method.totals.wasted / method.totals.output_tokens
    assert found.tokens_per_step == method.totals.tokens_per_step


def test_an_interrupted_step_does_not_count() -> None:
    plan = ReplayPlan.build(talks(20), concurrency=1)
    result = replay(plan, FakeProposer(counting(1)))
    before = score(result, FLAT, 1)
    result.log.propose_ns[:: len(result.log) // 4] += 50_000_000
    after = score(result, FLAT, 1)
    assert after.proposer_ms_per_token < 1.5 * before.proposer_ms_per_token
    assert after.ms_per_token == before.ms_per_token


@pytest.mark.parametrize("concurrency", [1, 4])
def test_sessions_add_up_to_the_whole(concurrency: int) -> None:
    plan = ReplayPlan.build(talks(5), concurrency=concurrency)
    found = score(replay(plan, FakeProposer(counting(2))), CONTEXT, concurrency)
    tokens = found.output_tokens
    assert found.plain_ms.sum() == pytest.approx(tokens * found.plain_ms_per_token)
    assert found.spent_ms.sum() == pytest.approx(tokens * found.total_ms_per_token)
    assert len(found.plain_ms) == 5


def test_only_the_part_in_question_is_counted_behind_a_warm_index() -> None:
    parts = Parts.split(talks(12))
    bench = Bench(parts, FLAT, VOCABULARY)
    config = SUFFIX.config(SUFFIX.starts[0])
    trial = bench.evaluate(config, 1)
    judged = bench.evaluate(config, 1, "judgement")
    cold = Bench(Parts((), parts.held_out, (), parts.held_out), FLAT, VOCABULARY)
    cold_trial = cold.evaluate(config, 1)
    assert trial is not None
    assert judged is not None
    assert cold_trial is not None
    assert trial.output_tokens == output_tokens(parts.tuning)
    assert judged.output_tokens == cold_trial.output_tokens == output_tokens(parts.held_out)
    assert judged.tokens_per_step > 1.2 * cold_trial.tokens_per_step


def test_the_objectives_repeat_exactly() -> None:
    config = SUFFIX.config(SUFFIX.starts[1])  # dynamic
    scores = [Bench(Parts.split(talks(8)), FLAT, VOCABULARY).evaluate(config, 2) for _ in range(2)]
    assert scores[0] is not None
    assert scores[1] is not None
    assert scores[0].ms_per_token == scores[1].ms_per_token
    assert scores[0].wasted_per_token == scores[1].wasted_per_token


def test_dynamic_drafts_follow_the_costs() -> None:
    config = SUFFIX.config(SUFFIX.starts[1])
    parts = Parts.split(talks(12, repetitive=False))
    drafted = []
    for cost in (FLAT, STEEP):
        found = Bench(parts, cost, VOCABULARY).evaluate(config, 4)
        assert found is not None
        drafted.append(found.drafted / found.steps)
    assert drafted[0] > 2 * drafted[1]


def test_a_stopped_trial_has_no_score() -> None:
    stop = threading.Event()
    stop.set()
    bench = Bench(Parts.split(talks(6)), FLAT, VOCABULARY)
    for n in (1, 4):
        assert bench.evaluate(NGRAM_CONFIG, n, stop=stop) is None


def test_a_recipe_makes_the_same_bench_elsewhere() -> None:
    parts = Parts.split(talks(8), trial_tokens=400)
    recipe = pickle.loads(pickle.dumps(BenchRecipe.of(parts, FLAT, VOCABULARY)))
    for phase in ("trial", "judgement"):
        here = Bench(parts, FLAT, VOCABULARY).evaluate(NGRAM_CONFIG, 2, phase)
        there = recipe.bench().evaluate(NGRAM_CONFIG, 2, phase)
        assert here is not None
        assert (here.ms_per_token, here.drafted) == (there.ms_per_token, there.drafted)


def test_passes_whose_drafts_were_chosen_together_are_priced_as_they_were() -> None:
    """Two requests in a pass stand for 8: four times the tokens and the context."""
    work = DecodeWork(
        tokens=9,
        drafted=np.array([3, 0, 2, 2], np.int32),
        step_context=np.array([100, 200, 110, 201]),
        token_context=150.0,
        overhead_ms=0.0,
        batch=np.array([5, 5, 6, 6], np.int32),
    )
    passes = [float(CONTEXT.step_ms(4 * t, 4 * c, 8)) for t, c in ((5, 300), (6, 311))]
    expected = np.mean(passes) / (9 / 4)
    assert predict(CONTEXT, work, 8).ms_per_token == pytest.approx(expected)


def test_no_speculation_costs_what_plain_decoding_does() -> None:
    plan = ReplayPlan.build(talks(3), concurrency=1)
    result = replay(plan, FakeProposer())
    found = score(result, CONTEXT, 1)
    assert found.ms_per_token == pytest.approx(found.plain_ms_per_token)
