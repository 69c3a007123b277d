"""SWE-agent trajectories (``.traj``): ``history`` is what the model saw, ``trajectory`` its steps.

Demonstrations at the head of the history (``is_demo``) were written by somebody else before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from suffixspec_traces.model import Message, Session
from suffixspec_traces.readers.base import TraceReader, register
from suffixspec_traces.readers.messages import as_generated, openai_message
from suffixspec_traces.readers.nodes import Node
from suffixspec_traces.readers.source import Sample, Source


@register
class SWEAgentReader(TraceReader):
    """Reads SWE-agent trajectories, one session per attempt."""

    name = "swe_agent"
    description = "SWE-agent trajectories (.traj)"
    empty_hint = "the trajectory holds no step of the model"

    def sniff(self, sample: Sample) -> bool:
        """An object with a list of steps under ``trajectory``, or ``attempts`` of such."""
        return any(_is_attempt(item) for o in sample.objects() for item in (o, *_attempts(o)))

    def read(self, source: Source) -> Iterator[Session]:
        """Yield one session per attempt."""
        for record in source.items():
            with source.checked(record.line):
                attempts = list(record.node["attempts"].elements_if_any()) or [record.node]
                for number, attempt in enumerate(attempts, start=1):
                    model = _model(attempt) or _model(record.node)
                    yield Session(
                        id=source.stem if len(attempts) == 1 else f"{source.stem}#{number}",
                        messages=tuple(_messages(attempt)),
                        source=source.stem,
                        model=model,
                        format=self.name,
                        path=source.path,
                        line=record.line,
                    )


def _messages(attempt: Node) -> list[Message]:
    history = [_history_message(entry) for entry in attempt["history"].elements_if_any()]
    if any(message.generated for message in history):
        return history
    return _from_steps(attempt["trajectory"])


def _history_message(entry: Node) -> Message:
    demo = entry["is_demo"].flag(False)
    message = openai_message(entry, generated=not demo)
    if message.role == "tool" and message.tool_call_id is None:
        ids = [node.text() for node in entry["tool_call_ids"].elements_if_any()]
        return dataclasses.replace(message, tool_call_id=ids[0] if ids else None)
    thoughts = [block["thinking"] for block in entry["thinking_blocks"].elements_if_any()]
    if message.role == "assistant" and thoughts:
        text = "".join(thought.optional_text() or "" for thought in thoughts)
        return dataclasses.replace(message, reasoning=text or None)
    return message


def _from_steps(steps: Node) -> list[Message]:
    """The conversation as the steps tell it, where no history was kept."""
    messages: list[Message] = []
    for step in steps.elements():
        if not messages and isinstance(step["query"].value, list):
            messages.extend(openai_message(m, generated=False) for m in step["query"].elements())
        messages.append(as_generated(Message("assistant", step["response"].optional_text())))
        observation = step["observation"].optional_text()
        if observation:
            messages.append(Message("user", observation))
    return messages


def _model(attempt: Node) -> str | None:
    """``replay_config.agent.model.name``; the configuration may be a text of JSON."""
    node = attempt["replay_config"].decoded()
    for key in ("agent", "model", "name"):
        if not isinstance(node.value, dict):
            return None
        node = node[key]
    return node.optional_text()


def _attempts(item: dict[str, object]) -> list[dict[str, object]]:
    attempts = item.get("attempts")
    return [a for a in attempts if isinstance(a, dict)] if isinstance(attempts, list) else []


def _is_attempt(item: dict[str, object]) -> bool:
    steps = item.get("trajectory")
    if not isinstance(steps, list):
        return False
    return isinstance(item.get("history"), list) or any(
        isinstance(step, dict) and "response" in step and "observation" in step for step in steps
    )
