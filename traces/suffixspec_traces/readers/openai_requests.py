"""Logs of OpenAI chat requests with their responses, one call a record.

The request stands under ``request`` (or ``body``, or beside the response), the response under
``response`` (or as ``choices`` in the record itself); a ``body`` inside either is opened, as the
batch API writes it.
"""

from __future__ import annotations

from collections.abc import Iterator

from suffixspec_traces.model import Session
from suffixspec_traces.readers.base import TraceReader, register
from suffixspec_traces.readers.calls import Call, CallMerger
from suffixspec_traces.readers.dialects import any_messages, any_response
from suffixspec_traces.readers.messages import tool_definitions
from suffixspec_traces.readers.nodes import Node
from suffixspec_traces.readers.source import Record, Sample, Source

GROUP_KEYS = ("session_id", "conversation_id", "thread_id", "trace_id")


@register
class OpenAIRequestsReader(TraceReader):
    """Reads chat completions logged with their requests, and joins the calls of a conversation."""

    name = "openai_requests"
    description = "Logs of chat completion requests with their responses"
    empty_hint = "no response holds a choice; log the response bodies too"

    def sniff(self, sample: Sample) -> bool:
        """A response with ``choices``, in the record or under ``response``."""
        return any(_holds_choices(item) for item in sample.objects())

    def read(self, source: Source) -> Iterator[Session]:
        """Yield the conversations that the calls make up."""
        merger = CallMerger()
        for number, record in enumerate(source.items(), start=1):
            with source.checked(record.line):
                merger.add(_call(record, f"{source.stem}-{number}"))
        yield from merger.sessions(source=source.stem, format_name=self.name, path=source.path)


def request_and_response(node: Node) -> tuple[Node, Node]:
    """The two halves of a logged call; each may be the record itself."""
    request = _opened(node.first("request", "body").decoded())
    response = _opened(node["response"].decoded())
    return (
        request if request else node,
        response if response else node,
    )


def group_of(record: Node, request: Node) -> str | None:
    """The session that a logged call says it belongs to."""
    for node in (record, request, record["metadata"], request["metadata"]):
        if not isinstance(node.value, dict):
            continue
        for key in GROUP_KEYS:
            if key in node:
                return node[key].label()
    return None


def _opened(node: Node) -> Node:
    return node["body"].decoded() if isinstance(node.value, dict) and "body" in node else node


def _call(record: Record, name: str) -> Call:
    node = record.node
    request, response = request_and_response(node)
    model = request["model"].optional_text()
    inputs = any_messages(request["messages"]) if "messages" in request else []
    if "choices" not in response and "error" not in response:
        response["choices"].expected("a list of choices")
    choices = any_response(response) if "choices" in response else []
    return Call(
        id=node.first("id", "request_id", "custom_id").label() or response["id"].label() or name,
        inputs=tuple(inputs),
        choices=tuple(map(tuple, choices)),
        group=group_of(node, request),
        model=model or response["model"].optional_text(),
        timestamp=node.first("timestamp", "created_at", "time", "start_time").timestamp()
        or response["created"].timestamp(),
        tools=tool_definitions(request["tools"]),
        line=record.line,
    )


def _holds_choices(item: dict[str, object]) -> bool:
    if {"run_type", "startTime", "extra"} & item.keys():
        return False
    response = item.get("response")
    if isinstance(response, dict) and isinstance(response.get("body"), dict):
        response = response["body"]
    holder = response if isinstance(response, dict) else item
    return isinstance(holder.get("choices"), list)
