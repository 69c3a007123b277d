"""``suffixspec synthesize``: write a synthetic workload for load tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from suffixspec_traces.model import Session
from suffixspec_traces.record.writer import write_sessions
from suffixspec_traces.synthetic import SyntheticConfig, generate_sessions

_DEFAULT = SyntheticConfig()


def synthesize(
    output: Annotated[Path, typer.Argument(help="File to write: .jsonl or .jsonl.gz.")],
    sessions: Annotated[int, typer.Option(help="How many sessions.")] = _DEFAULT.sessions,
    seed: Annotated[int, typer.Option(help="Equal seeds give equal files.")] = _DEFAULT.seed,
    min_turns: Annotated[int, typer.Option(help="Fewest generations.")] = _DEFAULT.min_turns,
    max_turns: Annotated[int, typer.Option(help="Most generations.")] = _DEFAULT.max_turns,
    pool: Annotated[int, typer.Option(help="Files and records that are shared.")] = _DEFAULT.pool,
    file_lines: Annotated[int, typer.Option(help="Mean lines per file.")] = _DEFAULT.file_lines,
    change_rate: Annotated[
        float, typer.Option(help="Share of lines that an edit changes.")
    ] = _DEFAULT.change_rate,
    arrivals: Annotated[
        float, typer.Option(help="Sessions started per second.")
    ] = _DEFAULT.arrivals,
) -> None:
    """Write seeded synthetic agent sessions as OpenAI chat JSONL.

    For load tests. The text is made up, so figures about speculation's gain mean nothing on it;
    every session says so in its source.
    """
    config = SyntheticConfig(
        sessions=sessions,
        seed=seed,
        min_turns=min_turns,
        max_turns=max_turns,
        pool=pool,
        file_lines=file_lines,
        change_rate=change_rate,
        arrivals=arrivals,
    )
    console = Console(stderr=True)

    def counted() -> Iterator[Session]:
        yield from track(
            generate_sessions(config), "synthesizing", total=config.sessions, console=console
        )

    written = write_sessions(output, counted())
    console.print(f"{output}: {written} synthetic sessions", soft_wrap=True)
