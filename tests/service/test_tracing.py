"""OpenTelemetry: a span per generation reaches a collector, without its text."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from suffixspec_service.monitor import RequestRecord
from suffixspec_service.tracing import record_span, trace_to

RECORD = RequestRecord(
    tenant="acme",
    namespace="acme/m/t",
    model="m",
    api="chat",
    request_id="chatcmpl-17",
    session_id="s",
    started_at=time.time(),
    ttft_s=0.1,
    duration_s=0.5,
    prompt_tokens=5,
    output_tokens=7,
    steps=3,
    steps_with_draft=2,
    drafted=6,
    accepted=4,
)


def test_a_span_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry import trace

    received: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    monkeypatch.setattr("suffixspec_service.tracing._enabled", False)
    record_span(RECORD)  # does nothing yet
    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        trace_to(f"http://127.0.0.1:{server.server_port}/v1/traces")
        record_span(RECORD)
        provider = trace.get_tracer_provider()
        provider.shutdown()  # type: ignore[attr-defined]
        server.shutdown()
    (sent,) = received
    for told in (b"chat m", b"chatcmpl-17", b"gen_ai.usage.output_tokens", b"first token"):
        assert told in sent
