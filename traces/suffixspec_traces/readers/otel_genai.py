"""OpenTelemetry GenAI spans in OTLP JSON, as collectors' file exporters write them.

The current semantic conventions (``gen_ai.input.messages``, ``gen_ai.output.messages``) and two
older dialects: OpenInference (``llm.input_messages``) and OpenLLMetry (``gen_ai.prompt.0...``).
Spans of agents and tools repeat what the model spans below them hold, and are left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from suffixspec_traces.model import Message, Role, Session, ToolCall
from suffixspec_traces.readers.base import TraceReader, register
from suffixspec_traces.readers.calls import Call, CallMerger
from suffixspec_traces.readers.messages import (
    arguments_text,
    as_generated,
    openai_message,
    tool_definitions,
)
from suffixspec_traces.readers.nodes import Node
from suffixspec_traces.readers.otlp import attributes, nested, spans
from suffixspec_traces.readers.source import Sample, Source

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_NO_MODEL = ("invoke_agent", "create_agent", "execute_tool", "embeddings", "invoke_workflow")
_EVENT = "gen_ai.client.inference.operation.details"


@register
class OTelGenAIReader(TraceReader):
    """Reads model calls from spans, and joins those of a conversation."""

    name = "otel_genai"
    description = "OpenTelemetry GenAI spans (OTLP JSON)"
    empty_hint = (
        "no span holds gen_ai.output.messages; message content is opt-in, switch it on with "
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true (OpenLLMetry: "
        "TRACELOOP_TRACE_CONTENT=true)"
    )

    def sniff(self, sample: Sample) -> bool:
        """An export request with ``resourceSpans``."""
        keys = ("resourceSpans", "resource_spans")
        return any(isinstance(o.get(key), list) for o in sample.objects() for key in keys)

    def read(self, source: Source) -> Iterator[Session]:
        """Yield the conversations that the model spans make up."""
        merger = CallMerger()
        for record in source.items():
            with source.checked(record.line):
                for span in spans(record.node):
                    with source.checked(record.line):
                        call = _call(span, record.line)
                        if call is not None:
                            merger.add(call)
        yield from merger.sessions(source=source.stem, format_name=self.name, path=source.path)


def _call(span: Node, line: int | None) -> Call | None:
    found = attributes(span)
    if found["gen_ai.operation.name"].value in _NO_MODEL:
        return None
    for event in span["events"].elements_if_any():
        if event["name"].value == _EVENT:  # content may be recorded on an event instead
            found = Node(found.object() | attributes(event).object(), span, "attributes")
    inputs, outputs = _current(found)
    if not outputs:
        inputs, outputs = _openinference(found)
    if not outputs:
        inputs, outputs = _openllmetry(found)
    if not outputs:
        return None
    trace = span.first("traceId", "trace_id").label()
    name = span.first("spanId", "span_id").label() or ""
    session = found.first("gen_ai.conversation.id", "session.id").label()
    model = found.first("gen_ai.response.model", "gen_ai.request.model", "llm.model_name")
    return Call(
        id=f"{trace}/{name}",
        inputs=tuple(inputs),
        choices=tuple((output,) for output in outputs),
        group=session or trace,
        model=model.optional_text(),
        timestamp=span.first("startTimeUnixNano", "start_time_unix_nano").timestamp(),
        tools=tool_definitions(found["gen_ai.tool.definitions"]),
        line=line,
    )


def _current(found: Node) -> tuple[list[Message], list[Message]]:
    system = found["gen_ai.system_instructions"].decoded()
    inputs: list[Message] = []
    if isinstance(system.value, str):
        inputs.append(Message("system", system.value))
    elif system.value is not None:
        inputs.append(Message("system", _parts_text(list(system.elements()))))
    for node in found["gen_ai.input.messages"].decoded().elements_if_any():
        inputs.extend(_parts_messages(node, generated=False))
    outputs = [
        message
        for node in found["gen_ai.output.messages"].decoded().elements_if_any()
        for message in _parts_messages(node, generated=True)
        if message.generated
    ]
    return inputs, outputs


def _parts_messages(node: Node, *, generated: bool) -> list[Message]:
    """One message of the current conventions; results of tools become messages of their own."""
    role = node["role"].text()
    if role not in _ROLES:
        node["role"].fail(f"unknown role {role[:40]!r}; expected one of {', '.join(_ROLES)}")
    if "parts" not in node and "content" in node:
        return [openai_message(node, generated=generated)]
    parts = list(node["parts"].elements_if_any())
    results = [_result(part) for part in parts if part["type"].value == "tool_call_response"]
    text = _parts_text(parts)
    if _ROLES[role] != "assistant":
        said = [Message(_ROLES[role], text)] if text is not None or not results else []
        return results + said
    calls = tuple(
        ToolCall(part["name"].text(), arguments_text(part["arguments"]), part["id"].label())
        for part in parts
        if part["type"].value == "tool_call"
    )
    thoughts = _parts_text(parts, kind="reasoning")
    message = Message("assistant", text, tool_calls=calls, reasoning=thoughts)
    return [as_generated(message, generated), *results]


def _parts_text(parts: list[Node], kind: str = "text") -> str | None:
    texts = [part["content"].text() for part in parts if part["type"].value == kind]
    return "".join(texts) if texts else None


def _result(part: Node) -> Message:
    response = part.first("response", "result")
    text = response.value if isinstance(response.value, str) else response.json_text()
    return Message("tool", text, tool_call_id=part["id"].label())


def _openinference(found: Node) -> tuple[list[Message], list[Message]]:
    prompts = nested(found, "llm.input_messages").elements_if_any()
    answers = nested(found, "llm.output_messages").elements_if_any()
    return (
        [_flattened(node["message"], generated=False) for node in prompts],
        [m for node in answers if (m := _flattened(node["message"], generated=True)).generated],
    )


def _openllmetry(found: Node) -> tuple[list[Message], list[Message]]:
    prompts = nested(found, "gen_ai.prompt").elements_if_any()
    answers = nested(found, "gen_ai.completion").elements_if_any()
    return (
        [_flattened(node, generated=False) for node in prompts],
        [m for node in answers if (m := _flattened(node, generated=True)).generated],
    )


def _flattened(node: Node, *, generated: bool) -> Message:
    """A message put together from flat attributes."""
    fields = dict(node.object())
    fields.setdefault("role", "assistant" if generated else "user")
    calls = fields.get("tool_calls")
    if isinstance(calls, list):
        fields["tool_calls"] = [
            call["tool_call"] if isinstance(call, dict) and "tool_call" in call else call
            for call in calls
        ]
    return openai_message(Node(fields, node), generated=generated)
