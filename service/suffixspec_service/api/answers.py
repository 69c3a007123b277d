"""From a generation's events to what answers are made of; the same for every API."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from suffixspec_index.draft import Source
from suffixspec_service.api.problems import ApiError
from suffixspec_service.tool_calls import CallDelta, Delta, ToolCallParser
from suffixspec_service.version import version

if TYPE_CHECKING:
    from suffixspec_engine.metrics import RequestMetrics
    from suffixspec_engine.request import StepEvent
    from suffixspec_engine.sampling import TokenLogprobs
    from suffixspec_service.generation import Generation
    from suffixspec_service.runtime import Runtime
    from suffixspec_service.token_texts import TokenTexts

_PREDICTION = Source.PREDICTION.label


class ChoiceReader:
    """Reads one choice's events.

    Args:
        tool_names: of the tools whose calls are to be recognised; empty: everything is text.

    Attributes:
        text: said so far, calls left out.
        calls: id, name and arguments of each call so far.
        finish_reason: as OpenAI has it; ``None``: not over.
    """

    def __init__(self, tool_names: Sequence[str] = ()) -> None:
        self._parser = ToolCallParser(tool_names) if tool_names else None
        self.text = ""
        self.calls: list[dict[str, str]] = []
        self.logprobs: list[TokenLogprobs] = []
        self.finish_reason: str | None = None

    def read(self, event: StepEvent) -> list[Delta]:
        """What an event adds.

        Raises:
            ApiError: the generation failed.
        """
        check_event(event)
        self.logprobs.extend(event.logprobs or ())
        deltas: list[Delta]
        if self._parser is None:
            deltas = [event.text] if event.text else []
        else:
            deltas = self._parser.feed(event.text)
            if event.finish_reason is not None:
                deltas += self._parser.finish()
        for delta in deltas:
            self._keep(delta)
        if event.finish_reason is not None:
            called = self.calls and event.finish_reason == "stop"
            self.finish_reason = "tool_calls" if called else event.finish_reason
        return deltas

    def _keep(self, delta: Delta) -> None:
        if isinstance(delta, CallDelta):
            if delta.name is not None:
                self.calls.append({"id": delta.call_id or "", "name": delta.name, "arguments": ""})
            self.calls[delta.index]["arguments"] += delta.arguments
        else:
            self.text += delta


def check_event(event: StepEvent) -> None:
    """Raise :class:`ApiError` where a generation did not end by itself."""
    if event.finish_reason == "error":
        raise ApiError(
            f"the generation failed: {event.stop_reason}",
            status=500,
            kind="server_error",
            code="generation_failed",
        )
    if event.finish_reason == "cancelled":
        raise ApiError(
            "the generation was ended by the service",
            status=503,
            kind="service_unavailable_error",
            code="cancelled",
        )


def usage(generation: Generation) -> dict[str, Any]:
    """``usage``, of all choices together; the prompt counts once."""
    metrics = generation.metrics
    output = sum(one.output_tokens for one in metrics)
    drafted, accepted = 0, 0
    for one in metrics:
        counts = one.by_source.get(_PREDICTION)
        if counts is not None:
            drafted += counts.drafted
            accepted += counts.accepted
    return {
        "prompt_tokens": generation.prompt_tokens,
        "completion_tokens": output,
        "total_tokens": generation.prompt_tokens + output,
        "prompt_tokens_details": {
            "cached_tokens": max(one.cached_tokens for one in metrics),
            "audio_tokens": 0,
        },
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
            "reasoning_tokens": 0,
            "audio_tokens": 0,
        },
    }


def speculation(metrics: Sequence[RequestMetrics]) -> dict[str, Any]:
    """``metrics``: vLLM's names under ``speculative_decoding``, and times."""
    drafted = sum(one.drafted for one in metrics)
    accepted = sum(one.accepted for one in metrics)
    with_draft = sum(one.draft_steps for one in metrics)
    output = sum(one.output_tokens for one in metrics)
    steps = sum(one.steps for one in metrics)
    histogram = [0] * max((len(one.acceptance_histogram) for one in metrics), default=0)
    sources: dict[str, dict[str, int]] = {}
    for one in metrics:
        for length, count in enumerate(one.acceptance_histogram):
            histogram[length] += count
        for name, counts in one.by_source.items():
            held = sources.setdefault(name, {"drafted": 0, "accepted": 0})
            held["drafted"] += counts.drafted
            held["accepted"] += counts.accepted
    first = metrics[0]
    return {
        "speculative_decoding": {
            "mean_acceptance_length": 1 + accepted / with_draft if with_draft else 1.0,
            "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
            "acceptance_histogram": histogram,
            "num_spec_steps": with_draft,
            "num_draft_tokens": drafted,
            "num_accepted_draft_tokens": accepted,
            "num_steps": steps,
            "tokens_per_step": output / steps if steps else 0.0,
            "by_source": sources,
        },
        "time_to_first_token_ms": round(first.time_to_first_token * 1000, 3),
        "queue_time_ms": round((first.started_at - first.queued_at) * 1000, 3),
        "engine_time_ms": round(
            (max(one.finished_at for one in metrics) - first.queued_at) * 1000, 3
        ),
    }


@dataclass(frozen=True, slots=True)
class Identity:
    """What every answer says about itself."""

    model: str
    fingerprint: str

    @classmethod
    def of(cls, runtime: Runtime) -> Identity:
        """The identity of a service: it changes with version, model and tokenizer."""
        assert runtime.model is not None
        told = f"{version()}\0{runtime.model.name}\0{runtime.model.tokenizer}"
        mark = hashlib.blake2b(told.encode(), digest_size=5).hexdigest()
        return cls(runtime.model.name, f"fp_{mark}")


def chat_logprobs(texts: TokenTexts, logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """``choices[i].logprobs`` of a chat."""

    def one(token_id: int, logprob: float) -> dict[str, Any]:
        raw = texts.bytes_of(token_id)
        return {
            "token": raw.decode("utf-8", "replace"),
            "logprob": _finite(logprob),
            "bytes": list(raw),
        }

    return {
        "content": [
            one(given.token_id, given.logprob) | {"top_logprobs": [one(*top) for top in given.top]}
            for given in logprobs
        ],
        "refusal": None,
    }


def _finite(logprob: float) -> float:
    """JSON knows no infinity; OpenAI's smallest number stands for it."""
    return max(logprob, -9999.0)
