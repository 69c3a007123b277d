"""What the documentation shows is run: Python blocks, and ``suffixspec`` lines of ``sh`` blocks."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from suffixspec.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```", re.M | re.S)
_LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)[^)]*\)")


COMMANDS = [
    line
    for page in PAGES
    for kind, text in _BLOCK.findall(page.read_text())
    for line in text.splitlines()
    if kind == "sh" and line.startswith("suffixspec ")
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {"__name__": "example"}  # a page's blocks build on each other
    for kind, text in _BLOCK.findall(page.read_text()):
        if kind == "python":
            exec(compile(text, page.name, "exec"), names)
    capsys.readouterr()


@pytest.mark.parametrize("line", COMMANDS, ids=range(len(COMMANDS)))
def test_commands_run(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "traces").symlink_to(ROOT / "traces")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, shlex.split(line)[1:], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    capsys.readouterr()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = _LINK.findall(page.read_text())
    assert [t for t in targets if not (page.parent / t).exists()] == []
