"""Items of OpenAI's Responses API, as its logs and Codex rollouts record them.

One response is several items there: its text, its reasoning and each tool call. They are put back
together into one assistant message.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from suffixspec_traces.model import Message, ToolCall
from suffixspec_traces.readers.messages import (
    arguments_text,
    as_generated,
    content_text,
    openai_message,
)
from suffixspec_traces.readers.nodes import Node

_RESULT_SUFFIX = "_output"


class ItemAssembler:
    """Turns items into messages: neighbouring items of the assistant become one message.

    ``messages`` may be read at any time.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._open = False  # the last message may still grow

    def close(self) -> None:
        """End the response: what the assistant says next is another generation."""
        self._open = False

    def add(self, item: Node, *, generated: bool, timestamp: float | None = None) -> None:
        """Add one item; kinds that carry no text or call (web searches, images) add nothing.

        Raises:
            TraceError: a field is missing or of the wrong type.
        """
        kind = item["type"].optional_text() or "message"
        if kind == "message":
            self._add_message(item, generated, timestamp)
        elif kind == "reasoning":
            if (reasoning := _reasoning(item)) is not None:
                self._grow(Message("assistant", reasoning=reasoning), generated, timestamp)
        elif kind in ("function_call", "custom_tool_call", "mcp_call"):
            arguments = arguments_text(item.first("input", "arguments"))
            call = ToolCall(item["name"].text(), arguments, item.first("call_id", "id").label())
            self._grow(Message("assistant", tool_calls=(call,)), generated, timestamp)
        elif kind in ("local_shell_call", "shell_call", "computer_call"):
            call = ToolCall(kind, arguments_text(item["action"]), item["call_id"].label())
            self._grow(Message("assistant", tool_calls=(call,)), generated, timestamp)
        elif kind.endswith(_RESULT_SUFFIX):
            self.close()
            self.messages.append(
                Message(
                    "tool",
                    _output_text(item["output"]),
                    tool_call_id=item["call_id"].label(),
                    timestamp=timestamp,
                )
            )

    def _add_message(self, item: Node, generated: bool, timestamp: float | None) -> None:
        message = openai_message(item, generated=generated)
        if message.role == "assistant":
            self._grow(message, generated, timestamp)
            return
        self.close()
        self.messages.append(_stamped(message, timestamp))

    def _grow(self, part: Message, generated: bool, timestamp: float | None) -> None:
        if not self._open:
            self.messages.append(_stamped(as_generated(part, generated), timestamp))
            self._open = True
            return
        last = self.messages[-1]
        grown = dataclasses.replace(
            last,
            content=_joined(last.content, part.content),
            reasoning=_joined(last.reasoning, part.reasoning),
            tool_calls=last.tool_calls + part.tool_calls,
        )
        self.messages[-1] = as_generated(grown, generated)


def item_messages(items: Iterable[Node], *, generated: bool) -> list[Message]:
    """The messages of a list of items."""
    assembler = ItemAssembler()
    for item in items:
        assembler.add(item, generated=generated)
    return assembler.messages


def _stamped(message: Message, timestamp: float | None) -> Message:
    if timestamp is None or message.timestamp is not None:
        return message
    return dataclasses.replace(message, timestamp=timestamp)


def _joined(left: str | None, right: str | None) -> str | None:
    return right if left is None else left + (right or "")


def _reasoning(item: Node) -> str | None:
    """The reasoning text itself; its summary is another model's text, and encrypted it is none."""
    if not isinstance(item["content"].value, list):
        return None
    parts = item["content"].elements()
    return "".join(p["text"].text() for p in parts if p["type"].value == "reasoning_text") or None


def _output_text(node: Node) -> str:
    if isinstance(node.value, (str, list)):
        return content_text(node, separator="\n") or ""
    return "" if node.value is None else node.json_text()
