"""The request of ``/v1/responses``, and its translation to a chat request."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from suffixspec_service.api.chat_fields import (
    ChatMessage,
    ChatRequest,
    ChatTool,
    FunctionName,
    FunctionTool,
    NamedFunction,
    NamedTool,
    RefusalPart,
    ResponseFormat,
    TextPart,
)
from suffixspec_service.api.fields import (
    MAX_TOP_LOGPROBS,
    Metadata,
    ShortText,
    Speculation,
    StreamOptions,
    Wire,
)
from suffixspec_service.api.problems import ApiError


class OutputTextPart(TextPart):
    """A part of an earlier answer; annotations of ours are always empty."""

    annotations: list[Any] | None = Field(default=None, max_length=0)
    logprobs: list[Any] | None = None


class MessageItem(Wire):
    """A message of the input."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[OutputTextPart | RefusalPart]
    id: ShortText | None = None
    status: ShortText | None = None
    phase: ShortText | None = None


class CallItem(Wire):
    """A call that the model made earlier."""

    type: Literal["function_call"]
    call_id: ShortText
    name: FunctionName
    arguments: str
    id: ShortText | None = None
    status: ShortText | None = None


class CallOutputItem(Wire):
    """What a function answered."""

    type: Literal["function_call_output"]
    call_id: ShortText
    output: str | list[TextPart]
    id: ShortText | None = None
    status: ShortText | None = None


Item = MessageItem | CallItem | CallOutputItem


class ResponseTool(Wire):
    """``tools[i]``: a function, in this API's flat form."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedChoice(Wire):
    """``tool_choice``: this one."""

    type: Literal["function"]
    name: FunctionName


class TextFormat(Wire):
    """``text.format``."""

    type: Literal["text", "json_object", "json_schema"]
    name: ShortText | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    description: str | None = None
    strict: bool | None = None


class TextOptions(Wire):
    """``text``."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class Reasoning(Wire):
    """``reasoning``: only what asks for none."""

    effort: Literal["none"] | None = None
    summary: None = None


class ResponsesRequest(Wire):
    """The body of ``POST /v1/responses``. Nothing is stored: the whole conversation is sent each
    time, and a session is recognised by how it begins."""

    model: str
    input: str | Annotated[list[Item], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    tools: list[ResponseTool] | None = Field(default=None, max_length=128)
    tool_choice: Literal["auto", "none", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    metadata: Metadata | None = None
    user: ShortText | None = None
    speculative: Speculation | None = None
    include_metrics: bool | None = None
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    # Taken where they ask for nothing that is not done anyway.
    store: Literal[False] | None = None
    previous_response_id: None = None
    conversation: None = None
    prompt: None = None
    background: Literal[False] | None = None
    include: list[Literal["message.output_text.logprobs"]] | None = None
    reasoning: Reasoning | None = None
    truncation: Literal["disabled"] | None = None
    service_tier: Literal["auto", "default"] | None = None
    max_tool_calls: None = None
    prompt_cache_key: ShortText | None = None
    safety_identifier: ShortText | None = None

    def as_chat(self) -> ChatRequest:
        """The same as a chat request.

        Raises:
            ApiError: an answer of a function belongs to no call.
        """
        choice = self.tool_choice
        fields: dict[str, Any] = {
            "model": self.model,
            "messages": self._messages(),
            "max_completion_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "logprobs": True if self.top_logprobs is not None or self.include else None,
            "top_logprobs": self.top_logprobs,
            "tools": [_chat_tool(tool) for tool in self.tools] if self.tools else None,
            "tool_choice": (
                NamedTool(type="function", function=NamedFunction(name=choice.name))
                if isinstance(choice, NamedChoice)
                else choice
            ),
            "parallel_tool_calls": self.parallel_tool_calls,
            "response_format": self._format(),
            "stream": self.stream,
            "metadata": self.metadata,
            "speculative": self.speculative,
            "include_metrics": self.include_metrics,
            "seed": self.seed,
        }
        return ChatRequest.model_construct(**(_defaults() | fields))

    def _messages(self) -> list[ChatMessage]:
        messages: list[dict[str, Any]] = []
        if self.instructions is not None:
            messages.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            messages.append({"role": "user", "content": self.input})
            return [ChatMessage(**message) for message in messages]
        called: set[str] = set()
        for number, item in enumerate(self.input):
            if isinstance(item, CallItem):
                called.add(item.call_id)
                _add_call(messages, item)
            elif isinstance(item, CallOutputItem):
                if item.call_id not in called:
                    raise ApiError(
                        f"input.{number}.call_id: {item.call_id!r} answers no call of this input; "
                        "send the call too, nothing is stored here",
                        param=f"input.{number}.call_id",
                    )
                messages.append(
                    {
                        "role": "tool",
                        "content": _joined(item.output),
                        "tool_call_id": item.call_id,
                    }
                )
            else:
                messages.append({"role": item.role, "content": _joined(item.content)})
        return [ChatMessage(**message) for message in messages]

    def _format(self) -> ResponseFormat | None:
        given = self.text.format if self.text is not None else None
        if given is None:
            return None
        schema = None
        if given.type == "json_schema":
            if given.name is None or given.schema_ is None:
                raise ApiError(
                    "text.format: json_schema needs name and schema", param="text.format"
                )
            schema = {"name": given.name, "schema": given.schema_}
        return ResponseFormat.model_validate({"type": given.type, "json_schema": schema})


def _chat_tool(tool: ResponseTool) -> ChatTool:
    function = FunctionTool(
        name=tool.name,
        description=tool.description,
        parameters=tool.parameters,
        strict=tool.strict,
    )
    return ChatTool(type="function", function=function)


def _add_call(messages: list[dict[str, Any]], item: CallItem) -> None:
    """Calls that follow each other, and the text before them, are one message."""
    call = {
        "id": item.call_id,
        "type": "function",
        "function": {"name": item.name, "arguments": item.arguments},
    }
    last = messages[-1] if messages else None
    if last is not None and last["role"] == "assistant":
        last.setdefault("tool_calls", []).append(call)
    else:
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})


def _joined(content: str | list[Any]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.refusal if isinstance(part, RefusalPart) else part.text for part in content)


def _defaults() -> dict[str, Any]:
    blank = {"model": "", "messages": [{"role": "user", "content": ""}]}
    return dict(ChatRequest.model_validate(json.loads(json.dumps(blank))))
