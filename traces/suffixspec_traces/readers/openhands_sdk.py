"""OpenHands' software agent SDK (version 1): events that name their ``kind``.

They come as a list, one a line, or as the ``history`` of an evaluation row. Actions that share
``llm_response_id`` are one generation; a ``TokenEvent`` after it holds its exact token ids.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from suffixspec_traces.model import Message, Session, ToolCall
from suffixspec_traces.readers.base import TraceReader, register
from suffixspec_traces.readers.messages import (
    as_generated,
    content_text,
    openai_message,
    tool_call,
    tool_definitions,
)
from suffixspec_traces.readers.nodes import Node
from suffixspec_traces.readers.source import Sample, Source

_KINDS = ("SystemPromptEvent", "MessageEvent", "ActionEvent", "ObservationEvent", "TokenEvent")
_RESULTS = ("ObservationEvent", "AgentErrorEvent", "UserRejectObservation")


@register
class OpenHandsSDKReader(TraceReader):
    """Reads conversations of the OpenHands SDK."""

    name = "openhands_sdk"
    description = "OpenHands SDK (version 1) events and evaluation output"
    empty_hint = "no ActionEvent or agent MessageEvent in it"

    def sniff(self, sample: Sample) -> bool:
        """Objects of a known ``kind``, or rows whose ``history`` holds such."""
        return any(_is_event(o) or _holds_events(o.get("history")) for o in sample.objects())

    def read(self, source: Source) -> Iterator[Session]:
        """Yield a session per evaluation row, and one of all events that stand by themselves."""
        loose, events, first = _Conversation(), 0, None
        for record in source.items():
            with source.checked(record.line):
                if "history" not in record.node:
                    first = first or record
                    events += 1
                    loose.add(record.node)
                    continue
                conversation = _Conversation()
                for event in record.node["history"].elements():
                    conversation.add(event)
                name = record.node["instance_id"].label() or f"{source.stem}-{record.line or 1}"
                yield self._session(conversation, name, source, record.line)
        if first is None:
            return
        with source.checked(first.line):
            if events == 1:
                first.node.fail(
                    "a single event; put the events of a conversation into one file, such as "
                    "jq -c . events/*.json > conversation.jsonl"
                )
            yield self._session(loose, source.stem, source, first.line)

    def _session(
        self, conversation: _Conversation, name: str, source: Source, line: int | None
    ) -> Session:
        return Session(
            id=name,
            messages=tuple(conversation.messages),
            source=source.stem,
            model=conversation.model,
            format=self.name,
            tools=conversation.tools,
            path=source.path,
            line=line,
        )


class _Conversation:
    """Turns events into messages."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.tools: tuple[dict[str, object], ...] = ()
        self.model: str | None = None
        self._responses: dict[str, int] = {}

    def add(self, event: Node) -> None:
        """Add one event; kinds that the model neither wrote nor saw add nothing."""
        kind = event["kind"].optional_text()
        timestamp = event["timestamp"].timestamp()
        if kind == "SystemPromptEvent":
            self.tools = tool_definitions(event["tools"])
            prompt = event["system_prompt"]
            text = prompt["text"] if isinstance(prompt.value, dict) else prompt
            self.messages.append(Message("system", text.optional_text(), timestamp=timestamp))
        elif kind == "MessageEvent":
            self.messages.append(_message(event, timestamp))
        elif kind == "ActionEvent":
            self._action(event, timestamp)
        elif kind == "TokenEvent":
            self._tokens(event)
        elif kind in _RESULTS:
            self.messages.append(_result(event, timestamp))

    def _action(self, event: Node, timestamp: float | None) -> None:
        call = tool_call(event["tool_call"]) if "tool_call" in event else _rendered_call(event)
        part = Message(
            "assistant",
            content_text(event["thought"]),
            tool_calls=(call,),
            reasoning=event["reasoning_content"].optional_text(),
            timestamp=timestamp,
        )
        response = event["llm_response_id"].label()
        position = self._responses.get(response or "")
        if position is None:
            if response is not None:
                self._responses[response] = len(self.messages)
            self.messages.append(as_generated(part))
            return
        whole = self.messages[position]
        self.messages[position] = dataclasses.replace(
            whole, tool_calls=(*whole.tool_calls, *part.tool_calls)
        )

    def _tokens(self, event: Node) -> None:
        """The ids of the latest generation: the SDK writes them once its actions have run."""
        for position in range(len(self.messages) - 1, -1, -1):
            message = self.messages[position]
            if message.generated:
                if message.token_ids is None:
                    self.messages[position] = dataclasses.replace(
                        message,
                        prompt_token_ids=event["prompt_token_ids"].token_ids(),
                        token_ids=event["response_token_ids"].token_ids(),
                    )
                return


def _message(event: Node, timestamp: float | None) -> Message:
    role = "assistant" if event["source"].value == "agent" else "user"
    fields = {"role": role} | event["llm_message"].object()
    message = openai_message(Node(fields, event, "llm_message"))
    return dataclasses.replace(message, timestamp=timestamp)


def _rendered_call(event: Node) -> ToolCall:
    """A call whose text was not kept, out of the parsed action."""
    action = {k: v for k, v in event["action"].object().items() if k != "kind"}
    return ToolCall(
        event["tool_name"].text(),
        Node(action, event, "action").json_text(),
        event["tool_call_id"].label(),
    )


def _result(event: Node, timestamp: float | None) -> Message:
    observation = event["observation"]
    if isinstance(observation.value, dict):
        content = observation["content"]
        given = content.value is not None
        text = content_text(content, separator="\n") if given else observation.json_text()
    else:
        text = event.first("error", "rejection_reason").optional_text()
    return Message(
        "tool",
        text or "",
        tool_call_id=event["tool_call_id"].label(),
        name=event["tool_name"].optional_text(),
        timestamp=timestamp,
    )


def _is_event(value: object) -> bool:
    return isinstance(value, dict) and value.get("kind") in _KINDS


def _holds_events(value: object) -> bool:
    return isinstance(value, list) and any(map(_is_event, value[:8]))
