"""``suffixspec keys``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from suffixspec.cli import app
from suffixspec_index.errors import ConfigError
from suffixspec_service.callers import Callers


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["keys", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_add_list_revoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    key = run("add", "acme", "--concurrent-requests", "3", "--note", "laptop").strip()
    run("add", "boss", "--admin")
    path = tmp_path / "suffixspec-keys.json"
    tenant = Callers(path).authenticate(key)
    assert (tenant.name, tenant.limits.concurrent_requests) == ("acme", 3)
    listed = json.loads(run("list", "--json"))
    assert [(row["tenant"], row["admin"], row["note"]) for row in listed] == [
        ("acme", False, "laptop"),
        ("boss", True, ""),
    ]
    assert key not in run("list")
    run("revoke", listed[0]["id"])
    assert [row["tenant"] for row in json.loads(run("list", "--json"))] == ["boss"]


def test_the_file_of_the_settings_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "other.json"
    monkeypatch.setenv("SUFFIXSPEC_SERVICE__KEYS_FILE", str(path))
    run("add", "acme")
    assert path.exists()


@pytest.mark.parametrize(
    "arguments",
    [["list"], ["revoke", "key-1"], ["add", "a b"], ["add", "a", "--concurrent-requests", "0"]],
)
def test_errors(tmp_path: Path, arguments: list[str]) -> None:
    path = tmp_path / "keys.json"
    with pytest.raises(ConfigError):
        CliRunner().invoke(app, ["keys", *arguments, "--file", str(path)], catch_exceptions=False)
    assert not path.exists()
