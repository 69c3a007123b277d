"""Formats that hold no model output: recognised by name, and refused with what to record instead.

Lengths, block hashes or prompts alone cannot be replayed: which drafts would have been accepted
depends on every token the model wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar, NoReturn

from suffixspec_index.errors import NoCompletionsError
from suffixspec_traces.model import Session
from suffixspec_traces.readers.base import TraceReader, register
from suffixspec_traces.readers.source import Sample, Source

_INSTEAD = (
    "record the conversations with their completions instead: OpenAI chat JSONL "
    '({"messages": [...]} a line, replies included), your agent framework\'s own trajectories, '
    "or `suffixspec record`"
)
_ANSWERS = {"completion", "response", "output", "answer", "chosen", "generated_text", "choices"}


class _RefusedFormat(TraceReader):
    """A format that is known and cannot be replayed."""

    reason: ClassVar[str]

    def read(self, source: Source) -> Iterator[Session]:
        """Refuse.

        Raises:
            NoCompletionsError: always.
        """
        self._refuse(source)

    def _refuse(self, source: Source) -> NoReturn:
        raise NoCompletionsError(f"{self.reason}; {_INSTEAD}", path=source.path)


@register
class VLLMCustomReader(_RefusedFormat):
    """vLLM's custom benchmark data set: prompts."""

    name = "vllm_custom"
    description = "vLLM bench custom data set (refused: prompts only)"
    reason = "a vLLM bench custom data set holds prompts and lengths, no completions"

    def sniff(self, sample: Sample) -> bool:
        """Objects with a ``prompt`` text and nothing that could be an answer."""
        objects = sample.objects()
        return bool(objects) and all(
            isinstance(o.get("prompt"), str)
            and not (_ANSWERS & o.keys())
            and "run_type" not in o
            and "type" not in o
            for o in objects
        )


@register
class TimedTraceReader(_RefusedFormat):
    """Mooncake and other timed traces: lengths and block hashes."""

    name = "timed_trace"
    description = "Mooncake and other timed traces (refused: lengths only)"
    reason = (
        "a Mooncake or timed trace holds times, lengths and block hashes, neither prompts nor "
        "completions"
    )

    def sniff(self, sample: Sample) -> bool:
        """Objects with ``input_length`` and ``output_length`` or ``hash_ids``."""
        return any(
            "input_length" in o and ("output_length" in o or "hash_ids" in o)
            for o in sample.objects()
        )


@register
class OpenAIBatchInputReader(_RefusedFormat):
    """The input file of OpenAI's batch API: requests."""

    name = "openai_batch_input"
    description = "OpenAI batch API input (refused: requests only)"
    reason = (
        "the input file of a batch holds requests, no completions (its output file holds answers "
        "without prompts; join both by custom_id)"
    )

    def sniff(self, sample: Sample) -> bool:
        """Objects with ``custom_id`` and a request ``body``, without a response."""
        return any(
            "custom_id" in o and isinstance(o.get("body"), dict) and "response" not in o
            for o in sample.objects()
        )


@register
class VLLMRequestLogReader(_RefusedFormat):
    """vLLM's log on standard output."""

    name = "vllm_request_log"
    description = "vLLM --enable-log-requests output (refused: no usable completions)"
    reason = (
        "a vLLM request log holds prompts; completions are left out, or cut short where "
        "--enable-log-outputs is set"
    )
    _LINE = re.compile(r"(Received request|Generated response) \S+: ")

    def sniff(self, sample: Sample) -> bool:
        """Text lines that announce requests, not JSON."""
        return not sample.objects() and self._LINE.search(sample.text) is not None
