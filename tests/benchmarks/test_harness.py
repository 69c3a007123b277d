"""Rows, header, registry and command line of the benchmarks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import harness
from benchmarks.harness import Context, Row, below, group, groups, header, in_turn, versus

KEYS = ["name", "ours", "peer", "ratio", "unit", "goal", "met"]


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    groups()  # the real ones, so that a test's own group cannot be mistaken for one of them
    monkeypatch.setattr(harness, "_GROUPS", dict(harness._GROUPS))


def test_ratio_is_the_advantage_in_both_directions() -> None:
    faster = versus("speed", 10.0, 2.0, "tokens/s", times=4)
    smaller = versus("size", 50.0, 200.0, "bytes", times=5, lower_is_better=True)
    assert (faster.ratio, faster.met, faster.goal) == (5.0, True, "≥ 4 ×")
    assert (smaller.ratio, smaller.met) == (4.0, False)


def test_rows_without_peer_or_goal_are_not_judged() -> None:
    assert versus("a", 1.0, None, "s", times=2).met is None
    assert versus("a", 1.0, 2.0, "s").met is None
    assert below("p99", 19.0, None, "µs", limit=20).met is True
    assert below("p99", None, 5.0, "µs", limit=20).met is None


def test_row_has_exactly_the_seven_keys() -> None:
    row = versus("a", 1.0, 2.0, "s")
    assert list(row.as_json()) == KEYS
    json.dumps(row.as_json())


def test_rivals_are_measured_in_turn_after_one_round_thrown_away() -> None:
    order: list[str] = []

    def rival(name: str) -> float:
        order.append(name)
        return float(len(order))

    samples = in_turn({"a": lambda: rival("a"), "b": lambda: rival("b")}, repeats=3)
    assert order == ["a", "b"] * 4
    assert samples["a"].values == (3.0, 5.0, 7.0)
    assert samples["a"].median == 5.0
    with pytest.raises(ValueError, match="repeats"):
        in_turn({}, repeats=0)


def test_groups_of_the_index_and_the_replay_are_found() -> None:
    assert {"index", "replay"} <= set(groups())


@pytest.mark.usefixtures("registry")
def test_two_modules_cannot_register_one_name() -> None:
    with pytest.raises(ValueError, match="'index' is registered"):
        group("index", "again")(lambda context: [])


def test_header_names_machine_versions_data_commit_and_date() -> None:
    head = header(Context())
    assert {"machine", "python", "versions", "data", "commit", "date"} <= set(head)
    assert {"cpu", "cores"} <= set(head["machine"])
    assert set(head["versions"]) == {"numpy", "numba", "suffixspec", "arctic-inference"}
    assert head["data"] == "none"
    json.dumps(head)


@pytest.mark.usefixtures("registry")
def test_command_writes_header_and_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    @group("test-only", "rows made up")
    def run(context: Context) -> list[Row]:
        return [
            versus("good", 6.0, 1.0, "x", times=5),
            versus("bad", 1.0, 1.0, "x", times=5),
        ]

    path = tmp_path / "made" / "rows.json"
    assert command.main(["test-only", "--json", str(path)]) == 0
    assert command.main(["test-only", "--strict"]) == 1
    document = json.loads(path.read_text())
    assert [list(row) for row in document["rows"]] == [KEYS, KEYS]
    assert [row["met"] for row in document["rows"]] == [True, False]
    assert "good" in capsys.readouterr().out


def test_command_refuses_unknown_groups(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["no-such-group"])
    assert "unknown group no-such-group; known:" in capsys.readouterr().err
