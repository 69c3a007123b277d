"""ATIF, the Agent Trajectory Interchange Format of Harbor (versions 1.x).

Steps of source ``agent`` are the model's, except those copied from an earlier trajectory
(``is_copied_context``) and those made without a model (``llm_call_count: 0``). Token ids are kept
where ``metrics`` holds them. Embedded sub-agents are sessions of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

from suffixspec_traces.model import Message, Role, Session
from suffixspec_traces.readers.base import TraceReader, register
from suffixspec_traces.readers.messages import (
    as_generated,
    content_text,
    tool_calls,
    tool_definitions,
)
from suffixspec_traces.readers.nodes import Node
from suffixspec_traces.readers.source import Sample, Source

_SOURCES: dict[str, Role] = {"system": "system", "user": "user", "agent": "assistant"}


@register
class ATIFReader(TraceReader):
    """Reads ATIF trajectories."""

    name = "atif"
    description = "ATIF trajectories (Harbor, VS Code Copilot), with token ids where present"
    empty_hint = "no step has the source agent"

    def sniff(self, sample: Sample) -> bool:
        """An object with ``steps``, ``agent`` and a ``schema_version``."""
        return any(
            isinstance(o.get("steps"), list) and "schema_version" in o and "agent" in o
            for o in sample.objects()
        )

    def read(self, source: Source) -> Iterator[Session]:
        """Yield each trajectory, then the sub-agents embedded in it."""
        for record in source.items():
            with source.checked(record.line):
                yield from self._trajectories(record.node, source, record.line)

    def _trajectories(self, root: Node, source: Source, line: int | None) -> Iterator[Session]:
        waiting = [(root, root["session_id"].label() or source.stem)]
        while waiting:
            node, name = waiting.pop(0)
            agent = node["agent"]
            messages = [message for step in node["steps"].elements() for message in _step(step)]
            yield Session(
                id=name,
                messages=tuple(messages),
                source=source.stem,
                model=agent.first("model_name", "model").optional_text(),
                format=self.name,
                tools=tool_definitions(agent["tool_definitions"]),
                path=source.path,
                line=line,
            )
            embedded = node["subagent_trajectories"].elements_if_any()
            for number, child in enumerate(embedded, start=1):
                label = child.first("trajectory_id", "session_id").label() or number
                waiting.append((child, f"{name}/{label}"))


def _step(step: Node) -> list[Message]:
    origin = step["source"].text()
    if origin not in _SOURCES:
        step["source"].fail(f"unknown source {origin[:40]!r}; expected system, user or agent")
    timestamp = step["timestamp"].timestamp()
    content = content_text(step["message"])
    results = _results(step["observation"], timestamp)
    if origin != "agent":
        # a system step with an observation is a result under a label of the framework's
        said = [] if results else [Message(_SOURCES[origin], content, timestamp=timestamp)]
        return said + results
    metrics = step["metrics"] if "metrics" in step else Node({}, step, "metrics")
    message = Message(
        "assistant",
        content or None,
        tool_calls=tool_calls(step["tool_calls"]),
        reasoning=step["reasoning_content"].optional_text(),
        timestamp=timestamp,
        prompt_token_ids=metrics["prompt_token_ids"].token_ids(),
        token_ids=metrics["completion_token_ids"].token_ids(),
    )
    by_model = step["llm_call_count"].value != 0 and not step["is_copied_context"].flag(False)
    return [as_generated(message, by_model), *results]


def _results(observation: Node, timestamp: float | None) -> list[Message]:
    if observation.value is None:
        return []
    if "results" not in observation:  # one result without the list around it
        return [_result(observation, timestamp)] if "content" in observation else []
    return [_result(result, timestamp) for result in observation["results"].elements()]


def _result(result: Node, timestamp: float | None) -> Message:
    content = result["content"]
    if isinstance(content.value, dict):
        text: str | None = content.json_text()
    else:
        text = content_text(content, separator="\n")
    call_id = result["source_call_id"].label()
    return Message("tool", text, tool_call_id=call_id, timestamp=timestamp)
