from __future__ import annotations

import json
from pathlib import Path

import typer
from typer.testing import CliRunner

from suffixspec.commands.synthesize import synthesize
from suffixspec_index.errors import ConfigError

app = typer.Typer()
app.command()(synthesize)


def test_writes_labelled_sessions(tmp_path: Path) -> None:
    path = tmp_path / "load.jsonl"
    result = CliRunner().invoke(app, [str(path), "--sessions", "7", "--seed", "2"])
    assert result.exit_code == 0, result.output
    sessions = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(sessions) == 7
    assert {s["source"] for s in sessions} == {"synthetic"}
    assert "7 synthetic sessions" in result.output


def test_wrong_values_leave_no_file(tmp_path: Path) -> None:
    path = tmp_path / "load.jsonl"
    result = CliRunner().invoke(app, [str(path), "--change-rate", "2"])
    assert isinstance(result.exception, ConfigError)
    assert not path.exists()
