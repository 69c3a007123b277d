"""``suffixspec check-lossless``: is the text with speculation the text without it?"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import orjson
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from suffixspec.engines import (
    METHODS_OF_THE_ENGINE,
    as_chat,
    load_target,
    make_engine,
    read_prompt,
)
from suffixspec.methods import choose_methods
from suffixspec.settings import LoadedSettings
from suffixspec_index.errors import ConfigError

if TYPE_CHECKING:
    from suffixspec_engine.engine import Engine
    from suffixspec_engine.models import TargetModel
    from suffixspec_engine.request import RequestOutput
    from suffixspec_engine.sampling import SamplingParams

EXAMPLES = [
    "Write a Python class for a stack with push, pop and peek.",
    "Repeat this list twice: apple, banana, cherry, apple, banana, cherry.",
    "What is the capital of France? Answer in one sentence, then say it again.",
    'Give me a JSON array of three objects with the keys "name" and "age".',
]
EXIT_DIFFERS = 1


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two outputs part.

    Attributes:
        prompt: its number, from 0.
        position: index of the first output token that differs.
        without, with_speculation: the tokens there; ``None`` where an output has ended.
        margin: by how much (log probability) the model prefers its first choice to its second
            there; near 0 means that rounding decides.
        text: the last characters both agree on.
    """

    prompt: int
    position: int
    without: int | None
    with_speculation: int | None
    margin: float
    text: str


def check_lossless(
    context: typer.Context,
    prompts: Annotated[
        list[str] | None, typer.Argument(help="Prompts; @FILE reads one. Default: four examples.")
    ] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(help="A file with one prompt per line.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="smollm2, a GGUF file, a model's directory or a hub id.")
    ] = "smollm2",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    method: Annotated[str | None, typer.Option(help="The method to check.")] = None,
    speculative_config: Annotated[
        str | None, typer.Option(metavar="JSON", help="As for vLLM's --speculative-config.")
    ] = None,
    compare: Annotated[
        list[str] | None, typer.Option(help="More methods: names with commas between, or JSON.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="No chat template.")] = False,
    max_tokens: Annotated[int, typer.Option(help="Most output tokens per prompt.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Fixes the random draws.")] = 0,
    rounds: Annotated[
        int, typer.Option(help="Times each prompt is run; later ones find a warm index.")
    ] = 2,
    threads: Annotated[int | None, typer.Option(help="CPU threads of the model.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Run prompts with and without speculation, alone and together, and compare the tokens.

    Exit code 1 if an output differs. In float32 that is a fault; in bfloat16 the margin shows
    whether rounding explains it, since a forward pass over more tokens rounds differently.
    """
    if rounds < 1:
        raise ConfigError(f"--rounds is {rounds}; it must be at least 1")
    loaded: LoadedSettings = context.obj
    methods = choose_methods(
        loaded.settings.speculative,
        method=method,
        config=speculative_config,
        compare=compare or (),
        also=METHODS_OF_THE_ENGINE,
    )
    texts = _prompts(prompts, prompt_file)
    console, messages = Console(), Console(stderr=True)
    with messages.status(f"loading {model}"):
        target = load_target(model, dtype=dtype, threads=threads)
        from suffixspec_engine.sampling import SamplingParams
    if not raw:
        texts = [as_chat(target, [{"role": "user", "content": text}]) for text in texts]
    params = [
        SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=seed + i)
        for i in range(len(texts))
    ]
    with make_engine(target, None) as plain:
        # One by one: what the model says alone is the truth.
        truth = [plain.generate([t], p)[0] for t, p in zip(texts, params, strict=True)]
        results = []
        for label, speculative in methods:
            with messages.status("drafting") as doing:
                engine = make_engine(target, speculative, doing.update)
            with engine:
                found = _compare(engine, plain, texts, params, truth, rounds)
                counts = engine.metrics.counts
                results.append((label, found, counts.tokens_per_step, counts.accepted))
    if as_json:
        typer.echo(
            orjson.dumps(
                [
                    {
                        "method": label,
                        "lossless": not found,
                        "tokens_per_step": rate,
                        "accepted": accepted,
                        "differences": [asdict(one) for one in found],
                    }
                    for label, found, rate, accepted in results
                ],
                option=orjson.OPT_INDENT_2,
            )
        )
    else:
        outputs = len(texts) * (1 + rounds)
        _print(console, target, outputs, results)
    return EXIT_DIFFERS if any(found for _, found, _, _ in results) else 0


def _prompts(given: list[str] | None, file: Path | None) -> list[str]:
    texts = [read_prompt(text) for text in given or ()]
    if file is not None:
        texts += [line for line in read_prompt(f"@{file}").splitlines() if line.strip()]
    if file is not None and not texts:
        raise ConfigError(f"--prompt-file: {str(file)!r} holds no prompt")
    return texts or EXAMPLES


def _compare(
    engine: Engine,
    plain: Engine,
    texts: list[str],
    params: list[SamplingParams],
    truth: list[RequestOutput],
    rounds: int,
) -> list[Difference]:
    """Each prompt alone, then ``rounds`` times all of them in one batch."""
    runs = [[engine.generate([t], p)[0] for t, p in zip(texts, params, strict=True)]]
    runs += [engine.generate(texts, params) for _ in range(rounds)]
    found: dict[tuple[int, int], Difference] = {}
    for outputs in runs:
        for number, (output, wanted) in enumerate(zip(outputs, truth, strict=True)):
            position = first_difference(output.token_ids.tolist(), wanted.token_ids.tolist())
            if position is not None and (number, position) not in found:
                found[number, position] = _difference(plain, number, position, output, wanted)
    return list(found.values())


def first_difference(left: list[int], right: list[int]) -> int | None:
    """The first index at which two outputs differ; one that ends earlier differs where it ends."""
    for position in range(max(len(left), len(right))):
        if left[position : position + 1] != right[position : position + 1]:
            return position
    return None


def _difference(
    plain: Engine, number: int, position: int, output: RequestOutput, wanted: RequestOutput
) -> Difference:
    from suffixspec_engine.sampling import SamplingParams

    agreed = wanted.token_ids[:position]
    context = np.concatenate([wanted.prompt_token_ids, agreed])
    probe = SamplingParams(temperature=0.0, max_tokens=1, logprobs=2)
    logprobs = plain.generate([context], probe)[0].logprobs
    assert logprobs is not None
    (_, first), (_, second) = logprobs[0].top[:2]
    decode = plain.model.tokenizer.decode if plain.model.tokenizer is not None else str
    return Difference(
        prompt=number,
        position=position,
        without=int(wanted.token_ids[position]) if position < len(wanted.token_ids) else None,
        with_speculation=int(output.token_ids[position])
        if position < len(output.token_ids)
        else None,
        margin=first - second,
        text=str(decode(agreed.tolist()))[-40:],
    )


def _print(
    console: Console,
    target: TargetModel,
    outputs: int,
    results: list[tuple[str, list[Difference], float, int]],
) -> None:
    table = Table("method", "outputs", "accepted", "tokens per step", "result")
    for label, found, rate, accepted in results:
        verdict = (
            Text(f"{len(found)} different", style="bold red")
            if found
            else Text("identical", style="green")
        )
        table.add_row(label, str(outputs), str(accepted), f"{rate:.2f}", verdict)
    console.print(table)
    for label, found, _, _ in results:
        for one in found:
            console.print(
                Text.assemble(
                    (f"{label}, prompt {one.prompt + 1}: ", "bold"),
                    f"first difference at output token {one.position}: "
                    f"{_name(target, one.without)} without, "
                    f"{_name(target, one.with_speculation)} with speculation; "
                    f"top-2 margin {one.margin:.3g} after {one.text!r}",
                )
            )


def _name(target: TargetModel, token: int | None) -> str:
    if token is None:
        return "the end"
    if target.tokenizer is None:
        return str(token)
    return f"{target.tokenizer.decode([token])!r} ({token})"
