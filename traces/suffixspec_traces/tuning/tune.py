"""Tuning from sessions to report: search on the tuning part, judge on the held-out part."""

from __future__ import annotations

import platform
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from suffixspec_index.errors import ConfigError
from suffixspec_traces.model import ReadReport
from suffixspec_traces.report.model import CostInfo, SkippedRow
from suffixspec_traces.tuning.evaluate import Bench, BenchRecipe, Cost
from suffixspec_traces.tuning.finals import timed_again
from suffixspec_traces.tuning.judge import BOOTSTRAP_SAMPLES, judge
from suffixspec_traces.tuning.model import ConcurrencyReport, PartInfo, TuningReport, TuningRun
from suffixspec_traces.tuning.packing import fingerprint
from suffixspec_traces.tuning.search import Halt, Search, SearchOptions, SearchProgress
from suffixspec_traces.tuning.split import Parts, output_tokens
from suffixspec_traces.tuning.storage import import_optuna, open_storage
from suffixspec_traces.tuning.workers import InProcess, Processes, Workers


@dataclass(frozen=True, slots=True)
class TuningTask:
    """What is tuned on.

    Attributes:
        parts: the sessions.
        cost: the cost model.
        cost_model: its name or file, as a configuration names it.
        vocab_size: of the tokenizer; ``None``: unknown.
    """

    parts: Parts
    cost: Cost
    cost_model: str
    vocab_size: int | None = None

    def identity(self, version: str = "") -> str:
        """What a storage goes on from: the same for the same tuning sessions, costs and version,
        because then a trial's figures are the same."""
        parts = self.parts
        return fingerprint((parts.warm, parts.tuning), self.cost.model_dump_json(), version)


@dataclass(frozen=True, slots=True)
class TuningHead:
    """What the head of the report says about its making."""

    paths: Sequence[str] = ()
    read: ReadReport = field(default_factory=ReadReport)
    tokenizer: Mapping[str, object] = field(default_factory=dict)
    version: str = ""


def tune(
    task: TuningTask,
    options: SearchOptions,
    head: TuningHead,
    *,
    halt: Halt | None = None,
    stop_judging: threading.Event | None = None,
    storage: str | None = None,
    workers: int = 1,
    progress: SearchProgress | None = None,
) -> TuningReport | None:
    """Search, then judge what was found.

    Args:
        halt: ends the search early; what was found until then is judged all the same.
        stop_judging: ends the judgement too; concurrencies it did not come to are left out.
        storage: see :func:`~suffixspec_traces.tuning.storage.open_storage`.
        workers: processes that run trials; the judgement runs here alone, because it measures the
            proposers' time.

    Returns:
        The report; ``None`` if it was stopped before anything was found and judged.

    Raises:
        ConfigError: ``workers`` is below 1, or an option is wrong.
        InputError, MissingDependencyError: as for the storage.
    """
    halt = halt or Halt()
    kept = open_storage(storage)
    bench = Bench(task.parts, task.cost, task.vocab_size)
    identity = task.identity(head.version)
    pool = make_workers(task, bench, workers, halt)
    try:
        search = Search(pool, kept, identity, options, halt, progress)
        search.run()
    finally:
        pool.close()
    ended = "interrupted" if halt.interrupted else "timeout" if halt.timed_out else "complete"
    reports: list[ConcurrencyReport] = []
    for n in options.concurrencies:
        judged = _judged(task, bench, search, n, stop_judging, progress)
        if judged is not None:
            reports.append(judged)
        if search.trials(n) and (judged is None or not judged.complete):
            ended = "interrupted"
            break
    if not reports:
        return None
    return TuningReport(
        run=_run_info(task, options, head, identity, ended, workers, search.found_before),
        cost_model=CostInfo(
            name=task.cost.name, kind=task.cost.kind, provenance=task.cost.provenance
        ),
        concurrencies=reports,
    )


def _judged(
    task: TuningTask,
    bench: Bench,
    search: Search,
    concurrency: int,
    stop: threading.Event | None,
    progress: SearchProgress | None,
) -> ConcurrencyReport | None:
    """The judgement of one concurrency; ``None`` without trials, or if it was stopped."""
    trials = search.trials(concurrency)
    at, planned = search.options.concurrencies.index(concurrency), len(search.options.concurrencies)

    def say(text: str) -> None:
        if progress is not None:
            progress(at, planned, text)

    if not trials:
        return None
    return judge(
        bench,
        concurrency,
        timed_again(bench, concurrency, trials, stop=stop, progress=say),
        search.reference(concurrency),
        cost_model=task.cost_model,
        seed=search.options.seed,
        stop=stop,
        progress=say,
    )


def make_workers(task: TuningTask, bench: Bench, count: int, halt: threading.Event) -> Workers:
    """This process for one worker, else so many others.

    Raises:
        ConfigError: the number is below 1.
    """
    if count < 1:
        raise ConfigError(f"workers: must be at least 1, got {count}")
    if count == 1:
        return InProcess(bench, halt)
    return Processes(BenchRecipe.of(task.parts, task.cost, task.vocab_size), count)


def _run_info(
    task: TuningTask,
    options: SearchOptions,
    head: TuningHead,
    identity: str,
    ended: str,
    workers: int,
    found_before: int,
) -> TuningRun:
    parts = task.parts
    named = {
        "tuning, to warm the index": parts.warm,
        "tuning, counted": parts.tuning,
        "held out": parts.held_out,
    }
    return TuningRun.model_validate(
        {
            "suffixspec_version": head.version,
            "optuna_version": import_optuna().__version__,
            "paths": list(head.paths),
            "formats": dict(head.read.formats),
            "skipped": [
                SkippedRow(path=s.path, line=s.line, reason=s.reason) for s in head.read.skipped
            ],
            "tokenizer": dict(head.tokenizer),
            "parts": [
                PartInfo(name=name, sessions=len(part), output_tokens=output_tokens(part))
                for name, part in named.items()
            ],
            "trials_wanted": options.trials,
            "seed": options.seed,
            "workers": workers,
            "identity": identity,
            "found_before": found_before,
            "ended": ended,
            "bootstrap_samples": BOOTSTRAP_SAMPLES,
            "machine": f"{platform.system()} {platform.machine()}, "
            f"Python {platform.python_version()}",
        }
    )
