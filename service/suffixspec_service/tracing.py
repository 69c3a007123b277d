"""OpenTelemetry traces, where they are wanted: one span per generation, without its text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suffixspec_index.errors import MissingDependencyError

if TYPE_CHECKING:
    from suffixspec_service.monitor import RequestRecord

_NAME = "suffixspec"
_enabled = False


def trace_to(endpoint: str) -> None:
    """Send traces to a collector, by OTLP over HTTP, in the background.

    Args:
        endpoint: e.g. ``http://localhost:4318/v1/traces``.

    Raises:
        MissingDependencyError: OpenTelemetry is not installed.
    """
    global _enabled
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise MissingDependencyError(
            "traces_endpoint: needs OpenTelemetry; run: pip install 'suffixspec[otel]'"
        ) from error
    provider = TracerProvider(resource=Resource.create({"service.name": _NAME}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    trace.set_tracer_provider(provider)
    _enabled = True


def record_span(record: RequestRecord) -> None:
    """A span for a finished request, under OpenTelemetry's names for generative AI where there
    is one. Does nothing unless :func:`trace_to` was called."""
    if not _enabled:
        return
    from opentelemetry import trace

    span = trace.get_tracer(_NAME).start_span(
        f"{record.api} {record.model}",
        start_time=int(record.started_at * 1e9),
        attributes={
            "gen_ai.system": _NAME,
            "gen_ai.request.model": record.model,
            "gen_ai.response.id": record.request_id,
            "gen_ai.response.finish_reasons": (record.status,),
            "gen_ai.usage.input_tokens": record.prompt_tokens,
            "gen_ai.usage.output_tokens": record.output_tokens,
            "suffixspec.tenant": record.tenant,
            "suffixspec.session": record.session_id,
            "suffixspec.cached_tokens": record.cached_tokens,
            "suffixspec.steps": record.steps,
            "suffixspec.drafted": record.drafted,
            "suffixspec.accepted": record.accepted,
        },
    )
    if record.ttft_s is not None:
        first = int((record.started_at + record.ttft_s) * 1e9)
        span.add_event("first token", timestamp=first)
    span.end(end_time=int((record.started_at + record.duration_s) * 1e9))
