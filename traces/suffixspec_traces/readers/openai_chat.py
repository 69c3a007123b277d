"""OpenAI chat messages: fine-tuning sets, loggers, and what this project's recorder writes.

A record is ``{"messages": [...]}`` or the list of messages itself. Beyond OpenAI's fields these
are understood: ``id``, ``source``, ``model``, ``created`` and ``tools`` of the record;
``timestamp``, ``x_generated: false`` (not written by the model in this session),
``prompt_token_ids`` and ``token_ids`` (the exact ids of the generation) of an assistant message.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from suffixspec_traces.model import Message, Session
from suffixspec_traces.readers.base import TraceReader, register
from suffixspec_traces.readers.messages import openai_message, tool_definitions
from suffixspec_traces.readers.nodes import Node
from suffixspec_traces.readers.source import Record, Sample, Source

# each of these beside "messages" says that the record is of a more specific format
_FOREIGN = {
    "choices",
    "history",
    "info",
    "inputs",
    "output",
    "outputs",
    "request_id",
    "response",
    "simulations",
    "system",
    "traj",
    "trajectory",
    "trajectory_format",
}
_ANTHROPIC = ("tool_use", "tool_result", "thinking")


@register
class OpenAIChatReader(TraceReader):
    """Reads conversations in OpenAI's chat shape, one a record."""

    name = "openai_chat"
    description = "OpenAI chat messages as JSONL or JSON, with token ids where recorded"
    empty_hint = (
        "no assistant message has text or tool calls, or all say x_generated: false; "
        "log the assistant's replies too"
    )

    def sniff(self, sample: Sample) -> bool:
        """A list of messages, or an object with ``messages`` and no sign of another format."""
        if any(_is_message_list(record) for record in sample.records):
            return True
        for item in sample.objects():
            if _is_message_list(item.get("messages")) and not (_FOREIGN & item.keys()):
                return not _holds_anthropic_blocks(item["messages"])
        return False

    def read(self, source: Source) -> Iterator[Session]:
        """Yield one session per record."""
        for record in _conversations(source):
            with source.checked(record.line):
                yield self._session(record, source)

    def _session(self, record: Record, source: Source) -> Session:
        node = record.node
        if isinstance(node.value, list):
            node = Node({"messages": node.value})
        messages = tuple(openai_message(m) for m in node["messages"].elements())
        if not messages:
            node["messages"].fail("is empty")
        return Session(
            id=node["id"].label() or f"{source.stem}-{record.line or 1}",
            messages=_stamped(messages, node["created"].timestamp()),
            source=node["source"].optional_text() or source.stem,
            model=node["model"].optional_text(),
            format=self.name,
            tools=tool_definitions(node["tools"]),
            path=source.path,
            line=record.line,
        )


def _conversations(source: Source) -> Iterator[Record]:
    """Records, a document that is a list of conversations taken apart."""
    for record in source.records():
        value = record.node.value
        if not isinstance(value, list) or _is_message_list(value):
            yield record
            continue
        for number, node in enumerate(record.node.elements(), start=1):
            # the position in the document stands in for a line where an id is needed
            yield Record(_with_id(node, f"{source.stem}-{number}"), record.line)


def _with_id(node: Node, name: str) -> Node:
    if isinstance(node.value, dict) and "id" not in node:
        node.value = node.value | {"id": name}
    elif isinstance(node.value, list):
        node.value = {"id": name, "messages": node.value}
    return node


def _stamped(messages: tuple[Message, ...], created: float | None) -> tuple[Message, ...]:
    """``created`` is when the session began: its first message gets it if it has no time."""
    if created is None or messages[0].timestamp is not None:
        return messages
    return (dataclasses.replace(messages[0], timestamp=created), *messages[1:])


def _is_message_list(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, dict) and isinstance(item.get("role"), str) for item in value)
    )


def _holds_anthropic_blocks(messages: object) -> bool:
    assert isinstance(messages, list)
    contents = [m.get("content") for m in messages]
    blocks = [b for c in contents if isinstance(c, list) for b in c if isinstance(b, dict)]
    return any(block.get("type") in _ANTHROPIC for block in blocks)
