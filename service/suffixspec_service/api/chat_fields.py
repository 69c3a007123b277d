"""The request of ``/v1/chat/completions``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from suffixspec_engine.grammar import GrammarSpec
from suffixspec_service.api.fields import MAX_TOP_LOGPROBS, SamplingFields, ShortText, Wire
from suffixspec_service.api.problems import ApiError
from suffixspec_service.prompts import Message
from suffixspec_service.tool_calls import Tool, ToolStyle, calls_grammar

FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class TextPart(Wire):
    """A part of a message's content."""

    type: Literal["text", "input_text", "output_text"]
    text: str


class RefusalPart(Wire):
    """What an assistant refused."""

    type: Literal["refusal"]
    refusal: str


Content = str | list[TextPart | RefusalPart]


class FunctionCall(Wire):
    """Which function, with what."""

    name: FunctionName
    arguments: str


class MessageToolCall(Wire):
    """A call that an assistant made."""

    id: ShortText
    type: Literal["function"]
    function: FunctionCall
    index: int | None = None


class ChatMessage(Wire):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: ShortText | None = None
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: ShortText | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    function_call: None = None
    audio: None = None
    annotations: list[Any] | None = Field(default=None, max_length=0)

    def rendered(self, number: int) -> Message:
        """The message as chat templates expect it.

        Raises:
            ApiError: a part is missing that the role needs.
        """
        place = f"messages.{number}"
        text = _text(self.content)
        if text is None and not (self.role == "assistant" and (self.tool_calls or self.refusal)):
            raise ApiError(
                f"{place}.content: a message of role {self.role!r} needs a text",
                param=f"{place}.content",
            )
        message: Message = {
            "role": "system" if self.role == "developer" else self.role,
            "content": text if text is not None else self.refusal,
        }
        if self.tool_calls:
            message["tool_calls"] = [call.model_dump(exclude={"index"}) for call in self.tool_calls]
        if self.role == "tool":
            if self.tool_call_id is None:
                raise ApiError(
                    f"{place}.tool_call_id: a message of role 'tool' must name the call it answers",
                    param=f"{place}.tool_call_id",
                )
            message["tool_call_id"] = self.tool_call_id
        if self.name is not None:
            message["name"] = self.name
        return message


class FunctionTool(Wire):
    """A function that the model may call."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChatTool(Wire):
    """``tools[i]``."""

    type: Literal["function"]
    function: FunctionTool

    def as_tool(self) -> Tool:
        """The tool as prompts and grammars take it."""
        return Tool(
            self.function.name,
            self.function.description or "",
            self.function.parameters or {"type": "object", "properties": {}},
        )


class NamedFunction(Wire):
    """A function by its name."""

    name: FunctionName


class NamedTool(Wire):
    """``tool_choice``: this one."""

    type: Literal["function"]
    function: NamedFunction


class JsonSchema(Wire):
    """``response_format.json_schema``."""

    name: ShortText
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Wire):
    """``response_format``."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    def schema_or_none(self) -> dict[str, Any] | None:
        """The schema of the answer; ``None``: free text.

        Raises:
            ApiError: ``json_schema`` is missing.
        """
        if self.type == "text":
            return None
        if self.type == "json_object":
            return {"type": "object"}
        if self.json_schema is None:
            raise ApiError(
                "response_format.json_schema: it is missing; give name and schema",
                param="response_format.json_schema",
            )
        return self.json_schema.schema_ or {}


class Prediction(Wire):
    """OpenAI's predicted output."""

    type: Literal["content"]
    content: str | list[TextPart]

    @property
    def text(self) -> str:
        """What is predicted."""
        return _text(self.content) or ""


class ChatRequest(SamplingFields):
    """The body of ``POST /v1/chat/completions``."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    tools: list[ChatTool] | None = Field(default=None, max_length=128)
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    prediction: Prediction | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    chat_template_kwargs: dict[str, Any] | None = None
    # Taken where they ask for nothing that is not done anyway.
    store: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None
    modalities: list[Literal["text"]] | None = None
    reasoning_effort: Literal["none"] | None = None
    verbosity: Literal["medium"] | None = None
    audio: None = None
    functions: None = None
    function_call: None = None
    web_search_options: None = None
    prompt_cache_key: ShortText | None = None
    safety_identifier: ShortText | None = None

    @property
    def output_limit(self) -> int | None:
        """Most output tokens, if the request says."""
        return self.max_completion_tokens or self.max_tokens

    def logprobs_per_token(self) -> int | None:
        """As ``SamplingParams.logprobs``.

        Raises:
            ApiError: ``top_logprobs`` without ``logprobs``.
        """
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError("top_logprobs: needs 'logprobs': true", param="top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None

    def offered_tools(self) -> list[Tool]:
        """The tools that the model is told of.

        Raises:
            ApiError: two have one name, or the choice names none of them.
        """
        tools = [tool.as_tool() for tool in self.tools or ()]
        names = [tool.name for tool in tools]
        if len(set(names)) < len(names):
            raise ApiError("tools: two have the same name; rename one", param="tools")
        if self.tool_choice not in (None, "none", "auto") and not tools:
            raise ApiError("tool_choice: there are no tools to choose from", param="tool_choice")
        if isinstance(self.tool_choice, NamedTool):
            wanted = self.tool_choice.function.name
            if wanted not in names:
                raise ApiError(
                    f"tool_choice: {wanted!r} is none of the tools: {', '.join(names)}",
                    param="tool_choice",
                )
        return [] if self.tool_choice == "none" else tools

    def grammar(self, tools: list[Tool], style: ToolStyle) -> GrammarSpec | None:
        """What the output must obey.

        Raises:
            ApiError: two things are asked for that exclude each other.
        """
        schema = self.response_format.schema_or_none() if self.response_format else None
        structure = self.structure()
        forced = self.tool_choice == "required" or isinstance(self.tool_choice, NamedTool)
        if structure is not None and (schema is not None or forced):
            raise ApiError(
                "structured_outputs: contradicts response_format or tool_choice; give one",
                param="structured_outputs",
            )
        if structure is not None:
            return structure
        many = self.parallel_tool_calls is not False
        if forced:
            if isinstance(self.tool_choice, NamedTool):
                wanted = self.tool_choice.function.name
                named = [tool for tool in tools if tool.name == wanted]
                return calls_grammar(named, style, many=False)
            return calls_grammar(tools, style, many=many)
        if schema is None:
            return None
        if tools:
            return calls_grammar(tools, style, many=many, otherwise=schema)
        return GrammarSpec.json(schema)


def _text(content: str | list[Any] | None) -> str | None:
    if content is None or isinstance(content, str):
        return content
    return "".join(part.text if isinstance(part, TextPart) else part.refusal for part in content)
