"""``suffixspec bench``: what speculation gains, in this process or on a server."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import math
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from suffixspec.bench.backends import Sampling
from suffixspec.bench.datasets import DatasetOptions, make_workload, without_sessions
from suffixspec.bench.load import Load
from suffixspec.bench.plot import check_plot, write_plot
from suffixspec.bench.report import BenchReport, print_report
from suffixspec.bench.results import METRICS, Equality, Round, compare, parse_goodput, summarize
from suffixspec.bench.rivals import Rival, engine_rivals, run_rounds, server_rivals
from suffixspec.bench.saving import save_results
from suffixspec.engines import load_target
from suffixspec.methods import choose_methods
from suffixspec.settings import LoadedSettings
from suffixspec_index.config_values import unknown_name
from suffixspec_index.errors import ConfigError
from suffixspec_traces.reading import read_traces
from suffixspec_traces.render import ChatRenderer
from suffixspec_traces.tokenizers import load_tokenizer

if TYPE_CHECKING:
    from suffixspec.bench.workload import Workload

EXIT_DIFFERS = 1
EXIT_INTERRUPTED = 130
STDOUT = "-"


def bench(
    context: typer.Context,
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="PATH...", help="As --dataset-path.")
    ] = None,
    base_url: Annotated[
        list[str] | None,
        typer.Option(
            "--base-url",
            "--url",
            metavar="[LABEL=]URL",
            help="A server; repeat to compare several.",
        ),
    ] = None,
    endpoint: Annotated[str, typer.Option(help="Path of the API.")] = "/v1/completions",
    header: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE")] = None,
    extra_body: Annotated[
        str | None, typer.Option(metavar="JSON", help="Added to every request's body.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Do not check certificates.")
    ] = False,
    model: Annotated[
        str | None, typer.Option(help="In this process: smollm2, a file, a folder or a hub id.")
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="The model's, by default.")] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="CPU threads of the model.")] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(metavar="A,B | JSON", help="What to compare; default: none,suffix."),
    ] = None,
    warm_index: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="Traces that an index has served; those asked left out."),
    ] = None,
    dataset_name: Annotated[str, typer.Option(help="traces, custom, sharegpt, random.")] = "traces",
    dataset_path: Annotated[list[str] | None, typer.Option(metavar="PATH")] = None,
    num_prompts: Annotated[int, typer.Option(help="Requests in all.")] = 32,
    output_len: Annotated[int | None, typer.Option(help="Output tokens per request.")] = None,
    custom_output_len: Annotated[int | None, typer.Option(help="As --output-len.")] = None,
    sharegpt_output_len: Annotated[int | None, typer.Option(help="As --output-len.")] = None,
    random_output_len: Annotated[int | None, typer.Option(help="As --output-len.")] = None,
    random_input_len: Annotated[int, typer.Option(help="Prompt tokens.")] = 1024,
    random_range_ratio: Annotated[float, typer.Option(help="Spread of both lengths.")] = 0.0,
    random_prefix_len: Annotated[int, typer.Option(help="Tokens that all begin with.")] = 0,
    skip_chat_template: Annotated[bool, typer.Option("--skip-chat-template")] = False,
    disable_shuffle: Annotated[bool, typer.Option("--disable-shuffle")] = False,
    no_oversample: Annotated[bool, typer.Option("--no-oversample")] = False,
    max_concurrency: Annotated[
        int | None,
        typer.Option("--max-concurrency", "--concurrency", help="Sessions at once; default: all."),
    ] = None,
    request_rate: Annotated[float, typer.Option(help="Sessions per second.")] = math.inf,
    burstiness: Annotated[float, typer.Option(help="1: a Poisson process.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the dataset and the arrivals.")] = 0,
    num_warmups: Annotated[int, typer.Option(help="Requests before, not counted.")] = 1,
    repeats: Annotated[int, typer.Option(help="Rounds; rivals take turns.")] = 1,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float | None, typer.Option()] = None,
    top_k: Annotated[int | None, typer.Option()] = None,
    min_p: Annotated[float | None, typer.Option()] = None,
    sampling_seed: Annotated[int | None, typer.Option(help="Seed of every request.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos")] = False,
    percentile_metrics: Annotated[
        str, typer.Option(help="Of ttft, tpot, itl, e2el.")
    ] = "ttft,tpot,itl,e2el",
    metric_percentiles: Annotated[str, typer.Option(help="As 50,90,99.")] = "99",
    goodput: Annotated[
        list[str] | None, typer.Option(metavar="METRIC:MS", help="Most ms of a good request.")
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE|-", help="Write the report as JSON.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw it: .html or .png.")
    ] = None,
    save_result: Annotated[bool, typer.Option("--save-result", help="A file per rival.")] = False,
    save_detailed: Annotated[bool, typer.Option("--save-detailed", help="Every request.")] = False,
    result_dir: Annotated[Path, typer.Option(help="Of --save-result.")] = Path(),
    result_filename: Annotated[str | None, typer.Option(help="Of --save-result.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No table, no progress.")] = False,
) -> int:
    """Measure generation with and without speculation, in this process or on servers.

    Without --base-url every method runs on an engine in this process; outputs that should be equal
    are compared, and in float32 a difference exits with 1. The flags are those of vLLM's `bench
    serve` where they mean the same.
    """
    given = dict(locals())
    loaded: LoadedSettings = given.pop("context").obj
    shown = _metrics(percentile_metrics)
    percentiles = _percentiles(metric_percentiles)
    limits = parse_goodput(goodput or ())
    if repeats < 1 or num_warmups < 0:
        raise ConfigError("--repeats must be at least 1, --num-warmups at least 0")
    if plot is not None:
        check_plot(plot)
    load = Load(
        max_concurrency=max_concurrency,
        request_rate=request_rate,
        burstiness=burstiness,
        seed=seed,
    )
    dataset = _dataset(given)
    sampling = Sampling(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=sampling_seed,
        ignore_eos=ignore_eos,
    )
    console = Console(stderr=True, quiet=quiet)
    rivals, workload, head = _rivals(given, loaded, dataset, sampling, console)
    rounds: dict[str, list[Round]] = {rival.label: [] for rival in rivals}
    finished = _run(rivals, workload, load, rounds, repeats, num_warmups, console)
    served = [rival.label for rival in rivals if any(one.results for one in rounds[rival.label])]
    if not served:
        return EXIT_INTERRUPTED
    report = BenchReport(
        head=head | _circumstances(workload, load, sampling, seed),
        summaries=[summarize(label, rounds[label], limits) for label in served],
        equalities=_equalities(served, rounds) if sampling.repeatable else {},
        metrics=shown,
        percentiles=percentiles,
    )
    _show(report, json_file, plot, quiet)
    if save_result or save_detailed:
        for path in save_results(
            report, rounds, result_dir, result_filename, detailed=save_detailed
        ):
            console.print(f"wrote {path}")
    if not finished:
        return EXIT_INTERRUPTED
    exact = head["backend"] == "in-process" and head["dtype"] == "float32"
    return EXIT_DIFFERS if exact and any(e.first for e in report.equalities.values()) else 0


def _rivals(
    given: dict[str, Any],
    loaded: LoadedSettings,
    dataset: DatasetOptions,
    sampling: Sampling,
    console: Console,
) -> tuple[list[Rival], Workload, dict[str, Any]]:
    """Who is measured on what, and what the report says about it."""
    urls, model = given["base_url"], given["model"]
    if urls:
        for flag in ("methods", "warm_index", "threads"):
            if given[flag]:
                name = flag.replace("_", "-")
                raise ConfigError(f"--{name}: is the server's business with --base-url")
        name = given["tokenizer"] or loaded.settings.tokenizer or model
        if name is None:
            raise ConfigError("--tokenizer: name the served model's tokenizer")
        rivals = server_rivals(
            urls,
            sampling,
            endpoint=given["endpoint"],
            model=model,
            headers=_pairs(given["header"] or ()),
            extra_body=_body(given["extra_body"]),
            insecure=given["insecure"],
        )
        workload = make_workload(dataset, ChatRenderer(load_tokenizer(name)))
        return rivals, workload, {"backend": "openai", "model_id": model, "tokenizer_id": name}
    model = model or "smollm2"
    chosen = choose_methods(
        loaded.settings.speculative, compare=given["methods"] or ["none,suffix"]
    )
    renderer = ChatRenderer(load_tokenizer(given["tokenizer"] or model))
    workload = make_workload(dataset, renderer)
    seen = list(read_traces(given["warm_index"])) if given["warm_index"] else []
    taught = without_sessions(seen, workload)
    with console.status(f"loading {model}"):
        target = load_target(model, dtype=given["dtype"], threads=given["threads"])
    engines = engine_rivals(
        target,
        chosen,
        sampling,
        concurrency=given["max_concurrency"],
        requests=len(workload.requests),
        taught=[renderer.render_session(session) for session in taught],
    )
    head = {
        "backend": "in-process",
        "model_id": target.name,
        "tokenizer_id": renderer.tokenizer.name,
        "dtype": str(target.dtype).removeprefix("torch."),
        "methods": {label: config.to_dict() for label, config in chosen},
        "warm_index_sessions": len(taught),
    }
    return engines, workload, head


def _run(
    rivals: Sequence[Rival],
    workload: Workload,
    load: Load,
    rounds: dict[str, list[Round]],
    repeats: int,
    warm_ups: int,
    console: Console,
) -> bool:
    """Run all rounds; whether they were not interrupted."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        total = repeats * len(workload.requests)
        bars = {r.label: progress.add_task(r.label, total=total, start=False) for r in rivals}

        def tell(label: str, done: int) -> None:
            progress.start_task(bars[label])
            progress.update(bars[label], completed=done)

        try:
            asyncio.run(
                run_rounds(
                    rivals, workload, load, rounds, repeats=repeats, warm_ups=warm_ups, told=tell
                )
            )
        except KeyboardInterrupt:
            console.print("interrupted; what is done:")
            return False
    return True


def _equalities(labels: Sequence[str], rounds: dict[str, list[Round]]) -> dict[str, Equality]:
    first, *others = labels
    return {label: compare(first, rounds[first], rounds[label]) for label in others}


def _show(report: BenchReport, json_file: str | None, plot: Path | None, quiet: bool) -> None:
    if json_file is not None:
        document = orjson.dumps(report.as_json(), option=orjson.OPT_INDENT_2).decode()
        if json_file == STDOUT:
            typer.echo(document)
        else:
            Path(json_file).write_text(document + "\n", encoding="utf-8")
    if plot is not None:
        write_plot(report, plot)
    if not quiet and json_file != STDOUT:
        print_report(Console(), report)


def _circumstances(workload: Workload, load: Load, sampling: Sampling, seed: int) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "suffixspec": importlib.metadata.version("suffixspec"),
        "machine": {"system": platform.platform(), "cores": os.cpu_count()},
        "dataset": workload.name,
        "num_prompts": len(workload.requests),
        "num_sessions": len(workload.sessions),
        "request_rate": "inf" if math.isinf(load.request_rate) else load.request_rate,
        "burstiness": load.burstiness,
        "max_concurrency": load.max_concurrency,
        "temperature": sampling.temperature,
        "seed": seed,
    }


def _dataset(given: dict[str, Any]) -> DatasetOptions:
    name = given["dataset_name"]
    of_name = given.get(f"{name}_output_len")
    return DatasetOptions(
        name=name,
        paths=(*(given["paths"] or ()), *(given["dataset_path"] or ())),
        num_prompts=given["num_prompts"],
        seed=given["seed"],
        output_len=given["output_len"] if given["output_len"] is not None else of_name,
        input_len=given["random_input_len"],
        range_ratio=given["random_range_ratio"],
        prefix_len=given["random_prefix_len"],
        skip_chat_template=given["skip_chat_template"],
        shuffle=not given["disable_shuffle"],
        oversample=not given["no_oversample"],
    )


def _metrics(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in METRICS:
            raise unknown_name("--percentile-metrics", name, list(METRICS))
    return names


def _percentiles(text: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = [-1.0]
    if not all(0 <= value <= 100 for value in values):
        raise ConfigError(f"--metric-percentiles: {text!r} are not numbers in [0, 100]")
    return values


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for text, (key, equals, _) in zip(texts, pairs, strict=True):
        if not equals or not key.strip():
            raise ConfigError(f"--header: {text!r} is not KEY=VALUE")
    return {key.strip(): value for key, _, value in pairs}


def _body(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConfigError(f"--extra-body: {text!r} is not a JSON object")
    return value
