"""What happened to each request, and the figures over all of them.

The metrics are vLLM's. With speculation a chunk of a stream may hold several tokens: ``itl`` is the
time between chunks, which is what a reader of the stream sees; ``tpot`` is the time per token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from suffixspec.bench.speculation import SpeculationFigures
from suffixspec.bench.workload import BenchRequest
from suffixspec_index.errors import ConfigError

METRICS = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "inter-token latency",
    "e2el": "end-to-end latency",
}


@dataclass(slots=True)
class RequestResult:
    """One request, sent and answered. Times are ``time.perf_counter`` seconds.

    Attributes:
        request: what was asked.
        sent: when.
        arrivals: when each chunk with output came.
        ended: when the answer was complete.
        output_tokens, prompt_tokens: counted by who served it.
        cached_tokens: of the prompt, not computed again; ``None``: not told.
        token_ids: the output; ``None`` where only the text is told.
        text: the output.
        error: why there is no answer; ``None`` if there is one.
    """

    request: BenchRequest
    sent: float
    arrivals: list[float] = field(default_factory=list)
    ended: float = 0.0
    output_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    token_ids: tuple[int, ...] | None = None
    text: str = ""
    error: str | None = None

    @property
    def ttft(self) -> float:
        """Seconds to the first output."""
        return self.arrivals[0] - self.sent if self.arrivals else self.latency

    @property
    def latency(self) -> float:
        """Seconds from the request to the end of its answer."""
        return self.ended - self.sent

    @property
    def tpot(self) -> float:
        """Seconds per output token after the first; 0 where there is one token only."""
        more = self.output_tokens - 1
        return (self.latency - self.ttft) / more if more > 0 else 0.0

    @property
    def itls(self) -> list[float]:
        """Seconds between chunks."""
        return [b - a for a, b in zip(self.arrivals, self.arrivals[1:], strict=False)]


@dataclass(slots=True)
class Round:
    """One pass over the workload by one rival.

    Attributes:
        results: in the order of ending; failed ones included.
        seconds: from the first request to the last answer.
        speculation: what was drafted meanwhile; ``None``: not told.
        complete: whether the whole workload was served.
    """

    results: list[RequestResult] = field(default_factory=list)
    seconds: float = 0.0
    speculation: SpeculationFigures | None = None
    complete: bool = False


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one rival, over all its rounds.

    Attributes:
        label: the rival.
        rounds: how many.
        completed, failed: requests.
        seconds: median length of a round.
        request_throughput, output_throughput, total_throughput: per second; medians of rounds.
        goodput: answered within all objectives, requests per second; ``None``: none were set.
        input_tokens, output_tokens: over all rounds.
        cached_tokens: prompt tokens not computed again; ``None``: not told.
        milliseconds: metric -> all values, over all rounds.
        speculation: summed over all rounds; ``None``: not told.
        complete: no round was cut short.
        errors: distinct reasons of failure.
    """

    label: str
    rounds: int
    completed: int
    failed: int
    seconds: float
    request_throughput: float
    output_throughput: float
    total_throughput: float
    goodput: float | None
    input_tokens: int
    output_tokens: int
    cached_tokens: int | None
    milliseconds: Mapping[str, Sequence[float]]
    speculation: SpeculationFigures | None
    complete: bool
    errors: tuple[str, ...]

    def percentile(self, metric: str, percent: float) -> float | None:
        """Milliseconds that ``percent`` of the values do not exceed; ``None``: no values."""
        values = self.milliseconds[metric]
        return float(np.percentile(values, percent)) if len(values) else None

    def as_json(self, metrics: Sequence[str], percentiles: Sequence[float]) -> dict[str, Any]:
        """vLLM's result keys where it has them."""
        found: dict[str, Any] = {
            "label": self.label,
            "rounds": self.rounds,
            "complete": self.complete,
            "duration": self.seconds,
            "completed": self.completed,
            "failed": self.failed,
            "errors": list(self.errors),
            "total_input_tokens": self.input_tokens,
            "cached_input_tokens": self.cached_tokens,
            "total_output_tokens": self.output_tokens,
            "request_throughput": self.request_throughput,
            "request_goodput": self.goodput,
            "output_throughput": self.output_throughput,
            "total_token_throughput": self.total_throughput,
        }
        for metric in metrics:
            values = self.milliseconds[metric]
            found[f"mean_{metric}_ms"] = float(np.mean(values)) if len(values) else None
            found[f"median_{metric}_ms"] = self.percentile(metric, 50)
            found[f"std_{metric}_ms"] = float(np.std(values)) if len(values) else None
            for percent in percentiles:
                found[f"p{percent:g}_{metric}_ms"] = self.percentile(metric, percent)
        if self.speculation is not None:
            found |= self.speculation.as_json()
        return found


def summarize(
    label: str, rounds: Sequence[Round], goodput: Mapping[str, float] | None = None
) -> Summary:
    """Figures over a rival's rounds. O(chunks).

    Args:
        rounds: at least one.
        goodput: metric -> most milliseconds of a request that counts as good.
    """
    answered = [[r for r in one.results if r.error is None] for one in rounds]
    every = [result for results in answered for result in results]
    seconds = [max(one.seconds, 1e-9) for one in rounds]

    def rate(amount: Iterable[float]) -> float:
        return float(np.median([a / s for a, s in zip(amount, seconds, strict=True)]))

    outputs = [sum(r.output_tokens for r in results) for results in answered]
    inputs = [sum(r.prompt_tokens for r in results) for results in answered]
    cached = [r.cached_tokens for r in every]
    figures = [one.speculation for one in rounds if one.speculation is not None]
    failed = [r.error for one in rounds for r in one.results if r.error is not None]
    good = [sum(_is_good(r, goodput or {}) for r in results) for results in answered]
    return Summary(
        label=label,
        rounds=len(rounds),
        completed=len(every),
        failed=len(failed),
        seconds=float(np.median(seconds)),
        request_throughput=rate(map(len, answered)),
        output_throughput=rate(outputs),
        total_throughput=rate(a + b for a, b in zip(inputs, outputs, strict=True)),
        goodput=rate(good) if goodput else None,
        input_tokens=sum(inputs),
        output_tokens=sum(outputs),
        cached_tokens=sum(c for c in cached if c is not None) if None not in cached else None,
        milliseconds={
            "ttft": [1e3 * r.ttft for r in every if r.arrivals],
            "tpot": [1e3 * r.tpot for r in every if r.output_tokens > 1],
            "itl": [1e3 * gap for r in every for gap in r.itls],
            "e2el": [1e3 * r.latency for r in every],
        },
        speculation=sum(figures[1:], figures[0]) if figures else None,
        complete=all(one.complete for one in rounds),
        errors=tuple(dict.fromkeys(failed)),
    )


def _is_good(result: RequestResult, goodput: Mapping[str, float]) -> bool:
    values = {"ttft": result.ttft, "tpot": result.tpot, "e2el": result.latency}
    return all(1e3 * values[metric] <= limit for metric, limit in goodput.items())


def parse_goodput(pairs: Sequence[str]) -> dict[str, float]:
    """``["ttft:500", "tpot:50"]`` -> milliseconds by metric, as vLLM writes them.

    Raises:
        ConfigError: not of that form, or not a metric of whole requests.
    """
    found: dict[str, float] = {}
    for pair in (part for text in pairs for part in text.split()):
        metric, _, limit = pair.partition(":")
        try:
            value = float(limit)
        except ValueError:
            value = -1.0
        if metric not in ("ttft", "tpot", "e2el") or value < 0:
            raise ConfigError(
                f"--goodput: {pair!r} is not METRIC:MILLISECONDS with ttft, tpot or e2el"
            )
        found[metric] = value
    return found


@dataclass(frozen=True, slots=True)
class Equality:
    """Whether one rival said what another said.

    Attributes:
        reference: whom it is compared with.
        compared: requests that both answered.
        different: of them, those whose outputs differ.
        first: request number and output position (token, or character where only texts are
            told) of the first difference.
    """

    reference: str
    compared: int
    different: int
    first: tuple[int, int] | None

    def as_json(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "reference": self.reference,
            "compared": self.compared,
            "different": self.different,
            "first_difference": list(self.first) if self.first else None,
        }


def compare(name: str, reference: Sequence[Round], other: Sequence[Round]) -> Equality:
    """Compare the outputs of every round with the reference's first answer to each request."""
    truth: dict[int, RequestResult] = {}
    for result in (r for one in reference for r in one.results if r.error is None):
        truth.setdefault(result.request.number, result)
    compared, differing = 0, []
    for result in (r for one in other for r in one.results if r.error is None):
        wanted = truth.get(result.request.number)
        if wanted is None:
            continue
        compared += 1
        place = _difference(wanted, result)
        if place is not None:
            differing.append((result.request.number, place))
    return Equality(name, compared, len(differing), min(differing, default=None))


def _difference(left: RequestResult, right: RequestResult) -> int | None:
    a: Sequence[Any] = left.text
    b: Sequence[Any] = right.text
    if left.token_ids is not None and right.token_ids is not None:
        a, b = left.token_ids, right.token_ids
    if a == b:
        return None
    common = min(len(a), len(b))
    return next((i for i in range(common) if a[i] != b[i]), common)
