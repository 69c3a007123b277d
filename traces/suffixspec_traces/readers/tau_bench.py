"""tau-bench result files: a list of tasks, each with its trajectory of OpenAI chat messages."""

from __future__ import annotations

from collections.abc import Iterator

from suffixspec_traces.model import Session
from suffixspec_traces.readers.base import TraceReader, register
from suffixspec_traces.readers.messages import openai_message
from suffixspec_traces.readers.source import Sample, Source


@register
class TauBenchReader(TraceReader):
    """Reads tau-bench results, one session per task and trial."""

    name = "tau_bench"
    description = "tau-bench results (task_id, traj, reward)"
    empty_hint = "every trajectory is empty, as tau-bench writes them for tasks that failed to run"

    def sniff(self, sample: Sample) -> bool:
        """Objects with ``task_id`` and a ``traj`` list."""
        return any("task_id" in o and isinstance(o.get("traj"), list) for o in sample.objects())

    def read(self, source: Source) -> Iterator[Session]:
        """Yield one session per task and trial; tasks that did not run hold none."""
        for record in source.items():
            with source.checked(record.line):
                node = record.node
                messages = tuple(openai_message(m) for m in node["traj"].elements())
                if not messages:
                    continue
                task, trial = node["task_id"].label(), node["trial"].label()
                yield Session(
                    id=f"{task}-{trial or 0}",
                    messages=messages,
                    source=source.stem,
                    format=self.name,
                    path=source.path,
                    line=record.line,
                )
