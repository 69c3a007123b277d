"""ShareGPT dumps: ``conversations`` of ``{"from", "value"}``."""

from __future__ import annotations

from collections.abc import Iterator

from suffixspec_index.errors import TraceError
from suffixspec_traces.model import Message, Role, Session
from suffixspec_traces.readers.base import TraceReader, register
from suffixspec_traces.readers.messages import as_generated, tool_call, tool_definitions
from suffixspec_traces.readers.nodes import Node, parse_json
from suffixspec_traces.readers.source import Record, Sample, Source

_SPEAKERS: dict[str, Role] = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "function_call": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
}


@register
class ShareGPTReader(TraceReader):
    """Reads ShareGPT conversations, one session each."""

    name = "sharegpt"
    description = "ShareGPT conversations (from, value)"
    empty_hint = "no turn is from gpt"

    def sniff(self, sample: Sample) -> bool:
        """Objects whose ``conversations`` hold turns with ``from``."""
        return any(_is_conversation(o.get("conversations")) for o in sample.objects())

    def read(self, source: Source) -> Iterator[Session]:
        """Yield one session per conversation; dumps hold many empty ones, which are left out."""
        for number, record in enumerate(source.items(), start=1):
            with source.checked(record.line):
                session = self._session(record, source, f"{source.stem}-{number}")
                if session.messages:
                    yield session

    def _session(self, record: Record, source: Source, name: str) -> Session:
        node = record.node
        system = node["system"].optional_text()
        messages = [Message("system", system)] if system else []
        messages.extend(_message(turn) for turn in node["conversations"].elements())
        return Session(
            id=node["id"].label() or name,
            messages=tuple(messages),
            source=source.stem,
            model=node["model"].optional_text(),
            format=self.name,
            tools=tool_definitions(node["tools"]) if node["tools"] else (),
            path=source.path,
            line=record.line,
        )


def _message(turn: Node) -> Message:
    speaker = turn["from"].text()
    role = _SPEAKERS.get(speaker.lower())
    if role is None:
        turn["from"].fail(
            f"unknown speaker {speaker[:40]!r}; expected one of {', '.join(_SPEAKERS)}"
        )
    text = turn["value"].text()
    if role != "assistant":
        return Message(role, text)
    if speaker == "function_call":
        try:
            call = tool_call(Node(parse_json(text), turn, "value"))
        except TraceError:
            return as_generated(Message("assistant", text))  # a call in a notation of its own
        return as_generated(Message("assistant", tool_calls=(call,)))
    return as_generated(Message("assistant", text))


def _is_conversation(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(turn, dict) and "from" in turn and "value" in turn for turn in value)
    )
