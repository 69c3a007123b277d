from __future__ import annotations

from collections.abc import Iterator

import pytest

from suffixspec_traces.record import WORKLOADS, Task, ToolFailure, make_tasks
from suffixspec_traces.record.functions import EXERCISES


@pytest.fixture
def tasks() -> Iterator[dict[str, Task]]:
    made = {name: make_tasks(name, 1, seed=7)[0] for name in WORKLOADS}
    yield made
    for task in made.values():
        task.environment.close()


@pytest.mark.parametrize("workload", WORKLOADS)
def test_tasks_are_seeded_and_varied(workload: str) -> None:
    def outline(seed: int) -> list[list[tuple[str, str]]]:
        made = make_tasks(workload, 6, seed=seed)
        for task in made:
            task.environment.close()
        return [[(s.user, s.follow_up) for s in task.steps] for task in made]

    first = outline(1)
    assert first == outline(1)
    assert first != outline(2)
    assert len({str(task) for task in first}) == 6


@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_scripted_call_works(workload: str) -> None:
    for task in make_tasks(workload, 12, seed=4):
        results = [task.environment.call(s.tool, s.arguments) for s in task.steps]
        task.environment.close()
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


def test_unknown_tools_and_wrong_arguments(tasks: dict[str, Task]) -> None:
    for task in tasks.values():
        with pytest.raises(ToolFailure, match="no tool 'fly'"):
            task.environment.call("fly", {})
    with pytest.raises(ToolFailure, match="'path' is required"):
        tasks["coding"].environment.call("read_file", {"path": 3})
    with pytest.raises(ToolFailure, match="'sql' is required"):
        tasks["sql"].environment.call("run_query", {})
    with pytest.raises(ToolFailure, match="no order W1"):
        tasks["support"].environment.call("get_order", {"order_id": "W1"})


@pytest.mark.parametrize("path", ["../x.py", "/etc/passwd", "a/b.py"])
def test_files_outside_the_project(tasks: dict[str, Task], path: str) -> None:
    for tool, arguments in (("read_file", {}), ("write_file", {"content": "x"})):
        with pytest.raises(ToolFailure, match="not a file of this project"):
            tasks["coding"].environment.call(tool, {"path": path, **arguments})


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
def test_queries_can_only_read(tasks: dict[str, Task], sql: str) -> None:
    with pytest.raises(ToolFailure, match="error"):
        tasks["sql"].environment.call("run_query", {"sql": sql})


def test_endless_queries_are_stopped(
    tasks: dict[str, Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("suffixspec_traces.record.sql._SECONDS", 0.05)
    sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n"
    with pytest.raises(ToolFailure, match="interrupted"):
        tasks["sql"].environment.call("run_query", {"sql": sql})


def test_support_changes_stay(tasks: dict[str, Task]) -> None:
    shop = tasks["support"].environment
    order_id = tasks["support"].steps[0].arguments["order_id"]
    shop.call("change_address", {"order_id": order_id, "address": "1 New Street"})
    assert "1 New Street" in shop.call("get_order", {"order_id": order_id})
