"""The shell around the commands: help, errors, exit codes, lazy imports."""

import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from suffixspec import cli
from suffixspec.settings import LoadedSettings
from suffixspec_index.errors import InputError, MissingDependencyError

runner = CliRunner()


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "SUFFIXSPEC_CONFIG"):
        monkeypatch.delenv(name, raising=False)


def run_main(monkeypatch: pytest.MonkeyPatch, *args: str) -> int:
    monkeypatch.setattr(sys, "argv", ["suffixspec", *args])
    with pytest.raises(SystemExit) as exit_info:
        cli.main()
    return int(exit_info.value.code or 0)


def test_help_and_version() -> None:
    result = runner.invoke(cli.app, ["--help"])
    assert result.exit_code == 0
    assert "config" in result.output
    result = runner.invoke(cli.app, ["--version"])
    assert result.exit_code == 0
    assert result.output.startswith("suffixspec ")
    assert runner.invoke(cli.app, []).exit_code == 2


def test_start_up_imports_nothing_heavy() -> None:
    heavy = "{'numba', 'torch', 'transformers', 'pyarrow', 'plotly', 'tokenizers'}"
    code = f"import sys, suffixspec.cli; print(sorted({heavy} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.strip() == "[]"


def test_config_show() -> None:
    result = runner.invoke(cli.app, ["--set", "speculative.method=none", "config", "show"])
    assert result.exit_code == 0
    assert "speculative.method" in result.output
    assert "flag" in result.output
    Path("suffixspec.toml").write_text('tokenizer = "t"\n')
    result = runner.invoke(cli.app, ["--verbose", "config", "show", "--json"])
    shown = json.loads(result.output)
    assert shown["file"] == "suffixspec.toml"
    assert shown["settings"]["tokenizer"] == "t"
    assert shown["settings"]["log"]["level"] == "debug"
    assert shown["origins"]["tokenizer"] == "suffixspec.toml"
    assert shown["origins"]["log.level"] == "flag"
    assert shown["origins"]["cost_model"] == "default"


def test_an_error_of_ours_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "--set", "log.level=[loud]", "config", "show") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: flag: log.level:")
    assert captured.err.count("\n") == 1
    assert "[loud]" in captured.err


def test_a_wrong_argument_is_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "frobnicate") == 2
    assert "frobnicate" in capsys.readouterr().err


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lazily imported command module named ``demo``."""
    module = types.ModuleType("suffixspec.commands.demo")

    def demo(
        context: typer.Context,
        paths: list[str],
        fail: Annotated[str, typer.Option()] = "",
    ) -> None:
        """What the demo does."""
        settings: LoadedSettings = context.obj
        if fail == "input":
            raise InputError("path: is\nwrong")
        if fail == "interrupt":
            raise KeyboardInterrupt
        if fail == "exit":
            raise typer.Exit(3)
        typer.echo(f"{paths} {settings.settings.log.level}")

    module.demo = demo  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "suffixspec.commands.demo", module)
    monkeypatch.setattr(cli.app, "registered_commands", list(cli.app.registered_commands))
    cli._add_lazy_command("demo", "A demo.")


@pytest.mark.usefixtures("demo")
class TestLazyCommand:
    def test_gets_its_arguments_and_the_settings(self) -> None:
        result = runner.invoke(cli.app, ["-v", "demo", "a", "--fail", "", "b"])
        assert result.output == "['a', 'b'] debug\n"

    def test_has_its_own_help(self) -> None:
        result = runner.invoke(cli.app, ["demo", "--help"])
        assert result.exit_code == 0
        assert "What the demo does." in result.output

    def test_codes(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run_main(monkeypatch, "demo", "a") == 0
        assert run_main(monkeypatch, "demo", "a", "--fail", "input") == 2
        assert capsys.readouterr().err == "error: path: is wrong\n"
        assert run_main(monkeypatch, "demo", "a", "--fail", "interrupt") == 130
        assert run_main(monkeypatch, "demo", "a", "--fail", "exit") == 3
        assert run_main(monkeypatch, "demo", "a", "--nope") == 2
        capsys.readouterr()
        assert run_main(monkeypatch, "demo", "a", "--set", "a=b") == 2
        assert "--set: belongs before the command: suffixspec --set" in capsys.readouterr().err


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(
        MissingDependencyError, match=r"'torch'.*pip install 'suffixspec\[engine\]'"
    ):
        cli.run_command("record", [], None)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(cli._LAZY_COMMANDS))
def test_every_command_has_help(name: str) -> None:
    if name not in {command.name for command in cli.app.registered_commands}:
        pytest.skip(f"{name} is not in this build")
    result = runner.invoke(cli.app, [name, "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output
