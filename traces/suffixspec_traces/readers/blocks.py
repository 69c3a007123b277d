"""Anthropic's content blocks, as its API and Claude Code record them."""

from __future__ import annotations

from suffixspec_traces.model import Message, ToolCall
from suffixspec_traces.readers.messages import arguments_text, as_generated, content_text
from suffixspec_traces.readers.nodes import Node

_CALLS = {"tool_use", "server_tool_use", "mcp_tool_use"}


def block_messages(node: Node, *, generated: bool = True) -> list[Message]:
    """The messages of one Anthropic message: tool results become messages of their own.

    Args:
        node: an object with ``role`` and ``content`` (a string or a list of blocks).
        generated: whether an assistant message here was written by the model.

    Raises:
        TraceError: a field is missing or of the wrong type.
    """
    role = node["role"].text()
    if role == "assistant":
        message = assistant_message(node["content"])
        return [as_generated(message, generated and node["x_generated"].flag(True))]
    if role == "user":
        return _user_messages(node["content"])
    if role == "system":
        return [Message("system", content_text(node["content"], separator="\n"))]
    node["role"].fail(f"unknown role {role[:40]!r}; expected user, assistant or system")


def assistant_message(content: Node) -> Message:
    """What the model wrote: text, thinking and tool calls of a content list, in one message."""
    if content.value is None or isinstance(content.value, str):
        return Message("assistant", content.value)
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for block in content.elements():
        kind = block["type"].text()
        if kind == "text":
            texts.append(block["text"].text())
        elif kind == "thinking":
            thoughts.append(block["thinking"].text())
        elif kind in _CALLS:
            calls.append(
                ToolCall(
                    block["name"].text(),
                    arguments_text(block["input"]),
                    block["id"].optional_text(),
                )
            )
    return Message(
        "assistant",
        "".join(texts) if texts else None,
        tool_calls=tuple(calls),
        reasoning="".join(thoughts) or None,
    )


def _user_messages(content: Node) -> list[Message]:
    if content.value is None or isinstance(content.value, str):
        return [Message("user", content.value)]
    results: list[Message] = []
    texts: list[str] = []
    for block in content.elements():
        kind = block["type"].text()
        if kind == "text":
            texts.append(block["text"].text())
        elif kind == "tool_result":
            results.append(
                Message(
                    "tool",
                    content_text(block["content"], separator="\n") or "",
                    tool_call_id=block["tool_use_id"].optional_text(),
                )
            )
    if texts or not results:
        results.append(Message("user", "\n".join(texts)))
    return results


def system_message(node: Node) -> list[Message]:
    """The ``system`` field of a request: a text, a list of text blocks, or nothing."""
    text = content_text(node, separator="\n")
    return [Message("system", text)] if text else []
