from __future__ import annotations

from collections.abc import Iterator

import pytest

from suffixspec_traces.record import WORKLOADS, Environment, ToolFailure, make_tasks
from suffixspec_traces.record.functions import EXERCISES


@pytest.fixture
def worlds() -> Iterator[dict[str, Environment]]:
    made = {name: make_tasks(name, 1, seed=7)[0].open_environment() for name in WORKLOADS}
    yield made
    for environment in made.values():
        environment.close()


@pytest.mark.parametrize("workload", WORKLOADS)
def test_tasks_are_seeded_and_varied(workload: str) -> None:
    def outline(seed: int) -> list[list[tuple[str, str]]]:
        made = make_tasks(workload, 6, seed=seed)
        return [[(s.user, s.follow_up) for s in task.steps] for task in made]

    first = outline(1)
    assert first == outline(1)
    assert first != outline(2)
    assert len({str(task) for task in first}) == 6


@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_scripted_call_works(workload: str) -> None:
    for task in make_tasks(workload, 12, seed=4):
        environment = task.open_environment()
        results = [environment.call(s.tool, s.arguments) for s in task.steps]
        environment.close()
        assert all(results)
        if workload == "coding":
            assert results[1].endswith("failed")
            assert results[3].endswith("all passed")


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.name)
def test_exercises_tell_right_from_wrong(exercise: object) -> None:
    assert isinstance(exercise, type(EXERCISES[0]))
    right: dict[str, object] = {}
    wrong: dict[str, object] = {}
    exec(exercise.code, right)
    exec(exercise.faulty, wrong)
    assert all(eval(check, right) for check in exercise.checks)

    def holds(check: str) -> bool:
        try:
            return bool(eval(check, wrong))
        except Exception:
            return False

    assert not all(holds(check) for check in exercise.checks)


def test_unknown_tools_and_wrong_arguments(worlds: dict[str, Environment]) -> None:
    for environment in worlds.values():
        with pytest.raises(ToolFailure, match="no tool 'fly'"):
            environment.call("fly", {})
    with pytest.raises(ToolFailure, match="'path' is required"):
        worlds["coding"].call("read_file", {"path": 3})
    with pytest.raises(ToolFailure, match="'sql' is required"):
        worlds["sql"].call("run_query", {})
    with pytest.raises(ToolFailure, match="no order W1"):
        worlds["support"].call("get_order", {"order_id": "W1"})


@pytest.mark.parametrize("path", ["../x.py", "/etc/passwd", "a/b.py"])
def test_files_outside_the_project(worlds: dict[str, Environment], path: str) -> None:
    for tool, arguments in (("read_file", {}), ("write_file", {"content": "x"})):
        with pytest.raises(ToolFailure, match="not a file of this project"):
            worlds["coding"].call(tool, {"path": path, **arguments})


@pytest.mark.parametrize(
    "sql",
    [
        "DROP TABLE sqlite_master",
        "DELETE FROM sqlite_master",
        "ATTACH DATABASE '/tmp/x.db' AS x",
        "PRAGMA query_only = 0",
        "SELECT load_extension('x')",
        "SELECT 1; SELECT 2",
        "nonsense",
    ],
)
def test_queries_can_only_read(worlds: dict[str, Environment], sql: str) -> None:
    with pytest.raises(ToolFailure, match="error"):
        worlds["sql"].call("run_query", {"sql": sql})


def test_endless_queries_are_stopped(
    worlds: dict[str, Environment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("suffixspec_traces.record.sql._SECONDS", 0.05)
    sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n"
    with pytest.raises(ToolFailure, match="interrupted"):
        worlds["sql"].call("run_query", {"sql": sql})


def test_support_changes_stay(worlds: dict[str, Environment]) -> None:
    shop = worlds["support"]
    order_id = make_tasks("support", 1, seed=7)[0].steps[0].arguments["order_id"]
    shop.call("change_address", {"order_id": order_id, "address": "1 New Street"})
    assert "1 New Street" in shop.call("get_order", {"order_id": order_id})
    fresh = make_tasks("support", 1, seed=7)[0].open_environment()
    assert "1 New Street" not in fresh.call("get_order", {"order_id": order_id})
