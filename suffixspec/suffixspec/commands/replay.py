"""``suffixspec replay``: what speculation would have gained on recorded sessions."""

from __future__ import annotations

import importlib.metadata
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from suffixspec.methods import choose_methods
from suffixspec.settings import LoadedSettings, load_settings
from suffixspec_index.depth import DepthSettings, create_depth_rule
from suffixspec_index.errors import ConfigError, InputError, TraceError
from suffixspec_index.proposers import create_proposer
from suffixspec_index.proposers.base import Proposer
from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_index.warm_up import is_cold
from suffixspec_index.warm_up import warm_up as warm_up_kernels
from suffixspec_traces.cost import (
    DEFAULT_COST_MODEL,
    PointsCost,
    RooflineCost,
    load_cost_model,
)
from suffixspec_traces.model import ReadReport, TokenSession
from suffixspec_traces.reading import read_traces
from suffixspec_traces.render import ChatRenderer
from suffixspec_traces.replay import ReplayPlan, ReplayResult, warm_up
from suffixspec_traces.replay import replay as replay_plan
from suffixspec_traces.report import ReplayReport, ReportOptions, build_report
from suffixspec_traces.report.terminal import print_report
from suffixspec_traces.tokenizers import load_tokenizer

DEFAULT_TOKENIZER = "smollm2"
EXIT_INTERRUPTED = 130
STDOUT = "-"


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
    loaded = _settings(context)
    methods = choose_methods(
        loaded.settings.speculative,
        method=method,
        config=speculative_config,
        compare=compare or (),
    )
    cost = load_cost_model(cost_model or loaded.settings.cost_model or DEFAULT_COST_MODEL)
    outputs = [Path(json_file) if json_file and json_file != STDOUT else None, parquet, html]
    _check_outputs([path for path in outputs if path is not None])

    console = Console(stderr=True, quiet=quiet)
    chosen = tokenizer or loaded.settings.tokenizer
    if chosen is None:
        console.print(
            "[dim]No --tokenizer given: using SmolLM2's. Name the target model's own for figures "
            "that hold for it.[/dim]"
        )
    renderer = ChatRenderer(load_tokenizer(chosen or DEFAULT_TOKENIZER))
    read = ReadReport()
    sessions = _read(
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
    for path in (p for p in outputs if p is not None):
        console.print(f"wrote {path}", soft_wrap=True, markup=False, highlight=False)
    if report.partial:
        raise typer.Exit(EXIT_INTERRUPTED)


def _settings(context: typer.Context) -> LoadedSettings:
    return context.obj if isinstance(context.obj, LoadedSettings) else load_settings()


def _check_outputs(paths: Sequence[Path]) -> None:
    """Refuse before a long replay what could not be written after it."""
    for path in paths:
        folder = path.expanduser().resolve().parent
        if not folder.is_dir():
            raise ConfigError(f"{path}: its folder {folder} does not exist; create it first")
        if path.is_dir():
            raise ConfigError(f"{path}: is a folder; name a file")


def _progress(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[detail]}", markup=False),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        refresh_per_second=5,
    )


def _read(
    paths: Sequence[str],
    renderer: ChatRenderer,
    read: ReadReport,
    console: Console,
    format: str | None,
    skip_invalid: bool,
    limit: int | None,
) -> list[TokenSession]:
    sessions: list[TokenSession] = []
    tokens = 0
    with _progress(console) as progress:
        task = progress.add_task("reading", total=None, detail="")
        for session in read_traces(paths, format=format, skip_invalid=skip_invalid, report=read):
            sessions.append(renderer.render_session(session))
            tokens += sessions[-1].output_tokens
            progress.update(task, detail=f"{len(sessions):,} sessions, {tokens:,} generated tokens")
            if limit is not None and sum(1 for s in sessions if s.output_tokens) >= limit:
                break
    return sessions


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
    with _progress(console) as progress, _stop_on_interrupt() as stop:
        for label, config in methods:
            task = progress.add_task(label, total=plan.output_tokens, detail="")

            def make(config: SpeculativeConfig = config) -> Proposer:
                return create_proposer(config, vocab_size=tokenizer.vocab_size)

            _compile_kernels(config, progress, task)
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


def _compile_kernels(config: SpeculativeConfig, progress: Progress, task: TaskID) -> None:
    """Compile the suffix index's kernels where that is still to be done, and say so: it happens
    once per machine and takes a while, in which nothing else would move."""
    if config.method == "suffix" and is_cold():
        warm_up_kernels(lambda said: progress.update(task, detail=said))
        progress.update(task, detail="")


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


@contextmanager
def _stop_on_interrupt() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets; the second interrupts as usual."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # signals reach the main thread only
        return
    before = signal.getsignal(signal.SIGINT)

    def first(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, first)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def _write(
    report: ReplayReport,
    results: Sequence[ReplayResult],
    renderer: ChatRenderer,
    json_file: str | None,
    parquet: Path | None,
    html: Path | None,
) -> None:
    try:
        if json_file == STDOUT:
            sys.stdout.write(report.to_json())
        elif json_file is not None:
            Path(json_file).write_text(report.to_json(), encoding="utf-8")
        if parquet is not None:
            from suffixspec_traces.report.parquet import write_parquet

            write_parquet(parquet, results)
        if html is not None:
            from suffixspec_traces.report.html import write_html

            write_html(html, report, results, renderer.tokenizer)
    except OSError as error:
        raise InputError(f"the report cannot be written: {error}") from error
