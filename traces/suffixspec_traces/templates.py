"""Chat templates: Jinja as model files carry it, sandboxed, and what each template can express.

Templates differ in what they take: some print tool calls, some ignore them, some refuse a system
message or two user messages in a row. What one can do is found by rendering small probes, not by
reading its text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from suffixspec_index.errors import TokenizerError
from suffixspec_traces.trace_tokenizer import TraceTokenizer

ChatMessage = dict[str, Any]

# A prompt that prints today's date must not change from one replay to the next.
DEFAULT_DATE = datetime(2025, 1, 1, tzinfo=UTC)

_CHATML = (
    "{% for message in messages %}"
    "{{ start + message['role'] + '\n' + message['content'] + end + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ start + 'assistant\n' }}{% endif %}"
)


class TemplateRefusalError(Exception):
    """A template refused or could not print these messages."""


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """What a template can express.

    ``arguments`` says how it takes a tool call's arguments: as their JSON ``"text"``, as an
    ``"object"``, or ``None`` where it ignores tool calls altogether.
    """

    arguments: Literal["text", "object"] | None = None
    short_ids: bool = False  # tool call ids must be nine letters or digits
    tool_role: bool = False
    tools: bool = False
    system: bool = False
    late_system: bool = False
    assistant_first: bool = False
    repeated_user: bool = False
    repeated_assistant: bool = False
    null_content: bool = False
    reasoning: bool = False


STRICT = TemplateTraits()
"""Plain alternation of user and assistant text, which every template takes."""


class _GenerationTag(Extension):
    """``{% generation %}…{% endgeneration %}`` marks training targets; printing ignores it."""

    tags = {"generation"}  # noqa: RUF012  (the base class declares it as an instance variable)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


class ChatTemplate:
    """One compiled template.

    Args:
        source: the Jinja text.
        origin: where it came from, for reports.
        variables: what the template may name besides the messages (``bos_token`` …).

    Raises:
        TokenizerError: the text is not valid Jinja.
    """

    def __init__(self, source: str, *, origin: str, variables: dict[str, str]) -> None:
        self.source = source
        self.origin = origin
        self._variables = dict(variables)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TokenizerError(
                f"chat template ({origin}), line {error.lineno}: {error.message}; give a valid "
                "template or remove it to use the built-in ChatML"
            ) from error
        self.traits = _probe(self.render)

    @staticmethod
    def of(tokenizer: TraceTokenizer, source: str | None = None) -> ChatTemplate:
        """``source``, or the tokenizer's own template, or the built-in ChatML."""
        if source is not None:
            return ChatTemplate(source, origin="given", variables=tokenizer.named_tokens)
        if tokenizer.chat_template is not None:
            return ChatTemplate(
                tokenizer.chat_template,
                origin=tokenizer.template_origin or "tokenizer",
                variables=tokenizer.named_tokens,
            )
        return ChatTemplate.chatml(tokenizer)

    @staticmethod
    def chatml(tokenizer: TraceTokenizer) -> ChatTemplate:
        """The built-in ChatML.

        A vocabulary without ChatML's control tokens ends a turn with its own end token, if it has
        one: a marker spelled out in several ordinary tokens would be drafted far too easily.
        """
        start, end = "<|im_start|>", "<|im_end|>"
        note = "built-in ChatML"
        if tokenizer.token_id(end) not in tokenizer.special_token_ids:
            end = tokenizer.named_tokens.get("eos_token", end)
            note += f" (the vocabulary has no <|im_end|>; turns end with {end})"
        variables = {**tokenizer.named_tokens, "start": start, "end": end}
        return ChatTemplate(_CHATML, origin=note, variables=variables)

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool,
        tools: Sequence[dict[str, Any]] | None = None,
        date: datetime = DEFAULT_DATE,
    ) -> str:
        """The text of ``messages``. O(text).

        Raises:
            TemplateRefusalError: the template refused them.
        """
        try:
            return self._template.render(
                messages=messages,
                tools=tools or None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                strftime_now=date.strftime,
                **self._variables,
            )
        except Exception as error:  # a template is foreign code: it can raise anything
            raise TemplateRefusalError(f"{type(error).__name__}: {error}") from error


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: Jinja's own filter escapes HTML and sorts keys, which no model was trained on."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _probe(render: Callable[..., str]) -> TemplateTraits:
    """Find a template's traits by rendering small conversations."""

    def attempt(*messages: ChatMessage, tools: list[dict[str, Any]] | None = None) -> str:
        try:
            return render(messages, add_generation_prompt=False, tools=tools)
        except TemplateRefusalError:
            return ""

    user = {"role": "user", "content": "QUESTION"}
    reply = {"role": "assistant", "content": "ANSWER"}

    def calling(arguments: object, *, call_id: str = "abcde1234", content: str | None = "") -> str:
        call = {"id": call_id, "type": "function"}
        function = {"name": "PROBETOOL", "arguments": arguments}
        asking = {
            "role": "assistant",
            "content": content,
            "tool_calls": [call | {"function": function}],
        }
        result = {"role": "tool", "content": "RESULT", "name": "PROBETOOL", "tool_call_id": call_id}
        return attempt(user, asking, result, reply)

    # Odd spacing shows whether the text is printed as it stands.
    as_text, as_object = calling('{"key":  "VALUE"}'), calling({"key": "VALUE"})
    arguments: Literal["text", "object"] | None = None
    if "PROBETOOL" in as_text and '{"key":  "VALUE"}' in as_text:
        arguments = "text"
    elif "PROBETOOL" in as_object and "VALUE" in as_object:
        arguments = "object"
    given = '{"key":  "VALUE"}' if arguments == "text" else {"key": "VALUE"}
    null = calling(given, content=None)
    schema = {
        "name": "PROBETOOL",
        "description": "D",
        "parameters": {"type": "object", "properties": {}},
    }
    listed = attempt(user, reply, tools=[{"type": "function", "function": schema}])
    thinking = attempt(user, {**reply, "reasoning_content": "THOUGHT"})
    system = {"role": "system", "content": "RULES"}
    late = {"role": "system", "content": "LATER"}
    return TemplateTraits(
        arguments=arguments,
        short_ids=arguments is not None and not calling(given, call_id="call-PROBE-0001"),
        tool_role=arguments is not None and "RESULT" in calling(given),
        tools="PROBETOOL" in listed,
        system="RULES" in attempt(system, user, reply),
        late_system="LATER" in attempt(system, user, reply, late, user, reply),
        assistant_first="ANSWER" in attempt(reply, user),
        repeated_user=attempt(user, user, reply).count("QUESTION") == 2,
        repeated_assistant=attempt(user, reply, reply).count("ANSWER") == 2,
        null_content=arguments is not None and "PROBETOOL" in null and "None" not in null,
        reasoning="THOUGHT" in thinking,
    )
