"""Messages and responses of whatever shape an observability tool happened to store.

LangSmith, Langfuse and LiteLLM keep what the caller's SDK sent: OpenAI's, Anthropic's or
LangChain's messages, often as a text of JSON. Here the shape is told from the value.
"""

from __future__ import annotations

from suffixspec_traces.model import Message
from suffixspec_traces.readers.blocks import assistant_message, block_messages, system_message
from suffixspec_traces.readers.items import item_messages
from suffixspec_traces.readers.messages import (
    as_generated,
    content_text,
    openai_message,
    tool_calls,
)
from suffixspec_traces.readers.nodes import Node

_LANGCHAIN_ROLES = {
    "human": "user",
    "ai": "assistant",
    "system": "system",
    "tool": "tool",
    "function": "tool",
    "chat": "user",
}
_LANGCHAIN_TYPES = (*_LANGCHAIN_ROLES, "AIMessageChunk")
_BLOCKS = ("tool_use", "tool_result", "thinking", "redacted_thinking")


def any_messages(node: Node) -> list[Message]:
    """A prompt of any shape as messages, none of them generated.

    A text is a user message; a list is messages (or a batch holding one list of them); an object
    is a request (``messages``, ``input``, ``prompts``, ``contents``) or one message.

    Raises:
        TraceError: a field is missing or of the wrong type.
    """
    node = node.decoded()
    if not node:
        return []
    if isinstance(node.value, str):
        return [Message("user", node.value)]
    if isinstance(node.value, list):
        elements = list(node.elements())
        if len(elements) == 1 and isinstance(elements[0].value, list):
            return any_messages(elements[0])  # LangChain's batch of one
        if any(_is_item(element) for element in elements):
            return item_messages(elements, generated=False)
        return [message for e in elements for message in any_message(e, generated=False)]
    for key in ("messages", "input", "prompts", "prompt"):
        if key in node:
            return _instructions(node) + any_messages(node[key])
    if not any(key in node for key in ("role", "type", "kwargs", "content")):
        return [Message("user", node.json_text())]  # a template's variables
    return any_message(node, generated=False)


def any_message(node: Node, *, generated: bool) -> list[Message]:
    """One message of any shape: OpenAI, Anthropic blocks, LangChain (serialised or dumped)."""
    node = node.decoded()
    if isinstance(node.value, str):
        if not generated:
            return [Message("user", node.value)]
        return [as_generated(Message("assistant", node.value))]
    if "kwargs" in node and isinstance(node["id"].value, list):  # LangChain's serialised form
        return [_langchain(node["kwargs"], _constructor_type(node["id"]), generated)]
    kind = node["type"].value
    if isinstance(kind, str) and kind in _LANGCHAIN_TYPES:
        return [_langchain(node.within("data"), kind, generated)]
    if _has_blocks(node["content"]):
        return block_messages(node, generated=generated)
    return [openai_message(node, generated=generated)]


def any_response(node: Node) -> list[list[Message]]:
    """A model's answer of any shape: the messages of each of its choices, flagged generated.

    Nothing recorded (null, ``{}``, an error) gives no choice.

    Raises:
        TraceError: a field is missing or of the wrong type.
    """
    node = node.decoded()
    if not node:
        return []
    if isinstance(node.value, str):
        return _said(any_message(node, generated=True))
    if isinstance(node.value, list):
        return [choice for element in node.elements() for choice in any_response(element)]
    if "choices" in node:
        return _openai_choices(node["choices"])
    if "output" in node and isinstance(node["output"].value, list):
        return _said(item_messages(node["output"].elements(), generated=True))
    if "generations" in node:
        return _langchain_generations(node["generations"])
    for key in ("message", "messages", "output"):
        if key in node:
            return any_response(node[key])
    if node["type"].value == "message" or _has_blocks(node["content"]):
        return _said([as_generated(assistant_message(node["content"]))])
    if "role" in node or "kwargs" in node or node["type"].value in _LANGCHAIN_TYPES:
        return _said(any_message(node, generated=True))
    if "content" in node or "tool_calls" in node:  # an assistant message that leaves out its role
        message = Message("assistant", content_text(node["content"]))
        return _said([as_generated(_with_calls(message, node))])
    return []


def _said(messages: list[Message]) -> list[list[Message]]:
    """One choice, if the model said anything in it."""
    return [messages] if any(message.generated for message in messages) else []


def _openai_choices(choices: Node) -> list[list[Message]]:
    found: list[list[Message]] = []
    for choice in choices.elements():
        if "message" in choice:
            found.extend(_said(any_message(choice["message"], generated=True)))
        elif "text" in choice:  # the completions API
            found.extend(_said([as_generated(Message("assistant", choice["text"].text()))]))
    return found


def _langchain_generations(generations: Node) -> list[list[Message]]:
    found: list[list[Message]] = []
    for generation in generations.elements():
        if isinstance(generation.value, list):
            found.extend(_langchain_generations(generation))
        elif "message" in generation:
            found.extend(_said(any_message(generation["message"], generated=True)))
        else:
            message = Message("assistant", generation["text"].optional_text())
            found.extend(_said([as_generated(message)]))
    return found


def _langchain(fields: Node, kind: str, generated: bool) -> Message:
    role = _LANGCHAIN_ROLES.get(kind.removesuffix("MessageChunk").removesuffix("Message").lower())
    if role is None:
        fields.fail(f"unknown LangChain message type {kind[:40]!r}")
    if role != "assistant":
        content = content_text(fields["content"], separator="\n")
        tool_call_id = fields["tool_call_id"].optional_text()
        match role:
            case "system":
                return Message("system", content)
            case "tool":
                name = fields["name"].optional_text()
                return Message("tool", content, tool_call_id=tool_call_id, name=name)
            case _:
                return Message("user", content)
    if _has_blocks(fields["content"]):  # ChatAnthropic keeps the blocks, calls included
        return as_generated(assistant_message(fields["content"]), generated)
    message = Message("assistant", content_text(fields["content"]))
    return as_generated(_with_calls(message, fields), generated)


def _with_calls(message: Message, node: Node) -> Message:
    extra = node["additional_kwargs"]
    # the provider's own calls hold the arguments as generated, LangChain's a parsed copy
    calls = extra["tool_calls"] if "tool_calls" in extra else node["tool_calls"]
    return Message(message.role, message.content, tool_calls=tool_calls(calls))


def _constructor_type(identifier: Node) -> str:
    names = list(identifier.elements())
    return names[-1].text() if names else ""


def _has_blocks(content: Node) -> bool:
    value = content.value
    return isinstance(value, list) and any(
        isinstance(block, dict) and block.get("type") in _BLOCKS for block in value
    )


def _is_item(node: Node) -> bool:
    if not isinstance(node.value, dict):
        return False
    kind = node.value.get("type")
    return isinstance(kind, str) and (
        kind == "reasoning" or kind.endswith(("_call", "_call_output")) or kind == "message"
    )


def _instructions(request: Node) -> list[Message]:
    """What a request says apart from its messages: Anthropic's and Responses' system prompt."""
    return system_message(request["system"]) + system_message(request["instructions"])
