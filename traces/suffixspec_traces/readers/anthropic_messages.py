"""Anthropic's Messages API: logs of requests with their responses, bare responses, histories.

- ``{"request": {...}, "response": {...}}`` (or the request's fields beside ``response``) is a
  call; calls of one conversation are joined;
- a response alone (``"type": "message"``) is a generation whose prompt is unknown;
- ``messages`` alone with Anthropic's content blocks is a conversation, whose assistant messages
  all count.
"""

from __future__ import annotations

from collections.abc import Iterator

from suffixspec_traces.model import Message, Session
from suffixspec_traces.readers.base import TraceReader, register
from suffixspec_traces.readers.blocks import assistant_message, block_messages, system_message
from suffixspec_traces.readers.calls import Call, CallMerger
from suffixspec_traces.readers.messages import as_generated, tool_definitions
from suffixspec_traces.readers.nodes import Node
from suffixspec_traces.readers.openai_requests import group_of, request_and_response
from suffixspec_traces.readers.source import Record, Sample, Source

_BLOCKS = ("tool_use", "tool_result", "thinking")


@register
class AnthropicMessagesReader(TraceReader):
    """Reads Anthropic request and response logs."""

    name = "anthropic_messages"
    description = "Logs of Anthropic's Messages API"
    empty_hint = "no response holds content; log the response bodies too"

    def sniff(self, sample: Sample) -> bool:
        """A response of type ``message``, or messages that only Anthropic's API takes."""
        return any(_is_call(item) or _is_history(item) for item in sample.objects())

    def read(self, source: Source) -> Iterator[Session]:
        """Yield histories as they come, then the conversations that the calls make up."""
        merger = CallMerger()
        for number, record in enumerate(source.items(), start=1):
            name = f"{source.stem}-{number}"
            with source.checked(record.line):
                record.node.object()
                if _is_answered(record.node):
                    merger.add(_call(record, name))
                else:
                    yield self._history(record, source, name)
        yield from merger.sessions(source=source.stem, format_name=self.name, path=source.path)

    def _history(self, record: Record, source: Source, name: str) -> Session:
        node = record.node
        messages = _prompt(node, generated=True)
        if not messages:
            node["messages"].fail("is empty")
        return Session(
            id=node.first("id", "session_id", "conversation_id").label() or name,
            messages=tuple(messages),
            source=node["source"].optional_text() or source.stem,
            model=node["model"].optional_text(),
            format=self.name,
            tools=tool_definitions(node["tools"]),
            path=source.path,
            line=record.line,
        )


def _call(record: Record, name: str) -> Call:
    node = record.node
    request, response = request_and_response(node)
    answer = []
    if "content" in response:
        message = as_generated(assistant_message(response["content"]))
        answer = [(message,)] if message.generated else []
    elif response["type"].value != "error":
        response["content"].expected("a list of content blocks")
    return Call(
        id=response["id"].label() or node["id"].label() or name,
        inputs=tuple(_prompt(request, generated=False)),
        choices=tuple(answer),
        group=group_of(node, request),
        model=response["model"].optional_text() or request["model"].optional_text(),
        timestamp=node.first("timestamp", "created_at", "time").timestamp(),
        tools=tool_definitions(request["tools"]),
        line=record.line,
    )


def _prompt(request: Node, *, generated: bool) -> list[Message]:
    messages = system_message(request["system"])
    for message in request["messages"].elements_if_any():
        messages.extend(block_messages(message, generated=generated))
    return messages


def _is_answered(node: Node) -> bool:
    return "response" in node or ("content" in node and node["role"].value == "assistant")


def _is_call(item: dict[str, object]) -> bool:
    response = item.get("response")
    if isinstance(response, dict) and isinstance(response.get("body"), dict):
        response = response["body"]
    holder = response if isinstance(response, dict) else item
    return (
        holder.get("type") == "message"
        and holder.get("role") == "assistant"
        and isinstance(holder.get("content"), list)
        and "startTime" not in item
    )


def _is_history(item: dict[str, object]) -> bool:
    messages = item.get("messages")
    if not isinstance(messages, list) or {"inputs", "response", "choices", "info"} & item.keys():
        return False
    if not all(isinstance(message, dict) and "role" in message for message in messages):
        return False
    contents = [m.get("content") for m in messages]
    blocks = [b for c in contents if isinstance(c, list) for b in c if isinstance(b, dict)]
    if any(block.get("type") in _BLOCKS for block in blocks):
        return True
    return isinstance(item.get("system"), (str, list))
