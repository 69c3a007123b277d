"""``suffixspec record``: make traces with a scripted agent, real tools and a real model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from suffixspec.engines import load_target
from suffixspec.methods import choose_methods
from suffixspec.settings import LoadedSettings
from suffixspec_index.errors import ConfigError
from suffixspec_traces.model import Session
from suffixspec_traces.record import (
    WORKLOADS,
    Recorder,
    RecordingJournal,
    Task,
    TextModel,
    make_tasks,
    session_record,
    write_records,
)
from suffixspec_traces.render import ChatRenderer
from suffixspec_traces.tokenizers import load_tokenizer

if TYPE_CHECKING:
    from suffixspec_index.speculative_config import SpeculativeConfig

_MODEL_NAMES = {"smollm2": "SmolLM2-135M-Instruct (Q4_1 GGUF, dequantized)"}
JOURNAL = "recording.unfinished"
"""Where an interrupted recording waits, in the output directory; readers of traces pass it over."""


def record(
    context: typer.Context,
    output: Annotated[Path, typer.Argument(help="Directory for one JSONL file per workload.")],
    workload: Annotated[
        list[str] | None, typer.Option(help="coding, sql or support; repeat for several.")
    ] = None,
    sessions: Annotated[int, typer.Option(help="Sessions per workload.")] = 20,
    seed: Annotated[int, typer.Option(help="Fixes the tasks and the random draws.")] = 0,
    model: Annotated[
        str, typer.Option(help="smollm2, a GGUF file, a model's directory or a hub id.")
    ] = "smollm2",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    method: Annotated[
        str | None, typer.Option(help="Who drafts; it changes the time, not the text.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.3,
    top_p: Annotated[float, typer.Option(help="Nucleus size, in (0, 1].")] = 0.95,
    repeat_limit: Annotated[
        int, typer.Option(help="Stop a message that repeats itself so many times; 0: never.")
    ] = 3,
    max_new_tokens: Annotated[int, typer.Option(help="Most tokens per message.")] = 192,
    max_context: Annotated[int, typer.Option(help="A session ends at this length.")] = 3000,
    concurrency: Annotated[int, typer.Option(help="Sessions under way at once.")] = 16,
    threads: Annotated[int | None, typer.Option(help="CPU threads of the model.")] = None,
    compress: Annotated[bool, typer.Option(help="Write .jsonl.gz.")] = True,
) -> None:
    """Record agent sessions: scripted users, really executed tools, and a model's own words.

    Every generated message is written with the exact token ids of its prompt and its output.
    Finished sessions are kept in the output directory, so that the same command goes on where an
    interrupted one stopped.
    """
    if concurrency < 1:
        raise ConfigError(f"--concurrency is {concurrency}; it must be at least 1")
    loaded: LoadedSettings = context.obj
    ((_, speculative),) = choose_methods(loaded.settings.speculative, method=method)
    chosen = list(dict.fromkeys(workload or WORKLOADS))
    made = [make_tasks(name, sessions, seed=seed) for name in chosen]
    # In turn, so that all workloads are under way together.
    tasks = [task for row in zip(*made, strict=True) for task in row]
    console = Console(stderr=True)
    renderer = ChatRenderer(load_tokenizer(model))
    with console.status(f"loading {model}"):
        writer = _load(
            model,
            speculative,
            dtype=dtype,
            threads=threads,
            context=concurrency * max_context,
            running=concurrency,
            name=_MODEL_NAMES.get(model),
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            repeat_limit=repeat_limit,
        )
    try:
        recorder = Recorder(
            writer, renderer, max_new_tokens=max_new_tokens, max_context=max_context
        )
        head = {
            "recorder": "suffixspec record",
            "tokenizer_fingerprint": renderer.tokenizer.fingerprint,
            "settings": {
                **writer.settings,
                "max_new_tokens": max_new_tokens,
                "max_context": max_context,
            },
        }
        journal = RecordingJournal(output / JOURNAL, {**head, "model": writer.name})
        try:
            _record(recorder, tasks, journal, head, concurrency, console)
        finally:
            journal.close()
    finally:
        writer.close()
    records = [journal.records[task.id] for task in tasks]
    for name in chosen:
        of_it = [r for r in records if r["source"] == name]
        write_records(output / f"{name}{'.jsonl.gz' if compress else '.jsonl'}", of_it)
        console.print(f"{name}: {len(of_it)} sessions, {_tokens(of_it)} generated tokens")
    journal.remove()


def _record(
    recorder: Recorder,
    tasks: Sequence[Task],
    journal: RecordingJournal,
    head: Mapping[str, object],
    concurrency: int,
    console: Console,
) -> None:
    """Play what the journal does not hold yet."""
    missing = [task for task in tasks if task.id not in journal.records]
    known = len(tasks) - len(missing)
    if known:
        console.print(f"going on: {known} of {len(tasks)} sessions are in {journal.path}")
    before = _tokens([journal.records[t.id] for t in tasks if t.id in journal.records])

    def keep(session: Session) -> None:
        created = datetime.now(UTC).isoformat(timespec="seconds")
        journal.add(session_record(session, {"created": created, **head}))

    with _progress(console) as progress:
        bar = progress.add_task("recording", total=len(tasks), completed=known, tokens=before)

        def tell(done: int, new: int) -> None:
            progress.update(bar, completed=known + done, tokens=before + new)

        recorder.record(missing, concurrency=concurrency, done=keep, progress=tell)


def _tokens(records: Sequence[Mapping[str, Any]]) -> int:
    """Generated tokens over all sessions."""
    return sum(len(m.get("token_ids", ())) for r in records for m in r["messages"])


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
    model: str,
    speculative: SpeculativeConfig,
    *,
    dtype: str,
    threads: int | None,
    context: int,
    running: int,
    **settings: Any,
) -> TextModel:
    """The engine as a text model, its cache large enough for ``context`` tokens."""
    target = load_target(model, dtype=dtype, threads=threads)
    from suffixspec_engine import Engine, EngineConfig
    from suffixspec_engine.text_model import EngineTextModel

    per_token = target.dtype.itemsize * sum(shape.elements for shape in target.shapes)
    cache_bytes = max(EngineConfig().cache_bytes, context * per_token)
    config = EngineConfig(max_running=running, cache_bytes=cache_bytes)
    engine = Engine(target, speculative=speculative, config=config)
    return EngineTextModel(engine, **settings)
