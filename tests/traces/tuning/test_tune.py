"""Tuning as a whole, on made-up sessions."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from suffixspec_index.errors import CapacityError, ConfigError, InputError
from suffixspec_traces.tuning import (
    Halt,
    Parts,
    SearchOptions,
    TuningHead,
    TuningReport,
    TuningTask,
    tune,
)
from suffixspec_traces.tuning.evaluate import Bench, Score
from suffixspec_traces.tuning.space import VLLM_DEFAULT
from suffixspec_traces.tuning.workers import result_of
from tests.traces.tuning.talk import FLAT, STEEP, VOCABULARY, talks

TASK = TuningTask(Parts.split(talks(8)), FLAT, "flat", VOCABULARY)
SMALL = SearchOptions((1,), trials=11, sensitivity=False)
HEAD = TuningHead()


def test_every_rival_is_judged_and_tuning_wins(report: TuningReport) -> None:
    assert report.run.ended == "complete"
    assert [c.concurrency for c in report.concurrencies] == [1, 4]
    for one in report.concurrencies:
        assert one.complete
        assert [r.role for r in one.rows] == [
            "tuned",
            "tuned, paths only",
            "tuned, as vLLM has it",
            "best n-gram",
            "vLLM's defaults",
            "our defaults",
            "no speculation",
        ]
        assert (one.verdict, one.recommended) == ("pays", "tuned")
        assert one.sentence.startswith("Speculation pays at")
        fastest = min(r.ms_per_token for r in one.rows)
        assert one.rows[0].ms_per_token == pytest.approx(fastest, rel=0.05)


def test_figures_belong_together(report: TuningReport) -> None:
    for one in report.concurrencies:
        tuned = one.rows[0]
        for row in one.rows:
            assert row.speedup.value == pytest.approx(one.plain_ms_per_token / row.ms_per_token)
            assert row.gain_of_tuned.value == pytest.approx(row.ms_per_token / tuned.ms_per_token)
            for interval in (row.speedup, row.gain_of_tuned):
                assert interval.value is not None
                assert interval.low is not None
                assert interval.high is not None
                assert interval.low <= interval.value <= interval.high
        assert any(t.on_front for t in one.trials)
        spreads = [row.spread for row in one.sensitivity]
        assert spreads == sorted(spreads, reverse=True)
        assert all(r.reference in [p.value for p in r.points] for r in one.sensitivity)


def test_the_report_reads_back(report: TuningReport, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text(report.to_json())
    assert TuningReport.load(file) == report
    file.write_text(report.to_json().replace("suffixspec.tuning/1", "suffixspec.tuning/0"))
    with pytest.raises(InputError, match="schema_version"):
        TuningReport.load(file)
    file.write_text('{"schema_version": "suffixspec.tuning/1"}')
    with pytest.raises(InputError, match="run"):
        TuningReport.load(file)
    with pytest.raises(InputError, match="cannot be read"):
        TuningReport.load(tmp_path / "none")


def test_it_says_when_speculation_does_not_pay() -> None:
    # Noise cannot be predicted, and every token that is verified costs a whole step.
    task = TuningTask(Parts.split(talks(10, repetitive=False)), STEEP, "steep", VOCABULARY)
    made = tune(task, SearchOptions((8,), trials=11, sensitivity=False), HEAD)
    assert made is not None
    (one,) = made.concurrencies
    assert one.verdict == "does not pay"
    assert one.recommended == "no speculation"
    assert "does not pay at 8 requests at a time" in one.sentence
    assert "Switch it off" in one.sentence
    assert one.rows[0].speedup.high is not None
    assert one.rows[0].speedup.high < 1
    assert "method: none" in one.pastes[0].text


def test_one_held_out_session_gives_no_verdict() -> None:
    task = TuningTask(Parts.split(talks(4)), FLAT, "flat", VOCABULARY)
    assert len(task.parts.held_out) == 1
    made = tune(task, SMALL, HEAD)
    assert made is not None
    assert made.concurrencies[0].verdict == "undecided"
    assert made.concurrencies[0].rows[0].speedup.low is None


def test_interrupted_it_reports_what_it_knows() -> None:
    halt = Halt()
    counted = itertools.count()

    def after_four(done: int, planned: int, text: str) -> None:
        if next(counted) == 4:
            halt.set()

    made = tune(TASK, SMALL, HEAD, halt=halt, progress=after_four)
    assert made is not None
    assert made.run.ended == "interrupted"
    assert len(made.concurrencies[0].trials) == 4
    assert made.concurrencies[0].complete


def test_interrupted_at_once_there_is_no_report() -> None:
    halt = Halt()
    halt.set()
    assert tune(TASK, SMALL, HEAD, halt=halt) is None


def test_a_judgement_can_be_stopped() -> None:
    stop = threading.Event()

    def at_the_third(done: int, planned: int, text: str) -> None:
        if text.startswith("judging tuned, as vLLM"):
            stop.set()

    made = tune(TASK, SMALL, HEAD, stop_judging=stop, progress=at_the_third)
    assert made is not None
    assert made.run.ended == "interrupted"
    (one,) = made.concurrencies
    assert not one.complete
    assert one.rows[0].role == "tuned"
    assert one.rows[-1].role == "no speculation"
    assert len(one.rows) < 7


def test_the_time_limit_ends_the_search() -> None:
    made = tune(TASK, SearchOptions((1,), trials=5000), HEAD, halt=Halt(timeout_s=0.5))
    assert made is not None
    assert made.run.ended == "timeout"
    assert 0 < len(made.concurrencies[0].trials) < 5000


def test_processes_try_the_same_as_one(tmp_path: Path) -> None:
    storage = str(tmp_path / "journal")
    made = tune(TASK, SMALL, HEAD, workers=2, storage=storage)
    assert made is not None
    again = tune(TASK, SMALL, HEAD, storage=storage)  # all is known already
    assert again is not None
    assert again.run.found_before == 11
    tried = [[(t.values, t.ms_per_token) for t in x.concurrencies[0].trials] for x in (made, again)]
    assert tried[0] == tried[1]
    score = Bench(TASK.parts, FLAT, VOCABULARY).evaluate(VLLM_DEFAULT, 1)
    assert score is not None
    assert score.ms_per_token in [ms for _, ms in tried[0]]


def test_a_process_that_dies_is_reported() -> None:
    future: Future[Score | None] = Future()
    future.set_exception(BrokenProcessPool("died"))
    with pytest.raises(CapacityError, match="use fewer"):
        result_of(future, Halt())


@pytest.mark.parametrize("workers", [0, -1])
def test_wrong_numbers_of_workers_are_refused(workers: int) -> None:
    with pytest.raises(ConfigError, match="workers"):
        tune(TASK, SMALL, HEAD, workers=workers)


def test_the_identity_names_what_trials_depend_on() -> None:
    one = TASK.identity("1.0")
    assert one == TuningTask(Parts.split(talks(8)), FLAT, "other-name").identity("1.0")
    # Another held-out session changes no trial.
    assert one == TuningTask(Parts.split(talks(9)), FLAT, "flat").identity("1.0")
    others = {
        TASK.identity("1.1"),
        TuningTask(TASK.parts, STEEP, "flat").identity("1.0"),
        TuningTask(Parts.split(talks(10)), FLAT, "flat").identity("1.0"),
    }
    assert len(others | {one}) == 4
