"""Trace readers: one file per format, found by content.

Importing this package makes every reader known; :func:`detect` and :func:`reader_named` find one.
"""

from suffixspec_traces.readers import (  # noqa: F401  # each registers its reader
    anthropic_messages,
    atif,
    claude_code,
    codex,
    langfuse,
    langsmith,
    litellm,
    mini_swe_agent,
    no_completions,
    openai_chat,
    openai_requests,
    openai_responses,
    openhands,
    openhands_sdk,
    otel_genai,
    sharegpt,
    swe_agent,
    tau2,
    tau_bench,
)
from suffixspec_traces.readers.base import TraceReader, detect, reader_named, readers, register
from suffixspec_traces.readers.source import Record, Sample, Source

__all__ = [
    "Record",
    "Sample",
    "Source",
    "TraceReader",
    "detect",
    "reader_named",
    "readers",
    "register",
]
