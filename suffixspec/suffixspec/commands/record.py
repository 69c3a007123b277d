"""``suffixspec record``: make traces with a scripted agent, real tools and a real model."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from suffixspec_index.errors import ConfigError, MissingDependencyError
from suffixspec_traces.model import Session
from suffixspec_traces.record import WORKLOADS, Recorder, TextModel, make_tasks, write_sessions
from suffixspec_traces.render import ChatRenderer
from suffixspec_traces.tokenizers import load_tokenizer, smollm2_path

_MODEL_NAMES = {"smollm2": "SmolLM2-135M-Instruct (Q4_1 GGUF, dequantized)"}


def record(
    output: Annotated[Path, typer.Argument(help="Directory for one JSONL file per workload.")],
    workload: Annotated[
        list[str] | None, typer.Option(help="coding, sql or support; repeat for several.")
    ] = None,
    sessions: Annotated[int, typer.Option(help="Sessions per workload.")] = 20,
    seed: Annotated[int, typer.Option(help="Fixes the tasks and the random draws.")] = 0,
    model: Annotated[
        str, typer.Option(help="smollm2, a GGUF file, or a Hugging Face model directory.")
    ] = "smollm2",
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.3,
    top_p: Annotated[float, typer.Option(help="Nucleus size, in (0, 1].")] = 0.95,
    repeat_limit: Annotated[
        int, typer.Option(help="Stop a message that repeats itself so many times; 0: never.")
    ] = 3,
    max_new_tokens: Annotated[int, typer.Option(help="Most tokens per message.")] = 192,
    max_context: Annotated[int, typer.Option(help="A session ends at this length.")] = 3000,
    batch: Annotated[int, typer.Option(help="Sessions that advance together.")] = 30,
    threads: Annotated[int, typer.Option(help="CPU threads of the model.")] = 1,
    compress: Annotated[bool, typer.Option(help="Write .jsonl.gz.")] = True,
) -> None:
    """Record agent sessions: scripted users, really executed tools, and a model's own words.

    Every generated message is written with the exact token ids of its prompt and its output.
    """
    if batch < 1:
        raise ConfigError(f"--batch is {batch}; it must be at least 1")
    console = Console(stderr=True)
    chosen = list(dict.fromkeys(workload or WORKLOADS))
    made = [make_tasks(name, sessions, seed=seed) for name in chosen]
    # In turn, so that every batch holds all workloads.
    tasks = [task for row in zip(*made, strict=True) for task in row]
    path = smollm2_path() if model == "smollm2" else Path(model)
    name = _MODEL_NAMES.get(model, path.stem)
    renderer = ChatRenderer(load_tokenizer(model))
    with console.status(f"loading {name}"):
        writer = _load(
            path,
            name,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            repeat_limit=repeat_limit,
            threads=threads,
        )
    recorder = Recorder(writer, renderer, max_new_tokens=max_new_tokens, max_context=max_context)
    extra: dict[str, object] = {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "recorder": "suffixspec record",
        "tokenizer_fingerprint": renderer.tokenizer.fingerprint,
        "settings": {
            **writer.settings,
            "max_new_tokens": max_new_tokens,
            "max_context": max_context,
            "batch": batch,
        },
    }
    recorded: list[Session] = []
    with _progress(console) as progress:
        bar = progress.add_task("recording", total=len(tasks), tokens=0)
        for at in range(0, len(tasks), batch):
            before = _tokens(recorded)

            def tell(done: int, new: int, at: int = at, before: int = before) -> None:
                progress.update(bar, completed=at + done, tokens=before + new)

            recorded += recorder.record(tasks[at : at + batch], progress=tell)
            # Written after every batch: an interrupted recording keeps what it has.
            for workload_name in chosen:
                of_it = [s for s in recorded if s.source == workload_name]
                target = output / f"{workload_name}{'.jsonl.gz' if compress else '.jsonl'}"
                write_sessions(target, of_it, extra)
    for workload_name in chosen:
        of_it = [s for s in recorded if s.source == workload_name]
        console.print(f"{workload_name}: {len(of_it)} sessions, {_tokens(of_it)} generated tokens")


def _tokens(sessions: list[Session]) -> int:
    """Generated tokens over all sessions."""
    ids = (m.token_ids for s in sessions for m in s.messages)
    return sum(len(row) for row in ids if row is not None)


def _progress(console: Console) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[tokens]} tokens"),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=console)


def _load(
    path: Path,
    name: str,
    *,
    temperature: float,
    top_p: float,
    seed: int,
    repeat_limit: int,
    threads: int,
) -> TextModel:
    try:
        from suffixspec_engine.hf_generate import HfTextModel
    except ImportError as error:
        raise MissingDependencyError(
            "recording needs torch and transformers; run: pip install 'suffixspec[engine]'"
        ) from error
    return HfTextModel(
        path,
        name=name,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        repeat_limit=repeat_limit,
        threads=threads,
    )
