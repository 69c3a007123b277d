from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from suffixspec.commands import record as record_command
from suffixspec_index.errors import ConfigError
from suffixspec_traces.tokenizers import load_tokenizer
from tests.traces.record.fake_model import FakeModel
from tests.traces.tiny_tokenizer import write_tokenizer_directory


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    folder = write_tokenizer_directory(tmp_path / "model")
    model = FakeModel(load_tokenizer(folder), lambda _: "hello")
    monkeypatch.setattr(record_command, "_load", lambda *_, **__: model)
    app = typer.Typer()
    app.command()(record_command.record)
    return app


def test_one_file_per_workload(app: typer.Typer, tmp_path: Path) -> None:
    arguments = [str(tmp_path / "out"), "--model", str(tmp_path / "model"), "--sessions", "2"]
    limits = ["--max-context", "20000", "--batch", "5"]
    result = CliRunner().invoke(app, [*arguments, *limits])
    assert result.exit_code == 0, result.output
    for workload in ("coding", "sql", "support"):
        lines = gzip.decompress((tmp_path / "out" / f"{workload}.jsonl.gz").read_bytes())
        sessions = [json.loads(line) for line in lines.splitlines()]
        assert [s["source"] for s in sessions] == [workload] * 2
        assert all(s["settings"]["max_context"] == 20000 for s in sessions)
        assert all(s["created"].startswith("20") and s["model"] for s in sessions)
        assert f"{workload}: 2 sessions" in result.output


def test_chosen_workloads_uncompressed(app: typer.Typer, tmp_path: Path) -> None:
    arguments = [str(tmp_path / "out"), "--model", str(tmp_path / "model"), "--sessions", "1"]
    result = CliRunner().invoke(app, [*arguments, "--workload", "sql", "--no-compress"])
    assert result.exit_code == 0, result.output
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["sql.jsonl"]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--batch", "0", "--batch is 0"),
        ("--sessions", "0", "sessions is 0"),
        ("--workload", "chess", "workload 'chess' does not exist"),
        ("--max-context", "10", "max_context is 10"),
    ],
)
def test_wrong_values(
    app: typer.Typer, tmp_path: Path, option: str, value: str, message: str
) -> None:
    arguments = [str(tmp_path / "out"), "--model", str(tmp_path / "model"), option, value]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)
    assert not (tmp_path / "out").exists()
