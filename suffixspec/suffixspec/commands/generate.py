"""``suffixspec generate``: watch a model write, with the tokens that speculation gained marked."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.console import Console
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
from suffixspec_index.draft import Source

if TYPE_CHECKING:
    from suffixspec_engine.engine import Engine
    from suffixspec_engine.request import RequestOutput, StepEvent
    from suffixspec_engine.sampling import IncrementalDetokenizer, SamplingParams

STYLES = {
    Source.SESSION: "black on green",
    Source.GLOBAL: "black on cyan",
    Source.NGRAM: "black on yellow",
    Source.PREDICTION: "black on blue",
    Source.DRAFT_MODEL: "black on bright_red",
    Source.FORCED: "black on magenta",
}
"""How an accepted token is marked, by who drafted it; the model's own tokens are plain."""

_OTHER = "black on white"
EXAMPLE = [
    "Write a Python function that adds two numbers, with a docstring.",
    "Now write exactly the same function again.",
]


def generate(
    context: typer.Context,
    prompts: Annotated[
        list[str] | None,
        typer.Argument(
            help="What the user says; several are turns of one conversation; @FILE reads a file."
        ),
    ] = None,
    model: Annotated[
        str, typer.Option(help="smollm2, a GGUF file, a model's directory or a hub id.")
    ] = "smollm2",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    method: Annotated[
        str | None, typer.Option(help="suffix, ngram, none ...; see the settings.")
    ] = None,
    speculative_config: Annotated[
        str | None, typer.Option(metavar="JSON", help="As for vLLM's --speculative-config.")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="No chat template: continue the text.")
    ] = False,
    max_tokens: Annotated[int, typer.Option(help="Most output tokens per turn.")] = 200,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Nucleus size, in (0, 1].")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Fixes the random draws.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="A string that ends the output.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads of the model.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per turn.")
    ] = False,
) -> None:
    """Generate text with speculation; tokens that were drafted and accepted are marked by colour.

    Without a prompt it runs a short conversation that shows what repeating costs.
    """
    loaded: LoadedSettings = context.obj
    ((_, speculative),) = choose_methods(
        loaded.settings.speculative,
        method=method,
        config=speculative_config,
        also=METHODS_OF_THE_ENGINE,
    )
    status = Console(stderr=True)
    turns = [read_prompt(text) for text in prompts or EXAMPLE]
    with status.status(f"loading {model}") as doing:
        target = load_target(model, dtype=dtype, threads=threads)
        from suffixspec_engine.sampling import SamplingParams

        engine = make_engine(
            target, speculative, doing.update, cost_model=loaded.settings.cost_model
        )
    params = SamplingParams(
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        stop=tuple(stop or ()),
        max_tokens=max_tokens,
    )
    out = Console(highlight=False, soft_wrap=True)
    messages: list[dict[str, str]] = []
    with engine:
        for turn in turns:
            messages.append({"role": "user", "content": turn})
            prompt = turn if raw else as_chat(target, messages)
            if not as_json:
                out.print(Text(f"> {turn}", style="bold"))
            output, seconds = _say(engine, prompt, params, None if as_json else out)
            messages.append({"role": "assistant", "content": output.text})
            if as_json:
                typer.echo(orjson.dumps(_record(output, seconds)))
            else:
                out.print(_summary(output, seconds))


def _say(
    engine: Engine, prompt: str, params: SamplingParams, out: Console | None
) -> tuple[RequestOutput, float]:
    """One turn, streamed to ``out``; the output and the seconds it took."""
    start = time.perf_counter()
    stream = engine.stream(prompt, params, session_id="generate")
    printer = None
    if out is not None:
        printer = _Printer(engine.detokenizer(stream.request.prompt[-8:].tolist()), out)
    for event in stream:
        if printer is not None:
            printer.show(event)
    if out is not None:
        out.print()
    return stream.output(), time.perf_counter() - start


class _Printer:
    """Prints text as far as it is certain, each piece in the colour of its token."""

    def __init__(self, detokenizer: IncrementalDetokenizer, out: Console) -> None:
        self._out = out
        self._detokenizer = detokenizer
        self._waiting: list[tuple[str, str]] = []  # pieces of text with their styles

    def show(self, event: StepEvent) -> None:
        """Print the text of one step."""
        for token, source in zip(event.token_ids, event.sources, strict=True):
            style = "" if source is Source.NONE else STYLES.get(source, _OTHER)
            self._waiting.append((self._detokenizer.feed(token), style))
        certain = len(event.text)
        while certain > 0 and self._waiting:
            piece, style = self._waiting.pop(0)
            if len(piece) > certain:
                self._waiting.insert(0, (piece[certain:], style))
                piece = piece[:certain]
            certain -= len(piece)
            self._out.print(Text(piece, style=style), end="")
        self._out.file.flush()


def _summary(output: RequestOutput, seconds: float) -> Text:
    counts = output.metrics
    text = Text(
        f"[{counts.output_tokens} tokens in {counts.steps} steps: "
        f"{counts.tokens_per_step:.2f} per step, {counts.output_tokens / seconds:.1f} per second; "
        f"{counts.cached_tokens} of {counts.prompt_tokens} prompt tokens were cached",
        style="dim",
    )
    for name, source in counts.by_source.items():
        style = STYLES.get(Source[name.upper()], _OTHER)
        text.append("; ")
        text.append(f" {name} ", style=style)
        text.append(f" {source.accepted} of {source.drafted} accepted")
    return text.append("]\n")


def _record(output: RequestOutput, seconds: float) -> dict[str, Any]:
    """JSON values."""
    return {
        "text": output.text,
        "token_ids": output.token_ids.tolist(),
        "sources": [Source(source).label for source in output.sources.tolist()],
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
        "seconds": seconds,
        "prompt_tokens": output.metrics.prompt_tokens,
        "cached_tokens": output.metrics.cached_tokens,
        "metrics": output.metrics.to_dict(),
    }
