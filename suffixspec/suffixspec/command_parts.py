"""What several commands share: settings, outputs, progress, reading traces, Ctrl-C."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Protocol

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

from suffixspec.settings import LoadedSettings, load_settings
from suffixspec_index.errors import ConfigError
from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_index.warm_up import is_cold
from suffixspec_index.warm_up import warm_up as warm_up_kernels
from suffixspec_traces.model import ReadReport, TokenSession
from suffixspec_traces.reading import read_traces
from suffixspec_traces.render import ChatRenderer
from suffixspec_traces.tokenizers import load_tokenizer

DEFAULT_TOKENIZER = "smollm2"
EXIT_INTERRUPTED = 130
STDOUT = "-"


class Report(Protocol):
    """A report that can be written."""

    def to_json(self) -> str:
        """Indented JSON, ending in a newline."""


def settings_of(context: typer.Context) -> LoadedSettings:
    """The settings that the command line has loaded."""
    return context.obj if isinstance(context.obj, LoadedSettings) else load_settings()


def check_outputs(paths: Sequence[Path | None]) -> None:
    """Refuse before a long replay what could not be written after it."""
    for path in (p for p in paths if p is not None):
        folder = path.expanduser().resolve().parent
        if not folder.is_dir():
            raise ConfigError(f"{path}: its folder {folder} does not exist; create it first")
        if path.is_dir():
            raise ConfigError(f"{path}: is a folder; name a file")


def make_progress(console: Console) -> Progress:
    """A progress bar that leaves nothing behind."""
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


def read_sessions(
    paths: Sequence[str],
    renderer: ChatRenderer,
    read: ReadReport,
    console: Console,
    format: str | None,
    skip_invalid: bool,
    limit: int | None,
) -> list[TokenSession]:
    """Read and tokenize traces behind a progress bar; ``limit`` counts sessions with output.

    Raises:
        TraceError: a file cannot be read, unless invalid ones are skipped.
    """
    sessions: list[TokenSession] = []
    tokens = 0
    with make_progress(console) as progress:
        task = progress.add_task("reading", total=None, detail="")
        for session in read_traces(paths, format=format, skip_invalid=skip_invalid, report=read):
            sessions.append(renderer.render_session(session))
            tokens += sessions[-1].output_tokens
            progress.update(task, detail=f"{len(sessions):,} sessions, {tokens:,} generated tokens")
            if limit is not None and sum(1 for s in sessions if s.output_tokens) >= limit:
                break
    return sessions


def compile_kernels(config: SpeculativeConfig, progress: Progress, task: TaskID) -> None:
    """Compile the suffix index's kernels where that is still to be done, and say so: it happens
    once per machine and takes a while, in which nothing else would move."""
    if config.method in ("suffix", "hybrid") and is_cold():
        warm_up_kernels(lambda said: progress.update(task, detail=said))
        progress.update(task, detail="")


@contextmanager
def stop_on_interrupt() -> Iterator[threading.Event]:
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


def choose_renderer(tokenizer: str | None, console: Console) -> ChatRenderer:
    """The renderer of a tokenizer, SmolLM2's where none is named, which is said.

    Raises:
        ConfigError: there is no such tokenizer.
    """
    if tokenizer is None:
        console.print(
            "[dim]No --tokenizer given: using SmolLM2's. Name the target model's own for figures "
            "that hold for it.[/dim]"
        )
    return ChatRenderer(load_tokenizer(tokenizer or DEFAULT_TOKENIZER))


def write_json(report: Report, target: str | None) -> None:
    """Write a report to a file, or to standard output for ``-``; ``None``: nowhere.

    Raises:
        OSError: it cannot be written.
    """
    if target == STDOUT:
        sys.stdout.write(report.to_json())
    elif target is not None:
        Path(target).write_text(report.to_json(), encoding="utf-8")


def say_written(paths: Sequence[Path | None], console: Console) -> None:
    """Name the files that were written."""
    for path in (p for p in paths if p is not None):
        console.print(f"wrote {path}", soft_wrap=True, markup=False, highlight=False)
