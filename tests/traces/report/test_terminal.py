"""The tables of the terminal."""

from __future__ import annotations

from rich.console import Console

from suffixspec_traces.cost import PointsCost
from suffixspec_traces.replay import ReplayPlan, ReplayResult, replay
from suffixspec_traces.report import build_report
from suffixspec_traces.report.terminal import report_tables
from tests.traces.fake_proposer import FakeProposer, counting, session, turn


def printed(results: list[ReplayResult], cost: PointsCost, width: int = 140) -> str:
    console = Console(width=width, record=True, file=None, quiet=False, color_system=None)
    with console.capture() as capture:
        console.print(report_tables(build_report(results, cost)))
    return capture.get()


def test_methods_stand_side_by_side(results: list[ReplayResult], cost: PointsCost) -> None:
    text = printed(results, cost)
    line = next(row for row in text.splitlines() if "tokens per step" in row)
    assert "2.00" in line
    assert "1.00" in line
    for title in ("By workload", "By source", "By match length", "By turn", "speed-up"):
        assert title in text
    assert "* some steps are larger" in text
    assert "made up for the tests of reports" in text


def test_text_of_a_trace_cannot_reach_the_terminal(cost: PointsCost) -> None:
    hostile = "\x1b[2J[bold red]tool[/bold red]\u202e"
    plan = ReplayPlan.build([session(hostile, turn([1], [2, 3], tool=hostile), source=hostile)] * 2)
    text = printed([replay(plan, FakeProposer(counting(2)), label=hostile)], cost)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[bold red]tool[/bold red]" in text.replace("\n", "")


def test_long_lists_are_cut_and_say_so(cost: PointsCost) -> None:
    turns = [turn([1], [2, 3], tool=f"tool{i}") for i in range(40)]
    plan = ReplayPlan.build([session("a", *turns)])
    text = printed([replay(plan, FakeProposer(counting(1)))], cost)
    assert "the 15 largest of 40" in text


def test_an_empty_replay_still_prints(plan: ReplayPlan, cost: PointsCost) -> None:
    def interrupted(context: list[int], prompt: int) -> None:
        raise KeyboardInterrupt

    result = replay(plan, FakeProposer(interrupted))  # type: ignore[arg-type]
    assert "Partial: stopped before the end." in printed([result], cost)
