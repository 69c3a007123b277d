"""Messages in OpenAI's chat shape, which most formats use with variations of their own."""

from __future__ import annotations

import dataclasses

from suffixspec_traces.model import Message, Role, ToolCall
from suffixspec_traces.readers.nodes import Node

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_TEXT_PARTS = {"text", "input_text", "output_text", "refusal"}
_ANTHROPIC_PARTS = {"tool_use", "tool_result"}


def openai_message(node: Node, *, generated: bool = True) -> Message:
    """One chat message.

    Args:
        node: the message object.
        generated: whether an assistant message here was written by the model. The message's own
            ``x_generated: false`` and saying nothing at all overrule it.

    Raises:
        TraceError: a field is missing or of the wrong type.
    """
    role = _role(node["role"])
    content = content_text(node["content"], separator="" if role == "assistant" else "\n")
    tool_call_id = node["tool_call_id"].label()
    name = node["name"].optional_text()
    timestamp = node["timestamp"].timestamp()
    if role != "assistant":
        return Message(role, content, tool_call_id=tool_call_id, name=name, timestamp=timestamp)
    message = Message(
        role,
        content if content is not None else node["refusal"].optional_text(),
        tool_calls=_calls(node),
        name=name,
        reasoning=node.first("reasoning_content", "reasoning").optional_text(),
        timestamp=timestamp,
        prompt_token_ids=node["prompt_token_ids"].token_ids(),
        token_ids=node["token_ids"].token_ids(),
    )
    return as_generated(message, generated and node["x_generated"].flag(True))


def as_generated(message: Message, generated: bool = True) -> Message:
    """The message, flagged; one that says nothing (no text, call or token) never counts."""
    says = bool(message.content or message.tool_calls or message.reasoning)
    says = says or (message.token_ids is not None and len(message.token_ids) > 0)
    return dataclasses.replace(message, generated=generated and says)


def inherited(message: Message) -> Message:
    """The same message as history: not written in this session."""
    return dataclasses.replace(message, generated=False) if message.generated else message


def content_text(node: Node, *, separator: str = "") -> str | None:
    """The text of a ``content`` field: a string, null, or a list of parts.

    Parts that are no text (images, audio, files) are left out: their tokens are not recorded.
    """
    if node.value is None or isinstance(node.value, str):
        return node.value
    if not isinstance(node.value, list):
        node.expected("a string, null or a list of parts")
    texts: list[str] = []
    for part in node.elements():
        if isinstance(part.value, str):
            texts.append(part.value)
            continue
        kind = part["type"].optional_text()
        if kind in _ANTHROPIC_PARTS:
            part.fail(
                f"{kind!r} parts are Anthropic's; read this with the format anthropic_messages"
            )
        if kind in _TEXT_PARTS or (kind is None and "text" in part):
            texts.append(part.first("text", "refusal").text())
    return separator.join(texts) if texts else None


def tool_calls(node: Node) -> tuple[ToolCall, ...]:
    """A ``tool_calls`` list. Names and arguments stand under ``function``, or beside the id as
    LangChain, tau2 and ATIF write them; arguments are a JSON text or an object."""
    return tuple(tool_call(call) for call in node.elements_if_any())


def tool_call(node: Node) -> ToolCall:
    """One tool call, see :func:`tool_calls`."""
    function = node.within("function")
    name = function.first("name", "function_name")
    return ToolCall(
        name.text(),
        arguments_text(function.first("arguments", "args", "input")),
        node.first("id", "tool_call_id", "call_id").label(),
    )


def arguments_text(node: Node) -> str:
    """A call's arguments as text: as recorded where they are text, else compact JSON; none at all
    are an empty object."""
    if node.value is None:
        return "{}"
    return node.value if isinstance(node.value, str) else node.json_text()


def tool_definitions(node: Node) -> tuple[dict[str, object], ...]:
    """Tool definitions in OpenAI's chat shape, from that shape, OpenAI Responses' or Anthropic's.

    Definitions without a name (hosted tools such as web search) are left out: a chat template
    cannot render them.
    """
    definitions: list[dict[str, object]] = []
    for tool in node.decoded().elements_if_any():
        function = tool.within("function")
        if "name" not in function:
            continue
        if function is not tool:
            definitions.append(dict(tool.object()))
            continue
        schema = {"name": tool["name"].text()}
        parameters = tool.first("parameters", "input_schema")
        definitions.append(
            {
                "type": "function",
                "function": schema
                | ({"description": tool["description"].text()} if "description" in tool else {})
                | ({"parameters": parameters.object()} if parameters else {}),
            }
        )
    return tuple(definitions)


def _role(node: Node) -> Role:
    role = node.text()
    if role not in _ROLES:
        node.fail(f"unknown role {role[:40]!r}; expected one of {', '.join(_ROLES)}")
    return _ROLES[role]


def _calls(node: Node) -> tuple[ToolCall, ...]:
    calls = tool_calls(node["tool_calls"])
    if not calls and "function_call" in node:  # OpenAI's older way, one call without an id
        return (tool_call(node["function_call"]),)
    return calls
