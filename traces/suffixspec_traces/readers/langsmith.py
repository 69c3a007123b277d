"""LangSmith runs: the SDK's ``list_runs`` written as JSON(L), or a bulk export in Parquet.

Only runs of type ``llm`` are model calls; chains and tools repeat what stands in them.
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

_THREAD_KEYS = ("thread_id", "session_id", "conversation_id")


@register
class LangSmithReader(TraceReader):
    """Reads LangSmith runs, and joins the model calls of a thread or trace."""

    name = "langsmith"
    description = "LangSmith runs (JSON, JSONL, Parquet)"
    empty_hint = (
        "no run of type llm has outputs; export child runs too (not only root runs), and do not "
        "set LANGSMITH_HIDE_OUTPUTS when recording"
    )

    def sniff(self, sample: Sample) -> bool:
        """Objects with ``run_type`` and ``inputs`` or ``outputs``."""
        return any("run_type" in o and ("inputs" in o or "outputs" in o) for o in sample.objects())

    def read(self, source: Source) -> Iterator[Session]:
        """Yield the conversations that the model runs make up."""
        merger = CallMerger()
        for number, record in enumerate(source.items(), start=1):
            with source.checked(record.line):
                if record.node["run_type"].text() == "llm":
                    merger.add(_call(record, f"{source.stem}-{number}"))
        yield from merger.sessions(source=source.stem, format_name=self.name, path=source.path)


def _call(record: Record, name: str) -> Call:
    node = record.node
    extra = _object(node["extra"].decoded())
    metadata = _object(extra["metadata"].decoded())
    invocation = _object(extra["invocation_params"].decoded())
    model = metadata["ls_model_name"].optional_text()
    return Call(
        id=node["id"].label() or name,
        inputs=tuple(any_messages(node["inputs"])),
        choices=tuple(map(tuple, any_response(node["outputs"]))),
        group=metadata.first(*_THREAD_KEYS).label() or node["trace_id"].label(),
        model=model or invocation.first("model", "model_name").optional_text(),
        timestamp=node["start_time"].timestamp(),
        tools=tool_definitions(invocation["tools"]),
        line=record.line,
    )


def _object(node: Node) -> Node:
    return node if isinstance(node.value, dict) else Node({})
