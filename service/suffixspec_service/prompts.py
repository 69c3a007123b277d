"""From a conversation to the tokens that ask the model for its next message."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jinja2.exceptions import TemplateError
from numpy.typing import NDArray

from suffixspec_index.errors import InputError
from suffixspec_service.segments import SegmentTokens
from suffixspec_service.tool_calls import STYLES, Tool, ToolCall, ToolStyle, style_of

Message = dict[str, Any]
"""``role``, ``content`` (text or ``None``), and as OpenAI has them ``tool_calls``,
``tool_call_id``, ``name``; arguments as JSON text."""

_PROBE = "suffixspec_probe"
_INSTRUCTIONS = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a JSON object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


class PromptBuilder:
    """Renders conversations by a model's chat template. Thread-safe.

    A template that knows nothing of tools (a sentinel does not come through) is helped: the tools
    are described in the system message as Hermes does, and calls and answers become text.

    Args:
        tokenizer: transformers' tokenizer; ``None``: there is none.
        chat_template: used instead of the tokenizer's own.

    Attributes:
        style: how the model is to write calls.
    """

    def __init__(self, tokenizer: Any, chat_template: str | None = None) -> None:
        self._tokenizer = tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._segments = SegmentTokens(backend) if backend is not None else None
        own = getattr(tokenizer, "chat_template", None)
        self._template = chat_template or (own if isinstance(own, str) else None)
        self._knows_tools = self._template is not None and self._renders_tools()
        self._knows_calls = self._template is not None and self._renders_calls()
        self.style: ToolStyle = style_of(self._template) if self._knows_tools else STYLES["hermes"]

    @property
    def can_chat(self) -> bool:
        """Whether there is a template."""
        return self._template is not None

    def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        options: Mapping[str, Any] | None = None,
        *,
        scope: str = "",
    ) -> NDArray[np.int32]:
        """``(n,)`` token ids of a conversation, ending where the model's message begins. Messages
        that the same scope sent before are not made tokens again.

        Args:
            messages: at least one.
            tools: that the model may call.
            options: further variables of the template (``enable_thinking``, say).
            scope: whose conversation it is.

        Raises:
            InputError: the model has no template, or the template refuses the conversation.
        """
        text = self.text(messages, tools, options)
        if self._segments is not None:
            return self._segments.encode(text, scope)
        return self.encode(text, special=False)

    def text(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """As :meth:`chat`, before it is made tokens."""
        if self._template is None:
            raise InputError(
                "messages: the model has no chat template; use /v1/completions, or start the "
                "service with --chat-template"
            )
        if not self._knows_calls:
            messages = [self._as_text(message) for message in messages]
        if tools and not self._knows_tools:
            messages = _with_instructions(messages, tools)
        try:
            return self._render(messages, tools if self._knows_tools else (), options)
        except (TemplateError, TypeError, KeyError, ValueError, AttributeError) as error:
            raise InputError(
                f"messages: the model's chat template refuses them: {error}"
            ) from error

    def encode(self, text: str, *, special: bool = True) -> NDArray[np.int32]:
        """``(n,)`` token ids of a text. ``special``: with what the tokenizer puts around it.

        Raises:
            InputError: the model has no tokenizer.
        """
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is not None:  # leaves the interpreter's lock alone, unlike the wrapper
            ids = backend.encode(text, add_special_tokens=special).ids
        elif self._tokenizer is not None:
            ids = self._tokenizer(text, add_special_tokens=special).input_ids
        else:
            raise InputError("prompt: the model has no tokenizer; give token ids")
        return np.asarray(ids, np.int32)

    def _render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        options: Mapping[str, Any] | None = None,
    ) -> str:
        given = [_with_parsed_arguments(m) for m in messages] if self._template else messages
        prompt: str = self._tokenizer.apply_chat_template(
            given,
            tools=[tool.as_openai() for tool in tools] or None,
            chat_template=self._template,
            add_generation_prompt=True,
            tokenize=False,
            **(options or {}),
        )
        return prompt

    def _renders_tools(self) -> bool:
        probe = Tool(_PROBE, "", {"type": "object", "properties": {}})
        try:
            return _PROBE in self._render([{"role": "user", "content": "x"}], [probe])
        except Exception:  # a template may raise what it likes
            return False

    def _renders_calls(self) -> bool:
        function = {"name": _PROBE, "arguments": "{}"}
        call = {"id": "call_000000000", "type": "function", "function": function}
        messages: list[Message] = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "y", "tool_call_id": "call_000000000", "name": _PROBE},
        ]
        try:
            return _PROBE in self._render(messages, ())
        except Exception:  # as above
            return False

    def _as_text(self, message: Message) -> Message:
        """The message without ``tool_calls`` and the role ``tool``."""
        content = message.get("content") or ""
        if message["role"] == "tool":
            return {
                "role": "user",
                "content": f"<tool_response>\n{content}\n</tool_response>",
            }
        calls = [
            ToolCall(call["function"]["name"], call["function"]["arguments"])
            for call in message.get("tool_calls") or ()
        ]
        if calls:
            written = STYLES["hermes"].write(calls)
            content = f"{content}\n{written}" if content else written
        return {"role": message["role"], "content": content}


def _with_instructions(messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
    described = "\n".join(json.dumps(t.as_openai(), ensure_ascii=False) for t in tools)
    text = _INSTRUCTIONS.format(tools=described)
    if messages[0]["role"] == "system":
        first = {"role": "system", "content": f"{messages[0]['content']}\n\n{text}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _with_parsed_arguments(message: Message) -> Message:
    """Templates want arguments as objects: what is text would be quoted once more."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    parsed = []
    for call in calls:
        function = dict(call["function"])
        with contextlib.suppress(ValueError):  # a model wrote it; it is shown as it is
            function["arguments"] = json.loads(function["arguments"] or "{}")
        parsed.append({**call, "function": function})
    return {**message, "tool_calls": parsed}
