"""Langfuse exports: observations (blob storage, API), or traces with their observations inside.

Observations of type ``GENERATION`` are model calls; spans and tools repeat what stands in them.
"""

from __future__ import annotations

from collections.abc import Iterator

from suffixspec_traces.model import Session
from suffixspec_traces.readers.base import TraceReader, register
from suffixspec_traces.readers.calls import Call, CallMerger
from suffixspec_traces.readers.dialects import any_messages, any_response
from suffixspec_traces.readers.messages import tool_definitions
from suffixspec_traces.readers.nodes import Node
from suffixspec_traces.readers.source import Sample, Source

_KINDS = (
    "GENERATION",
    "SPAN",
    "EVENT",
    "TOOL",
    "AGENT",
    "CHAIN",
    "RETRIEVER",
    "EVALUATOR",
    "EMBEDDING",
    "GUARDRAIL",
)


@register
class LangfuseReader(TraceReader):
    """Reads Langfuse observations, and joins the generations of a session or trace."""

    name = "langfuse"
    description = "Langfuse observations and traces (JSONL, JSON)"
    empty_hint = (
        "no observation of type GENERATION has an output; export the observations with the fields "
        "input and output, not only traces or scores"
    )

    def sniff(self, sample: Sample) -> bool:
        """Observations of a known type that name their trace, or traces that hold such."""
        return any(_is_observation(item) or _is_trace(item) for item in sample.objects())

    def read(self, source: Source) -> Iterator[Session]:
        """Yield the conversations that the generations make up."""
        merger = CallMerger()
        for number, record in enumerate(source.items(), start=1):
            with source.checked(record.line):
                name = f"{source.stem}-{number}"
                for position, (node, session) in enumerate(_observations(record.node)):
                    if node["type"].value == "GENERATION":
                        merger.add(_call(node, session, f"{name}-{position}", record.line))
        yield from merger.sessions(source=source.stem, format_name=self.name, path=source.path)


def _observations(node: Node) -> Iterator[tuple[Node, str | None]]:
    """Observations with the session that the trace around them belongs to."""
    if "observations" not in node:
        yield node, None
        return
    session = node.first("sessionId", "session_id").label() or node["id"].label()
    for observation in node["observations"].elements():
        yield observation, session


def _call(node: Node, session: str | None, name: str, line: int | None) -> Call:
    own = node.first("session_id", "sessionId").label()
    request = node["input"].decoded()
    tools = request["tools"] if isinstance(request.value, dict) else Node(None)
    return Call(
        id=node["id"].label() or name,
        inputs=tuple(any_messages(request)),
        choices=tuple(map(tuple, any_response(node["output"]))),
        group=own or session or node.first("trace_id", "traceId").label(),
        model=node.first("model", "provided_model_name", "providedModelName").optional_text(),
        timestamp=node.first("start_time", "startTime").timestamp(),
        tools=tool_definitions(tools),
        line=line,
    )


def _is_observation(item: dict[str, object]) -> bool:
    return item.get("type") in _KINDS and ("trace_id" in item or "traceId" in item)


def _is_trace(item: dict[str, object]) -> bool:
    observations = item.get("observations")
    return isinstance(observations, list) and any(
        isinstance(o, dict) and o.get("type") in _KINDS for o in observations
    )
