"""OpenHands: the evaluation harness's ``output.jsonl`` and downloaded lists of events.

What the model wrote stands in ``tool_call_metadata.model_response`` of the events it caused;
several tool calls of one response are several events. Agents without function calling leave only
their thought and action, which are put together instead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from suffixspec_traces.model import Message, Session, ToolCall
from suffixspec_traces.readers.base import TraceReader, register
from suffixspec_traces.readers.messages import as_generated, openai_message, tool_definitions
from suffixspec_traces.readers.nodes import Node, json_text
from suffixspec_traces.readers.source import Record, Sample, Source

# events of the framework that the model neither wrote nor saw as such
_INTERNAL = {
    "recall",
    "null",
    "agent_state_changed",
    "change_agent_state",
    "condensation",
    "condensation_request",
    "success",
}


@register
class OpenHandsReader(TraceReader):
    """Reads OpenHands runs, one session each."""

    name = "openhands"
    description = "OpenHands evaluation output and event lists"
    empty_hint = "no agent event carries a model response, a message or an action"

    def sniff(self, sample: Sample) -> bool:
        """A ``history`` of events beside an ``instance_id``, or a list of events itself."""
        if any(_is_event_list(record) for record in sample.records):
            return True
        return any(
            "trajectory" not in o and _is_event_list(o.get("history")) for o in sample.objects()
        )

    def read(self, source: Source) -> Iterator[Session]:
        """Yield one session per run."""
        for record in _runs(source):
            with source.checked(record.line):
                yield self._session(record, source)

    def _session(self, record: Record, source: Source) -> Session:
        node = record.node
        conversation = _Conversation()
        if isinstance(node.value, list):
            events, name, model = node, source.stem, None
        else:
            events = node["history"]
            name = node["instance_id"].label() or f"{source.stem}-{record.line or 1}"
            model = _configured_model(node["metadata"])
        for event in _flat(events):
            conversation.add(event)
        return Session(
            id=name,
            messages=tuple(conversation.messages),
            source=source.stem,
            model=model or conversation.model,
            format=self.name,
            tools=conversation.tools,
            path=source.path,
            line=record.line,
        )


class _Conversation:
    """Turns events into messages."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.tools: tuple[dict[str, object], ...] = ()
        self.model: str | None = None
        self._responses: set[str] = set()

    def add(self, event: Node) -> None:
        """Add one event."""
        action = event["action"].optional_text()
        observation = event["observation"].optional_text()
        timestamp = event["timestamp"].timestamp()
        if (action or observation or "null") in _INTERNAL:
            return
        message = _observation(event) if action is None else self._action(event, action)
        if message is not None:
            self.messages.append(dataclasses.replace(message, timestamp=timestamp))

    def _action(self, event: Node, action: str) -> Message | None:
        arguments = event["args"] if "args" in event else Node({}, event, "args")
        if action == "system":
            self.tools = tool_definitions(arguments["tools"])
            return Message("system", arguments["content"].optional_text())
        if event["source"].value == "user":
            content = arguments["content"].optional_text()
            return Message("user", content) if content is not None else None
        metadata = event["tool_call_metadata"]
        if "model_response" in metadata:
            return self._response(metadata["model_response"])
        return _reconstructed(action, arguments)

    def _response(self, response: Node) -> Message | None:
        """What the model answered, the first time an event refers to it."""
        identifier = response["id"].label()
        if identifier is not None:
            if identifier in self._responses:
                return None
            self._responses.add(identifier)
        self.model = self.model or response["model"].optional_text()
        choices = list(response["choices"].elements())
        if not choices:
            response["choices"].fail("is empty")
        return openai_message(choices[0]["message"])


def _reconstructed(action: str, arguments: Node) -> Message | None:
    """An agent's message or action without the response behind it."""
    if action == "message":
        return as_generated(Message("assistant", arguments["content"].optional_text()))
    thought = arguments.first("thought", "final_thought").optional_text()
    rest = {
        key: value
        for key, value in arguments.object().items()
        if key not in ("thought", "final_thought") and value not in (None, "", [], {})
    }
    call = ToolCall(action, json_text(rest))
    return as_generated(Message("assistant", thought or None, tool_calls=(call,)))


def _observation(event: Node) -> Message | None:
    content = event["content"].optional_text()
    if content is None:
        content = event["message"].optional_text()
    metadata = event["tool_call_metadata"]
    if metadata.value is None:
        return Message("user", content) if content else None
    return Message(
        "tool",
        content,
        tool_call_id=metadata["tool_call_id"].label(),
        name=metadata["function_name"].optional_text(),
    )


def _runs(source: Source) -> Iterator[Record]:
    """Records, a document that is a list of runs taken apart."""
    for record in source.records():
        value = record.node.value
        if isinstance(value, list) and not _is_event_list(value):
            for node in record.node.elements():
                yield Record(node, record.line)
        else:
            yield record


def _flat(events: Node) -> Iterator[Node]:
    """The events; old outputs hold pairs of an action and its observation."""
    for event in events.elements():
        if isinstance(event.value, list):
            yield from event.elements()
        else:
            yield event


def _configured_model(metadata: Node) -> str | None:
    if not isinstance(metadata.value, dict) or not isinstance(metadata["llm_config"].value, dict):
        return None
    return metadata["llm_config"]["model"].optional_text()


def _is_event(value: object) -> bool:
    if isinstance(value, list):
        return bool(value) and isinstance(value[0], dict) and _is_event(value[0])
    return (
        isinstance(value, dict)
        and ("action" in value or "observation" in value)
        and ("source" in value or "args" in value or "extras" in value)
    )


def _is_event_list(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_event(item) for item in value[:8])
