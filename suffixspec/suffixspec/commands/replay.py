"""``suffixspec replay``: what speculation would have gained on recorded sessions."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    Progress,
)

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
from suffixspec.methods import choose_methods
from suffixspec_index.depth import DepthSettings, create_depth_rule
from suffixspec_index.errors import InputError, TraceError
from suffixspec_index.proposers import create_proposer
from suffixspec_index.proposers.base import Proposer
from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_traces.cost import (
    DEFAULT_COST_MODEL,
    PointsCost,
    RooflineCost,
    load_cost_model,
)
from suffixspec_traces.model import ReadReport
from suffixspec_traces.render import ChatRenderer
from suffixspec_traces.replay import ReplayPlan, ReplayResult, warm_up
from suffixspec_traces.replay import replay as replay_plan
from suffixspec_traces.report import ReplayReport, ReportOptions, build_report
from suffixspec_traces.report.terminal import print_report


def replay(
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
    method: Annotated[str | None, typer.Option(help="suffix, ngram, prediction or none.")] = None,
    speculative_config: Annotated[
        str | None, typer.Option(metavar="JSON", help="Settings, as vLLM takes them.")
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A,B | JSON",
            help="Further methods, side by side: names or a JSON configuration; repeatable.",
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(help="Sessions in flight, their steps interleaved. Default: as recorded."),
    ] = None,
    shuffle: Annotated[bool, typer.Option("--shuffle", help="Sessions in random order.")] = False,
    seed: Annotated[int, typer.Option(help="Of the shuffle and of the intervals.")] = 0,
    format: Annotated[
        str | None, typer.Option(help="Read every file as this format instead of recognising it.")
    ] = None,
    skip_invalid: Annotated[
        bool, typer.Option("--skip-invalid", help="Skip and count what cannot be read.")
    ] = False,
    cost_model: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="What a verify step costs; see docs/replay.md."),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="The clients' max_tokens; drafts never run past it.")
    ] = None,
    limit_sessions: Annotated[int | None, typer.Option(help="Replay the first so many.")] = None,
    limit_tokens: Annotated[
        int | None, typer.Option(help="Stop after so many output tokens.")
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE|-", help="Write the report as JSON.")
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the table of all steps.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a self-contained page.")
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No tables and no progress bar.")
    ] = False,
) -> None:
    """Replay recorded agent sessions and show what speculation would have gained.

    Every generated turn is decoded again, the recording playing the model, against what the index
    knew at that moment. No GPU and no model are needed.
    """
    loaded = settings_of(context)
    methods = choose_methods(
        loaded.settings.speculative,
        method=method,
        config=speculative_config,
        compare=compare or (),
    )
    cost = load_cost_model(cost_model or loaded.settings.cost_model or DEFAULT_COST_MODEL)
    outputs = [Path(json_file) if json_file and json_file != STDOUT else None, parquet, html]
    check_outputs(outputs)

    console = Console(stderr=True, quiet=quiet)
    renderer = choose_renderer(tokenizer or loaded.settings.tokenizer, console)
    read = ReadReport()
    sessions = read_sessions(
        paths, renderer, read, console, format, skip_invalid, None if shuffle else limit_sessions
    )
    plan = ReplayPlan.build(
        sessions,
        shuffle=shuffle,
        seed=seed,
        concurrency=concurrency,
        limit_sessions=limit_sessions,
        limit_tokens=limit_tokens,
    )
    if not plan.turns:
        raise TraceError(
            "no generated text in these traces, so there is nothing to replay", path=paths[0]
        )
    results = _replay_all(plan, methods, renderer, console, max_tokens, cost)
    if not results:
        raise typer.Exit(EXIT_INTERRUPTED)
    report = build_report(
        results,
        cost,
        ReportOptions(
            paths=paths,
            read=read,
            tokenizer=renderer.describe(),
            version=importlib.metadata.version("suffixspec"),
            bootstrap_seed=seed,
        ),
    )
    if not quiet:
        print_report(report, console if json_file == STDOUT else Console())
    _write(report, results, renderer, json_file, parquet, html)
    say_written(outputs, console)
    if report.partial:
        raise typer.Exit(EXIT_INTERRUPTED)


def _replay_all(
    plan: ReplayPlan,
    methods: Sequence[tuple[str, SpeculativeConfig]],
    renderer: ChatRenderer,
    console: Console,
    max_tokens: int | None,
    cost: PointsCost | RooflineCost,
) -> list[ReplayResult]:
    """Each method in a pass of its own; a first Ctrl-C ends the pass and leaves out the rest."""
    tokenizer = renderer.tokenizer
    results: list[ReplayResult] = []
    with make_progress(console) as progress, stop_on_interrupt() as stop:
        for label, config in methods:
            task = progress.add_task(label, total=plan.output_tokens, detail="")

            def make(config: SpeculativeConfig = config) -> Proposer:
                return create_proposer(config, vocab_size=tokenizer.vocab_size)

            compile_kernels(config, progress, task)
            warm_up(plan, make)
            if stop.is_set():
                break
            result = replay_plan(
                plan,
                make(),
                label=label,
                config=config.to_dict(),
                depth=create_depth_rule(config, cost, DepthSettings(load=plan.concurrency)),
                max_tokens=max_tokens,
                stop=stop,
                progress=_bar(progress, task, len(plan.sessions)),
            )
            results.append(result)
            if result.partial:
                break
    return results


def _bar(progress: Progress, task: Any, sessions: int) -> Callable[[int, int], None]:
    def update(sessions_done: int, tokens_done: int) -> None:
        elapsed = progress.tasks[task].elapsed or 0.0
        speed = f", {tokens_done / elapsed:,.0f} tokens/s" if elapsed > 0.2 else ""
        progress.update(
            task,
            completed=tokens_done,
            detail=f"{sessions_done:,}/{sessions:,} sessions, {tokens_done:,} tokens{speed}",
        )

    return update


def _write(
    report: ReplayReport,
    results: Sequence[ReplayResult],
    renderer: ChatRenderer,
    json_file: str | None,
    parquet: Path | None,
    html: Path | None,
) -> None:
    try:
        write_json(report, json_file)
        if parquet is not None:
            from suffixspec_traces.report.parquet import write_parquet

            write_parquet(parquet, results)
        if html is not None:
            from suffixspec_traces.report.html import write_html

            write_html(html, report, results, renderer.tokenizer)
    except OSError as error:
        raise InputError(f"the report cannot be written: {error}") from error
