"""The process that runs one job: ``python -m suffixspec_service.jobs.worker FOLDER``.

It reads ``task.json`` in the folder, says on standard output how far it is, a JSON object per
line, and leaves ``result.json`` and ``report.html``. SIGTERM ends it: what was found until then is
written all the same.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from suffixspec_index.depth import DepthSettings, create_depth_rule
from suffixspec_index.errors import SuffixSpecError, TraceError
from suffixspec_index.proposers import create_proposer
from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_index.warm_up import warm_up as warm_up_kernels
from suffixspec_service.jobs.spec import JOB_SPEC, ReplaySpec, TuningSpec, labelled
from suffixspec_traces.cost import load_cost_model
from suffixspec_traces.model import ReadReport, TokenSession
from suffixspec_traces.reading import read_traces
from suffixspec_traces.render import ChatRenderer
from suffixspec_traces.replay import ReplayPlan, ReplayResult, replay, warm_up
from suffixspec_traces.report import ReportOptions, build_report
from suffixspec_traces.tokenizers import load_tokenizer

_SAY_EVERY_S = 0.2
_NICE = 10
FAILED = 3
"""Exit code of a job that failed for a reason it told."""


@dataclass(slots=True)
class Task:
    """A job as its worker sees it.

    Attributes:
        spec: what to do.
        folder: where the results go.
        paths: files to read; ``names`` are what the reports call them.
        tokenizer: what :func:`~suffixspec_traces.tokenizers.load_tokenizer` takes.
        memory_bytes: of address space; ``None``: no limit.
    """

    spec: ReplaySpec | TuningSpec
    folder: Path
    paths: list[str]
    names: list[str]
    tokenizer: str
    memory_bytes: int | None
    stop: threading.Event = field(default_factory=threading.Event)
    _said: float = 0.0

    @classmethod
    def read(cls, folder: Path) -> Task:
        """The task that the service wrote."""
        values = json.loads((folder / "task.json").read_text(encoding="utf-8"))
        spec = JOB_SPEC.validate_python(values["spec"])
        return cls(
            spec,
            folder,
            values["paths"],
            values["names"],
            values["tokenizer"],
            values["memory_bytes"],
        )

    def be_modest(self) -> None:
        """Run behind whatever serves, in bounded memory (where the system can bound it)."""
        if sys.platform == "win32":
            return
        import resource

        os.nice(_NICE)
        if self.memory_bytes is not None:
            resource.setrlimit(resource.RLIMIT_AS, (self.memory_bytes, self.memory_bytes))

    def say(self, stage: str, done: int, total: int | None, *, always: bool = False) -> None:
        """Tell the service how far the job is, a few times a second."""
        now = time.monotonic()
        if always or now - self._said >= _SAY_EVERY_S:
            self._said = now
            print(json.dumps({"stage": stage, "done": done, "total": total}), flush=True)

    def sessions(self, renderer: ChatRenderer, read: ReadReport) -> list[TokenSession]:
        """The traces as tokens."""
        self.say("reading", 0, None, always=True)
        sessions: list[TokenSession] = []
        given = read_traces(self.paths, skip_invalid=self.spec.skip_invalid, report=read)
        for session in given:
            sessions.append(renderer.render_session(session))
            self.say("reading", len(sessions), None)
            if self.stop.is_set() or len(sessions) == self.spec.limit_sessions:
                break
        return sessions

    def write(self, result: str, page: str) -> None:
        """Leave the results; each file is there as a whole or not at all."""
        for name, text in (("report.html", page), ("result.json", result)):
            part = self.folder / f"{name}.part"
            part.write_text(text, encoding="utf-8", newline="\n")
            part.replace(self.folder / name)


def run_replay(task: Task, spec: ReplaySpec) -> None:
    """Replay every method, and write the report."""
    from suffixspec_traces.report.html import render_html

    cost = load_cost_model(spec.cost_model)
    renderer = ChatRenderer(load_tokenizer(task.tokenizer))
    read = ReadReport()
    plan = ReplayPlan.build(
        task.sessions(renderer, read),
        concurrency=spec.concurrency,
        limit_tokens=spec.limit_tokens,
    )
    if not plan.turns:
        raise TraceError("no generated text in these traces, so there is nothing to replay")
    results = _replays(task, spec, plan, renderer, cost)
    if not results:
        return
    task.say("writing the report", 0, None, always=True)
    options = ReportOptions(
        paths=task.names,
        read=read,
        tokenizer=renderer.describe(),
        version=importlib.metadata.version("suffixspec"),
        bootstrap_seed=spec.seed,
    )
    report = build_report(results, cost, options)
    task.write(report.to_json(), render_html(report, results, renderer.tokenizer))


def _replays(
    task: Task, spec: ReplaySpec, plan: ReplayPlan, renderer: ChatRenderer, cost: Any
) -> list[ReplayResult]:
    results: list[ReplayResult] = []
    methods = labelled(spec.methods)
    total = plan.output_tokens * len(methods)
    for number, (label, config) in enumerate(methods):

        def make(config: SpeculativeConfig = config) -> Any:
            return create_proposer(config, vocab_size=renderer.tokenizer.vocab_size)

        def progress(
            sessions: int, tokens: int, before: int = number * plan.output_tokens, name: str = label
        ) -> None:
            task.say(f"replaying {name}", before + tokens, total)

        task.say(f"replaying {label}", number * plan.output_tokens, total, always=True)
        if config.method == "suffix":
            warm_up_kernels(None)
        warm_up(plan, make)
        if task.stop.is_set():
            break
        result = replay(
            plan,
            make(),
            label=label,
            config=config.to_dict(),
            depth=create_depth_rule(config, cost, DepthSettings(load=plan.concurrency)),
            stop=task.stop,
            progress=progress,
        )
        if result.partial and not len(result.log):
            break
        results.append(result)
        if result.partial:
            break
    return results


def run_tuning(task: Task, spec: TuningSpec) -> None:
    """Search, judge, and write the report."""
    from suffixspec_traces.tuning import Halt, Parts, SearchOptions, TuningHead, TuningTask, tune
    from suffixspec_traces.tuning.page import render_html
    from suffixspec_traces.tuning.storage import import_optuna

    import_optuna()
    cost = load_cost_model(spec.cost_model)
    options = SearchOptions(
        concurrencies=spec.concurrency,
        trials=spec.trials,
        seed=spec.seed,
        sensitivity=spec.sensitivity,
    )
    renderer = ChatRenderer(load_tokenizer(task.tokenizer))
    read = ReadReport()
    sessions = task.sessions(renderer, read)
    parts = Parts.split(sessions, held_out=spec.held_out, trial_tokens=spec.trial_tokens)
    warm_up_kernels(None)
    report = tune(
        TuningTask(parts, cost, spec.cost_model, renderer.tokenizer.vocab_size),
        options,
        TuningHead(task.names, read, renderer.describe(), importlib.metadata.version("suffixspec")),
        halt=Halt(task.stop, timeout_s=spec.timeout_s),
        stop_judging=task.stop,
        progress=lambda done, total, text: task.say(text, done, total or None),
    )
    if report is None:
        return
    task.say("writing the report", 0, None, always=True)
    task.write(report.to_json(), render_html(report))


def main(arguments: Sequence[str]) -> int:
    """Run the job of a folder; the exit code."""
    task = Task.read(Path(arguments[0]))
    task.be_modest()
    signal.signal(signal.SIGTERM, lambda *_: task.stop.set())
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    try:
        if isinstance(task.spec, ReplaySpec):
            run_replay(task, task.spec)
        else:
            run_tuning(task, task.spec)
    except (SuffixSpecError, MemoryError) as error:
        text = str(error) or "the job needs more memory than it may have"
        for path, name in zip(task.paths, task.names, strict=True):
            text = text.replace(path, name)  # a caller need not know where things lie here
        print(json.dumps({"error": text}), flush=True)
        return FAILED
    return 0


def _end_with_parent(parent: int) -> None:
    """A service that was killed cannot end its jobs."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
