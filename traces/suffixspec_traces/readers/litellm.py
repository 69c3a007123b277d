"""LiteLLM spend logs: the proxy's table ``LiteLLM_SpendLogs``, or its ``/spend/logs`` answers.

The table holds no text unless the proxy was told to keep it; then ``messages`` (or
``proxy_server_request``) and ``response`` do.
"""

from __future__ import annotations

from collections.abc import Iterator

from suffixspec_traces.model import Session
from suffixspec_traces.readers.base import TraceReader, register
from suffixspec_traces.readers.calls import Call, CallMerger
from suffixspec_traces.readers.dialects import any_messages, any_response
from suffixspec_traces.readers.messages import tool_definitions
from suffixspec_traces.readers.source import Record, Sample, Source


@register
class LiteLLMReader(TraceReader):
    """Reads LiteLLM spend logs, and joins the requests of a session."""

    name = "litellm"
    description = "LiteLLM proxy spend logs"
    empty_hint = (
        "LiteLLM stores neither prompts nor responses by default; set "
        "general_settings.store_prompts_in_spend_logs: true in the proxy's configuration "
        "(or store_prompts_in_spend_logs in the UI's logging settings) and record again"
    )

    def sniff(self, sample: Sample) -> bool:
        """Rows with ``request_id``, ``startTime`` and ``spend`` or ``call_type``."""
        return any(
            "request_id" in o and "startTime" in o and ("spend" in o or "call_type" in o)
            for o in sample.objects()
        )

    def read(self, source: Source) -> Iterator[Session]:
        """Yield the conversations that the requests make up."""
        merger = CallMerger()
        for number, record in enumerate(source.items(), start=1):
            with source.checked(record.line):
                merger.add(_call(record, f"{source.stem}-{number}"))
        yield from merger.sessions(source=source.stem, format_name=self.name, path=source.path)


def _call(record: Record, name: str) -> Call:
    node = record.node
    request = node["proxy_server_request"].decoded()
    if isinstance(request.value, dict) and "body" in request:
        request = request["body"].decoded()
    messages = node["messages"].decoded()
    tools = request["tools"] if isinstance(request.value, dict) else node["tools"]
    return Call(
        id=node["request_id"].label() or name,
        inputs=tuple(any_messages(messages if messages else request)),
        choices=tuple(map(tuple, any_response(node["response"]))),
        group=node["session_id"].label() or None,
        model=node["model"].optional_text(),
        timestamp=node["startTime"].timestamp(),
        tools=tool_definitions(tools),
        line=record.line,
    )
