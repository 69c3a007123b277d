"""Recording sessions: scripted agents with real tools, their words written by a model."""

from __future__ import annotations

from suffixspec_index.errors import ConfigError
from suffixspec_traces.record import coding, sql, support
from suffixspec_traces.record.base import Environment, Step, Task, TaskMaker, TextModel, ToolFailure
from suffixspec_traces.record.journal import RecordingJournal
from suffixspec_traces.record.loop import Recorder
from suffixspec_traces.record.writer import session_record, write_records, write_sessions

WORKLOADS: dict[str, TaskMaker] = {
    "coding": coding.make_task,
    "sql": sql.make_task,
    "support": support.make_task,
}

__all__ = [
    "WORKLOADS",
    "Environment",
    "Recorder",
    "RecordingJournal",
    "Step",
    "Task",
    "TaskMaker",
    "TextModel",
    "ToolFailure",
    "make_tasks",
    "session_record",
    "write_records",
    "write_sessions",
]


def make_tasks(workload: str, count: int, *, seed: int = 0) -> list[Task]:
    """``count`` tasks of a workload; equal arguments give equal tasks.

    Raises:
        ConfigError: the workload does not exist, or ``count`` is below 1.
    """
    maker = WORKLOADS.get(workload)
    if maker is None:
        raise ConfigError(
            f"workload {workload!r} does not exist; choose from {', '.join(WORKLOADS)}"
        )
    if count < 1:
        raise ConfigError(f"sessions is {count}; it must be at least 1")
    return [maker(seed, number) for number in range(count)]
