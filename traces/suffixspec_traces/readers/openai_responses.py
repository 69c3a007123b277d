"""Logs of OpenAI's Responses API: a response with its ``output`` items, and its input.

The input stands beside the response, or the call is split into ``request`` and ``response``.
``previous_response_id`` ties a response to the one it continues.
"""

from __future__ import annotations

from collections.abc import Iterator

from suffixspec_traces.model import Session
from suffixspec_traces.readers.base import TraceReader, register
from suffixspec_traces.readers.blocks import system_message
from suffixspec_traces.readers.calls import Call, CallMerger
from suffixspec_traces.readers.dialects import any_messages, any_response
from suffixspec_traces.readers.messages import tool_definitions
from suffixspec_traces.readers.nodes import Node
from suffixspec_traces.readers.openai_requests import group_of, request_and_response
from suffixspec_traces.readers.source import Record, Sample, Source


@register
class OpenAIResponsesReader(TraceReader):
    """Reads logged responses and joins those that continue one another."""

    name = "openai_responses"
    description = "Logs of OpenAI's Responses API"
    empty_hint = "no response holds output items; log the response bodies too"

    def sniff(self, sample: Sample) -> bool:
        """An ``output`` list of typed items that is a response, in the record or below it."""
        return any(_is_response(item.get("response", item)) for item in sample.objects())

    def read(self, source: Source) -> Iterator[Session]:
        """Yield the conversations that the responses make up."""
        merger = CallMerger()
        for number, record in enumerate(source.items(), start=1):
            with source.checked(record.line):
                merger.add(_call(record, f"{source.stem}-{number}"))
        yield from merger.sessions(source=source.stem, format_name=self.name, path=source.path)


def _call(record: Record, name: str) -> Call:
    node = record.node
    request, response = request_and_response(node)
    if "output" not in response and "error" not in response:
        response["output"].expected("a list of output items")
    if "output" in response and not isinstance(response["output"].value, list):
        response["output"].expected("a list of output items")
    previous = _first("previous_response_id", request, response)
    instructions = _first("instructions", request, response)
    inputs = any_messages(request["input"])
    if previous.value is None:  # a continued conversation has its instructions already
        inputs = (system_message(instructions) if instructions else []) + inputs
    choices = any_response(response) if response["output"] else []
    return Call(
        id=response["id"].label() or name,
        inputs=tuple(inputs),
        choices=tuple(map(tuple, choices)),
        group=_conversation(response) or group_of(node, request),
        model=response["model"].optional_text() or request["model"].optional_text(),
        timestamp=response["created_at"].timestamp() or node["timestamp"].timestamp(),
        tools=tool_definitions(_first("tools", request, response)),
        continues=previous.optional_text(),
        line=record.line,
    )


def _first(key: str, request: Node, response: Node) -> Node:
    """A field that a response repeats from its request."""
    return (request if key in request else response)[key]


def _conversation(response: Node) -> str | None:
    node = response["conversation"]
    return node["id"].label() if isinstance(node.value, dict) else node.label()


def _is_response(value: object) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("output"), list):
        return False
    items = value["output"]
    typed = all(isinstance(item, dict) and isinstance(item.get("type"), str) for item in items)
    return value.get("object") == "response" or (bool(items) and typed and "run_type" not in value)
