"""Timing an OpenAI-compatible endpoint from outside, by the gaps between what it streams.

What can be identified so, and what cannot: while ``n`` streams run and the engine does not
speculate, each of its steps gives every stream one token, so the gap between two pieces of a stream
is the time of a step of ``n`` tokens, network and server included. Steps of more tokens than
streams, which is what speculation makes of them, are not seen; they are taken to cost what as many
streams do, which is right where a step's cost follows its tokens and somewhat dear where each
request costs something by itself. Further context is told by a second, longer prompt.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from suffixspec_index.errors import ConfigError, InputError, MissingDependencyError

Progress = Callable[[int, int, str], None]
_WORDS = """
the and for that with this from have not are was can but all will one has more when your about time
new there some what just like they other into make also how then work only first day way use good
any these would people where get may see over need after most two should
"""
_SKIPPED = 2  # first pieces of a stream: prefill, and the step beside it


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointOptions:
    """What to ask of an endpoint.

    Attributes:
        url: with ``/v1``, such as ``http://localhost:8000/v1``.
        model: as the endpoint names it.
        api_key: sent as a bearer token, if given.
        concurrencies: numbers of streams at a time; 1 among them.
        prompt_words: words of the short prompt.
        long_prompt_words: of the long one; 0: the context is not varied.
        tokens: output tokens of a stream.
        timeout_s: for a whole stream.
    """

    url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    concurrencies: tuple[int, ...] = (1, 2, 4, 8, 16)
    prompt_words: int = 200
    long_prompt_words: int = 2000
    tokens: int = 64
    timeout_s: float = 300.0

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"url: must begin with http:// or https://, got {self.url!r}")
        if 1 not in self.concurrencies or min(self.concurrencies) < 1:
            raise ConfigError(
                f"concurrency: must hold 1 and nothing below, got {list(self.concurrencies)}"
            )
        if len(set(self.concurrencies)) < 2:
            raise ConfigError("concurrency: give at least two numbers, such as 1,8")
        if self.tokens < 8:
            raise ConfigError(f"tokens: must be at least 8 to see a step's time, got {self.tokens}")


@dataclass(frozen=True, slots=True)
class EndpointTimes:
    """What an endpoint's streams showed.

    Attributes:
        step_ms: streams at a time -> median gap between pieces, milliseconds.
        ms_per_1000_context_tokens: what longer prompts added; 0 where they were not varied.
        prompt_tokens: of the short prompt, as the endpoint counts.
        tokens_per_piece: output tokens over pieces; above 1 the endpoint speculates or gathers
            tokens, and a gap is no longer the time of one step of so many tokens.
    """

    step_ms: dict[int, float]
    ms_per_1000_context_tokens: float
    prompt_tokens: int
    tokens_per_piece: float


class _RefusedError(InputError):
    """The endpoint answered, but with an error."""


@dataclass(slots=True)
class _Stream:
    gaps: list[float]
    pieces: int
    prompt_tokens: int
    output_tokens: int


def measure_endpoint(
    options: EndpointOptions,
    *,
    stop: threading.Event | None = None,
    progress: Progress | None = None,
) -> EndpointTimes | None:
    """Time an endpoint; ``None`` if it was stopped.

    Raises:
        InputError: the endpoint cannot be reached, refuses, or streams too little.
        MissingDependencyError: httpx is not installed.
    """
    return asyncio.run(_measure(options, stop, progress))


async def _measure(
    options: EndpointOptions, stop: threading.Event | None, progress: Progress | None
) -> EndpointTimes | None:
    httpx = _import_httpx()
    headers = {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}
    rounds = [(n, options.prompt_words) for n in sorted(set(options.concurrencies))]
    if options.long_prompt_words:
        rounds.append((1, options.long_prompt_words))
    number = itertools.count()
    found: dict[tuple[int, int], list[_Stream]] = {}
    async with httpx.AsyncClient(headers=headers, timeout=options.timeout_s) as client:
        for done, (n, words) in enumerate(rounds):  # which may grow by a round
            if stop is not None and stop.is_set():
                return None
            if progress is not None:
                progress(done, len(rounds), f"{n} streams behind {words} words")
            try:
                streams = [_stream(httpx, client, options, words, next(number)) for _ in range(n)]
                found[n, words] = list(await asyncio.gather(*streams))
            except _RefusedError:
                if words == options.prompt_words:
                    raise
                # The model's context is shorter than the long prompt: a shorter one will do.
                if words // 2 > 2 * options.prompt_words:
                    rounds.append((n, words // 2))
    return _summary(options, found)


async def _stream(
    httpx: Any, client: Any, options: EndpointOptions, words: int, number: int
) -> _Stream:
    """One stream: the gaps between its pieces."""
    body = {
        "model": options.model,
        "prompt": _prompt(words, number),
        "max_tokens": options.tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    url = options.url.rstrip("/") + "/completions"
    times: list[float] = []
    usage: dict[str, Any] = {}
    try:
        async with client.stream("POST", url, json=body) as response:
            if response.status_code != 200:
                text = (await response.aread()).decode(errors="replace")[:200]
                raise _RefusedError(f"{url}: answered {response.status_code}: {text}")
            async for line in response.aiter_lines():
                if not line.startswith("data:") or line.endswith("[DONE]"):
                    continue
                event = json.loads(line.removeprefix("data:"))
                usage = event.get("usage") or usage
                if event.get("choices"):
                    times.append(time.perf_counter())
    except _RefusedError:
        raise
    except (httpx.HTTPError, ValueError) as error:
        raise InputError(f"{url}: {type(error).__name__}: {error}") from error
    gaps = [(b - a) * 1000.0 for a, b in pairwise(times)]
    if len(gaps) < _SKIPPED + 4:
        raise InputError(
            f"{url}: streamed {len(times)} pieces of {options.tokens} tokens, too few to see a "
            "step's time; ask for more tokens, or turn speculation off in the endpoint"
        )
    return _Stream(
        gaps[_SKIPPED:],
        len(times),
        int(usage.get("prompt_tokens") or words),
        int(usage.get("completion_tokens") or len(times)),
    )


def _prompt(words: int, number: int) -> str:
    """Words in an order that no other prompt begins with, so that no prefix cache helps. They are
    frequent ones, of one token each with nearly every tokenizer."""
    known = _WORDS.split()
    state = number * 7919 + 1
    chosen = []
    for _ in range(words):
        state = (state * 1103515245 + 12345) % (1 << 31)
        chosen.append(known[(state >> 16) % len(known)])
    return " ".join(chosen)


def _summary(
    options: EndpointOptions, found: dict[tuple[int, int], list[_Stream]]
) -> EndpointTimes:
    short = options.prompt_words
    step_ms = {
        n: statistics.median([gap for stream in streams for gap in stream.gaps])
        for (n, words), streams in found.items()
        if words == short
    }
    alone = found[1, short][0]
    slope = 0.0
    longest = max(words for _, words in found)
    if longest > short:
        long = found[1, longest][0]
        further = long.prompt_tokens - alone.prompt_tokens
        if further > 0:
            added = statistics.median(long.gaps) - statistics.median(alone.gaps)
            slope = max(1000.0 * added / further, 0.0)
    everything = [stream for streams in found.values() for stream in streams]
    return EndpointTimes(
        step_ms,
        slope,
        alone.prompt_tokens,
        sum(s.output_tokens for s in everything) / sum(s.pieces for s in everything),
    )


def _import_httpx() -> Any:
    try:
        import httpx
    except ImportError as error:
        raise MissingDependencyError(
            "timing an endpoint needs httpx; run: pip install 'suffixspec[service]'"
        ) from error
    return httpx
