"""``suffixspec tune``: the thresholds that suit somebody's own traces."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from suffixspec.command_parts import (
    EXIT_INTERRUPTED,
    STDOUT,
    check_outputs,
    choose_renderer,
    compile_kernels,
    make_progress,
    read_sessions,
    say_written,
    settings_of,
    stop_on_interrupt,
    write_json,
)
from suffixspec_index.errors import ConfigError, InputError
from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_traces.cost import DEFAULT_COST_MODEL, load_cost_model
from suffixspec_traces.model import ReadReport
from suffixspec_traces.tuning import (
    Halt,
    Parts,
    SearchOptions,
    TuningHead,
    TuningReport,
    TuningTask,
)
from suffixspec_traces.tuning import tune as tune_thresholds
from suffixspec_traces.tuning.storage import import_optuna
from suffixspec_traces.tuning.terminal import print_tuning


def tune(
    context: typer.Context,
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...", help="Trace files, directories or globs; - is standard input."
        ),
    ],
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="A Hugging Face id or folder, a tokenizer.json, a GGUF file, or smollm2."
        ),
    ] = None,
    cost_model: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="What a verify step costs; see docs/replay.md."),
    ] = None,
    concurrency: Annotated[
        str,
        typer.Option(metavar="N,N...", help="Requests at a time; each gets settings of its own."),
    ] = "1,8,64",
    trials: Annotated[
        int, typer.Option(help="Settings to try per concurrency; one-by-one trials come on top.")
    ] = 60,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="End the search after so long.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes that try settings.")] = 1,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|URL",
            help="Keep trials in a journal file or in Redis, and go on from what is there.",
        ),
    ] = None,
    held_out: Annotated[
        float, typer.Option(help="Share of the sessions, the latest, that judge the result.")
    ] = 0.3,
    trial_tokens: Annotated[
        int | None,
        typer.Option(help="Most output tokens a trial decodes. 0: the whole tuning part."),
    ] = 200_000,
    sensitivity: Annotated[
        bool,
        typer.Option(
            "--sensitivity/--no-sensitivity", help="Try the best's thresholds one by one."
        ),
    ] = True,
    seed: Annotated[int, typer.Option(help="Of the search and of the intervals.")] = 0,
    format: Annotated[
        str | None, typer.Option(help="Read every file as this format instead of recognising it.")
    ] = None,
    skip_invalid: Annotated[
        bool, typer.Option("--skip-invalid", help="Skip and count what cannot be read.")
    ] = False,
    limit_sessions: Annotated[int | None, typer.Option(help="Read the first so many.")] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE|-", help="Write the report as JSON.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a self-contained page.")
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No tables and no progress bar.")
    ] = False,
) -> None:
    """Find the thresholds that suit your own traces.

    Settings are searched on the earlier sessions and judged on the later ones, against vLLM's
    defaults, ours, the best n-gram and no speculation. No GPU and no model are needed.
    """
    import_optuna()  # say what is missing before anything is read
    loaded = settings_of(context)
    options = SearchOptions(
        concurrencies=_concurrencies(concurrency), trials=trials, seed=seed, sensitivity=sensitivity
    )
    cost_name = cost_model or loaded.settings.cost_model or DEFAULT_COST_MODEL
    cost = load_cost_model(cost_name)
    Halt(timeout_s=timeout)  # says what is wrong with it
    outputs = [Path(json_file) if json_file and json_file != STDOUT else None, html]
    check_outputs(outputs)

    console = Console(stderr=True, quiet=quiet)
    renderer = choose_renderer(tokenizer or loaded.settings.tokenizer, console)
    read = ReadReport()
    sessions = read_sessions(paths, renderer, read, console, format, skip_invalid, limit_sessions)
    parts = Parts.split(sessions, held_out=held_out, trial_tokens=trial_tokens or None)
    report = _tune(
        TuningTask(parts, cost, cost_name, renderer.tokenizer.vocab_size),
        options,
        TuningHead(
            paths, read, renderer.describe(), version=importlib.metadata.version("suffixspec")
        ),
        console,
        timeout=timeout,
        storage=storage,
        workers=workers,
    )
    if report is None:
        console.print("Stopped before anything was found.")
        raise typer.Exit(EXIT_INTERRUPTED)
    if not quiet:
        print_tuning(report, console if json_file == STDOUT else Console())
    _write(report, json_file, html)
    say_written(outputs, console)
    if report.run.ended == "interrupted":
        raise typer.Exit(EXIT_INTERRUPTED)


def _concurrencies(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(
            f"concurrency: must be numbers separated by commas, such as 1,8,64, got {text!r}"
        ) from None


def _tune(
    task: TuningTask,
    options: SearchOptions,
    head: TuningHead,
    console: Console,
    *,
    timeout: float | None,
    storage: str | None,
    workers: int,
) -> TuningReport | None:
    """Tune behind a progress bar. The first Ctrl-C ends the search, and what it found is judged;
    the second ends the judgement too."""
    with make_progress(console) as progress, stop_on_interrupt() as first:
        task_id = progress.add_task("tuning", total=None, detail="")
        compile_kernels(SpeculativeConfig(method="suffix"), progress, task_id)

        def show(done: int, planned: int, text: str) -> None:
            progress.update(
                task_id,
                completed=done,
                total=planned or None,
                description=text,
                detail=f"{done:,}/{planned:,}",
            )

        try:
            return tune_thresholds(
                task,
                options,
                head,
                halt=Halt(first, timeout_s=timeout),
                storage=storage,
                workers=workers,
                progress=show,
            )
        except KeyboardInterrupt:
            return None


def _write(report: TuningReport, json_file: str | None, html: Path | None) -> None:
    try:
        write_json(report, json_file)
        if html is not None:
            from suffixspec_traces.tuning.page import write_html

            write_html(html, report)
    except OSError as error:
        raise InputError(f"the report cannot be written: {error}") from error
