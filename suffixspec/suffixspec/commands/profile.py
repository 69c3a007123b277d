"""``suffixspec profile``: what a step costs, measured, as a file for replay and tune."""

from __future__ import annotations

import datetime
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from suffixspec.command_parts import (
    EXIT_INTERRUPTED,
    check_outputs,
    make_progress,
    say_written,
    stop_on_interrupt,
)
from suffixspec_index.errors import ConfigError, InputError
from suffixspec_traces.cost.measured import (
    TimedStep,
    cost_from_steps,
    points_cost,
    write_cost_model,
)
from suffixspec_traces.cost.model import PointsCost

if TYPE_CHECKING:
    import threading

    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from suffixspec_engine.profiling import StepShape

_FIGURES = 50  # columns that the table's other figures take
SIZES = "1,2,3,4,6,8,12,16,24,32,48,64"


def profile(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the cost model.")
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help="smollm2, a GGUF file, a model's directory, a hub id; or, with "
            "--url, the endpoint's name for it."
        ),
    ] = "smollm2",
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            "--base-url",
            help="Measure an OpenAI-compatible endpoint, e.g. http://localhost:8000/v1.",
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="CPU threads of the model.")] = None,
    sizes: Annotated[str, typer.Option(help="Tokens in the step.")] = SIZES,
    contexts: Annotated[str, typer.Option(help="Tokens of cache per request.")] = "256,2048",
    concurrency: Annotated[
        str, typer.Option(help="Requests in the step; for an endpoint, streams at a time.")
    ] = "1,8",
    rounds: Annotated[int, typer.Option(help="Times that each step is measured.")] = 9,
    name: Annotated[str | None, typer.Option(help="Of the cost model.")] = None,
    json_out: Annotated[
        bool, typer.Option("--json", help="Print the cost model as JSON, and no table.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a self-contained page with charts.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No table, no progress.")] = False,
) -> None:
    """Measure what a step of a model costs, by its tokens, its context and its requests.

    The file is what --cost-model of replay and tune takes. Nothing is written before all is
    measured.
    """
    check_outputs([output, plot])
    console = Console(stderr=True, quiet=quiet)
    with make_progress(console) as bars, stop_on_interrupt() as stop:
        task = bars.add_task("measuring", total=None, detail="")
        if url is None:
            found = _engine(
                model, dtype, threads, _numbers(sizes, "sizes"), _numbers(contexts, "contexts"),
                _numbers(concurrency, "concurrency"), rounds, name, stop, bars, task,
            )  # fmt: skip
        else:
            found = _endpoint(url, model, _numbers(concurrency, "concurrency"), name, stop, bars,
                              task)  # fmt: skip
    if found is None:
        console.print("Stopped; nothing was written.")
        raise typer.Exit(EXIT_INTERRUPTED)
    if json_out:
        sys.stdout.write(found.model_dump_json(indent=2) + "\n")
    elif not quiet:
        _print(found, Console())
    if output is not None:
        write_cost_model(output, found)
    if plot is not None:
        _write_page(plot, found)
    say_written([output, plot], console)


def _write_page(path: Path, found: PointsCost) -> None:
    from suffixspec_traces.cost.page import write_html

    try:
        write_html(path, found)
    except OSError as error:
        raise InputError(f"plot {str(path)!r} cannot be written: {error}") from error


def _engine(
    model: str,
    dtype: str,
    threads: int | None,
    sizes: list[int],
    contexts: list[int],
    requests: list[int],
    rounds: int,
    name: str | None,
    stop: threading.Event,
    bars: Bars,
    task: TaskID,
) -> PointsCost | None:
    """Our own engine."""
    from suffixspec.engines import load_target

    target = load_target(model, dtype=dtype, threads=threads)
    import torch

    from suffixspec_engine.profiling import measure_steps

    shapes = step_shapes(sizes, contexts, requests)

    def show(done: int, planned: int, text: str) -> None:
        bars.update(task, completed=done, total=planned, detail=text)

    times = measure_steps(target, shapes, rounds=rounds, stop=stop, progress=show)
    if times is None:
        return None
    machine = f"{torch.get_num_threads()} threads of {platform.processor() or platform.machine()}"
    if target.device.type == "cuda":
        machine = torch.cuda.get_device_name(target.device)
    return cost_from_steps(
        [TimedStep(t.shape.tokens, t.shape.requests, t.shape.context, t.median) for t in times],
        name=name or f"{Path(target.name).name}-{str(target.dtype).removeprefix('torch.')}",
        provenance=(
            f"suffixspec profile on {datetime.date.today()}: {target.name}, {target.dtype}, torch "
            f"{torch.__version__}, {machine} ({os.cpu_count()} logical CPUs); median of {rounds} "
            f"rounds over {len(shapes)} kinds of steps in turn, logits of every token."
        ),
    )


def step_shapes(sizes: list[int], contexts: list[int], requests: list[int]) -> list[StepShape]:
    """All sizes of the fewest requests behind the shortest context; of the others, as many sizes
    as tell what context and requests cost."""
    from suffixspec_engine.profiling import StepShape

    fewest, least = min(requests), min(contexts)
    shapes = [StepShape(n, fewest, least) for n in sizes if n >= fewest]
    for context in contexts:
        for count in requests:
            if (count, context) != (fewest, least):
                probes = [n for n in sizes if n >= count][:6:2]
                shapes += [StepShape(n, count, context) for n in probes]
    return shapes


def _endpoint(
    url: str,
    model: str,
    streams: list[int],
    name: str | None,
    stop: threading.Event,
    bars: Bars,
    task: TaskID,
) -> PointsCost | None:
    """Somebody's endpoint, from outside."""
    from suffixspec_traces.cost.endpoint import EndpointOptions, measure_endpoint

    options = EndpointOptions(
        url=url,
        model=model,
        api_key=os.environ.get("OPENAI_API_KEY"),
        concurrencies=tuple(streams),
    )

    def show(done: int, planned: int, text: str) -> None:
        bars.update(task, completed=done, total=planned, detail=text)

    times = measure_endpoint(options, stop=stop, progress=show)
    if times is None:
        return None
    if times.tokens_per_piece > 1.1:
        bars.console.print(
            f"[yellow]Each piece held {times.tokens_per_piece:.2f} tokens: the endpoint speculates "
            "or gathers tokens. Turn that off for figures that hold.[/yellow]"
        )
    return points_cost(
        times.step_ms,
        name=name or f"{model.rsplit('/', 1)[-1]}-endpoint",
        provenance=(
            f"suffixspec profile on {datetime.date.today()}: streams of {model} from an endpoint, "
            f"{options.tokens} tokens each, median gap between pieces, network included; "
            f"{times.tokens_per_piece:.2f} tokens per piece. Tokens in a step are streams at a "
            "time: steps made longer by speculation were not seen."
        ),
        reference_context_tokens=float(times.prompt_tokens),
        ms_per_1000_context_tokens=times.ms_per_1000_context_tokens,
    )


def _numbers(text: str, field: str) -> list[int]:
    try:
        numbers = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise ConfigError(
            f"{field}: must be numbers separated by commas, such as 1,8,64, got {text!r}"
        ) from None
    if numbers[0] < (0 if field == "contexts" else 1):
        raise ConfigError(f"{field}: {numbers[0]} is too small")
    return numbers


def _print(model: PointsCost, console: Console) -> None:
    table = Table(title=model.name, caption=model.provenance)
    table.add_column("tokens in the step", justify="right")
    table.add_column("ms", justify="right")
    table.add_column("per token", justify="right")
    table.add_column("")
    longest = max(model.points.values())
    room = min(max(console.width - _FIGURES, 8), 40)  # else Rich cuts the bars, and all look alike
    for tokens, ms in model.points.items():
        bar = "█" * max(round(room * ms / longest), 1)
        table.add_row(f"{tokens:,}", f"{ms:.2f}", f"{ms / tokens:.2f}", f"[cyan]{bar}[/cyan]")
    console.print(table)
    console.print(
        f"further context: {model.ms_per_1000_context_tokens:.3f} ms per 1,000 tokens; "
        f"further request: {model.ms_per_further_request:.3f} ms"
    )
