"""Datasets: where the requests of a benchmark come from, under vLLM's names where it has them.

``traces`` are recorded agent sessions: their prompts are sent turn by turn, each with the recorded
history, so that every rival is asked the same; ``custom``, ``sharegpt`` and ``random`` do what they
do in vLLM's ``bench serve``.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from suffixspec.bench.workload import BenchRequest, Ids, Workload
from suffixspec_index.config_values import unknown_name
from suffixspec_index.errors import ConfigError, InputError
from suffixspec_traces.model import Message, Session
from suffixspec_traces.reading import read_traces
from suffixspec_traces.render import ChatRenderer

_SHORTEST = 4
_LONGEST_PROMPT, _LONGEST = 1024, 2048
"""Of ShareGPT conversations, vLLM takes those in these limits (tokens)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetOptions:
    """Which requests to make.

    Attributes:
        name: one of :func:`dataset_names`.
        paths: files to read; ``random`` needs none, ``custom`` and ``sharegpt`` one.
        num_prompts: requests in all.
        seed: of every random choice.
        output_len: output tokens per request; ``None``: as the dataset says.
        input_len, range_ratio, prefix_len: of ``random``: prompt tokens behind the common prefix;
            lengths lie within ``± range_ratio`` of what is asked; tokens all prompts begin with.
        skip_chat_template: ``custom``: send the text as it is.
        shuffle: take sessions or prompts in random order.
        oversample: ``custom``: begin again where the file has too few.

    Raises:
        ConfigError: a value is out of range.
    """

    name: str = "traces"
    paths: tuple[str, ...] = ()
    num_prompts: int = 32
    seed: int = 0
    output_len: int | None = None
    input_len: int = 1024
    range_ratio: float = 0.0
    prefix_len: int = 0
    skip_chat_template: bool = False
    shuffle: bool = True
    oversample: bool = True

    def __post_init__(self) -> None:
        if self.name not in _DATASETS:
            raise unknown_name("dataset", self.name, dataset_names())
        for flag, value, least in (
            ("num-prompts", self.num_prompts, 1),
            ("output-len", self.output_len, 1),
            ("random-input-len", self.input_len, 1),
            ("random-prefix-len", self.prefix_len, 0),
        ):
            if value is not None and value < least:
                raise ConfigError(f"--{flag}: {value} is too small; use at least {least}")
        if not 0 <= self.range_ratio < 1:
            raise ConfigError(f"--random-range-ratio: {self.range_ratio} is not in [0, 1)")
        files = 0 if self.name == "random" else 1
        if not files and self.paths:
            raise ConfigError("--dataset-path: 'random' reads no file; leave it out")
        if files and not self.paths:
            raise ConfigError(f"--dataset-path: {self.name!r} needs a file; name one")
        if self.name in ("custom", "sharegpt") and len(self.paths) > 1:
            raise ConfigError(f"--dataset-path: {self.name!r} reads one file, got more")


def dataset_names() -> list[str]:
    """Every dataset there is."""
    return sorted(_DATASETS)


def make_workload(options: DatasetOptions, renderer: ChatRenderer) -> Workload:
    """The requests that ``options`` describe; equal arguments give equal requests.

    Args:
        renderer: renders conversations and counts tokens; its tokenizer is the served model's.

    Raises:
        ConfigError, InputError, TraceError: a file cannot be read, or holds nothing to ask.
    """
    sessions = tuple(_DATASETS[options.name](options, renderer))
    if not sessions:
        raise InputError(f"dataset {options.name!r}: {options.paths} hold no request to send")
    return Workload(options.name, sessions)


def without_sessions(sessions: Sequence[Session], workload: Workload) -> list[Session]:
    """Sessions that the workload does not ask: what an index may have seen before."""
    asked = {session[0].session for session in workload.sessions}
    return [session for session in sessions if session.id not in asked]


# -- recorded sessions -----------------------------------------------------------------------------


def _traces(options: DatasetOptions, renderer: ChatRenderer) -> Iterator[tuple[BenchRequest, ...]]:
    sessions = list(read_traces(options.paths))
    if options.shuffle:
        random.Random(options.seed).shuffle(sessions)
    number = 0
    for session in sessions:
        requests = _turns(session, renderer, options, number)
        if requests:
            yield requests
        number += len(requests)
        if number >= options.num_prompts:
            return


def _turns(
    session: Session, renderer: ChatRenderer, options: DatasetOptions, number: int
) -> tuple[BenchRequest, ...]:
    turns = renderer.render_session(session).turns
    spoken = [i for i, message in enumerate(session.messages) if message.generated]
    # Where a reader could not tell every generated message apart, only token ids are exact.
    histories = [session.messages[:i] for i in spoken] if len(spoken) == len(turns) else None
    return tuple(
        BenchRequest(
            number + i,
            session.id,
            turn.prompt,
            options.output_len or max(1, len(turn.output)),
            None if histories is None else tuple(map(_openai, histories[i])),
        )
        for i, turn in enumerate(turns[: options.num_prompts - number])
    )


def _openai(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        found["tool_calls"] = [
            {
                "id": call.id or f"call_{i}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for i, call in enumerate(message.tool_calls)
        ]
    if message.tool_call_id is not None:
        found["tool_call_id"] = message.tool_call_id
    return found


# -- prompts ---------------------------------------------------------------------------------------


def _custom(options: DatasetOptions, renderer: ChatRenderer) -> Iterator[tuple[BenchRequest, ...]]:
    """JSONL with ``prompt`` and, if wanted, ``output_tokens``."""
    rows = []
    for number, line in enumerate(_text(options.paths[0]).splitlines(), 1):
        if line.strip():
            row = _json(line, f"{options.paths[0]}:{number}")
            if not isinstance(row, dict) or not isinstance(row.get("prompt"), str):
                raise InputError(f"{options.paths[0]}:{number}: has no text under 'prompt'")
            rows.append(row)
    for number, row in enumerate(_chosen(rows, options)):
        length = options.output_len or row.get("output_tokens") or 256
        if not isinstance(length, int) or length < 1:
            raise InputError(f"{options.paths[0]}: output_tokens {length!r} is no positive integer")
        yield (_prompt(number, row["prompt"], length, renderer, options.skip_chat_template),)


def _sharegpt(
    options: DatasetOptions, renderer: ChatRenderer
) -> Iterator[tuple[BenchRequest, ...]]:
    """A JSON list of conversations: the first message is the prompt, the second's length the
    output's, as vLLM takes them."""
    rows = _json(_text(options.paths[0]), options.paths[0])
    if not isinstance(rows, list):
        raise InputError(f"{options.paths[0]}: is not a JSON list of conversations")
    talks = [row.get("conversations") or [] for row in rows if isinstance(row, dict)]
    talks = [talk for talk in talks if len(talk) >= 2]
    if options.shuffle:
        random.Random(options.seed).shuffle(talks)
    found = 0
    for talk in talks:
        prompt, answer = str(talk[0].get("value", "")), str(talk[1].get("value", ""))
        tokens = len(renderer.tokenizer.encode(prompt))
        length = options.output_len or len(renderer.tokenizer.encode(answer))
        short = tokens < _SHORTEST or (options.output_len is None and length < _SHORTEST)
        if short or tokens > _LONGEST_PROMPT or tokens + length > _LONGEST:
            continue
        yield (_prompt(found, prompt, length, renderer, True),)
        found += 1
        if found == options.num_prompts:
            return


def _random(options: DatasetOptions, renderer: ChatRenderer) -> Iterator[tuple[BenchRequest, ...]]:
    """vLLM's arithmetic: a prompt counts up from an offset of its own through the vocabulary."""
    tokenizer = renderer.tokenizer
    special = set(tokenizer.special_token_ids) | set(tokenizer.eos_token_ids)
    allowed = np.array([i for i in range(tokenizer.vocab_size) if i not in special], np.int32)
    generator = np.random.default_rng(options.seed)
    prefix = generator.choice(allowed, options.prefix_len).astype(np.int32)

    def lengths(middle: int) -> Ids:
        low = max(1, int(middle * (1 - options.range_ratio)))
        high = int(middle * (1 + options.range_ratio))
        return generator.integers(low, high + 1, options.num_prompts).astype(np.int32)

    inputs, outputs = lengths(options.input_len), lengths(options.output_len or 128)
    offsets = generator.integers(0, len(allowed), options.num_prompts)
    for number in range(options.num_prompts):
        places = (offsets[number] + number + np.arange(inputs[number])) % len(allowed)
        prompt = np.concatenate([prefix, allowed[places]])
        yield (BenchRequest(number, f"random-{number}", prompt, int(outputs[number])),)


def _prompt(number: int, text: str, length: int, renderer: ChatRenderer, raw: bool) -> BenchRequest:
    messages = ({"role": "user", "content": text},)
    prompt = text if raw else renderer.render_prompt([Message("user", text)])
    return BenchRequest(number, f"prompt-{number}", prompt, length, messages)


def _chosen(rows: list[dict[str, Any]], options: DatasetOptions) -> list[dict[str, Any]]:
    if options.shuffle:
        random.Random(options.seed).shuffle(rows)
    if rows and options.oversample:
        rows = rows * -(-options.num_prompts // len(rows))
    return rows[: options.num_prompts]


def _text(path: str) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--dataset-path: {path!r} cannot be read ({error})") from None


def _json(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(f"{place}: is not JSON ({error})") from None


Maker = Callable[[DatasetOptions, ChatRenderer], Iterator[tuple[BenchRequest, ...]]]
_DATASETS: Mapping[str, Maker] = {
    "traces": _traces,
    "custom": _custom,
    "sharegpt": _sharegpt,
    "random": _random,
}
