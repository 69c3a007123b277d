"""What the documentation shows is run: Python blocks, and ``suffixspec`` and ``curl`` commands of
``sh`` blocks. Where they speak to a service on its usual ports, one runs on others."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from suffixspec.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```", re.M | re.S)
_LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)[^)]*\)")


COMMANDS = {
    page.name: [
        line
        for kind, text in _BLOCK.findall(page.read_text())
        for line in text.splitlines()
        if kind == "sh"
        and line.startswith("suffixspec ")
        and not line.startswith("suffixspec serve")  # runs for ever; tests/suffixspec starts it
    ]
    for page in PAGES
}
CURLS = [
    text
    for page in PAGES
    for kind, text in _BLOCK.findall(page.read_text())
    if kind == "sh" and text.startswith("curl ")
]
HTTP, GRPC = "localhost:8000", "localhost:50051"


@pytest.fixture
def with_service(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Text of an example, with the addresses of a running service where it names one."""

    def replaced(text: str) -> str:
        if HTTP not in text and GRPC not in text:
            return text
        service = request.getfixturevalue("real")
        return text.replace(HTTP, service.url.removeprefix("http://")).replace(
            GRPC, service.grpc[0]
        )

    return replaced


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(
    page: Path, capsys: pytest.CaptureFixture[str], with_service: Callable[[str], str]
) -> None:
    names: dict[str, object] = {"__name__": "example"}  # a page's blocks build on each other
    for kind, text in _BLOCK.findall(with_service(page.read_text())):
        if kind == "python":
            exec(compile(text, page.name, "exec"), names)
    capsys.readouterr()


@pytest.mark.parametrize("page", [name for name, lines in COMMANDS.items() if lines])
def test_commands_run(
    page: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    with_service: Callable[[str], str],
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "traces").symlink_to(ROOT / "traces")
    monkeypatch.chdir(tmp_path)
    for line in COMMANDS[page]:  # a page's commands build on each other
        given = shlex.split(with_service(line))[1:]
        result = CliRunner().invoke(app, given, catch_exceptions=False)
        assert result.exit_code == 0, f"{line}\n{result.output}"
    capsys.readouterr()


@pytest.mark.parametrize("command", CURLS, ids=range(len(CURLS)))
def test_curls_run(command: str, with_service: Callable[[str], str]) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    done = subprocess.run(
        with_service(command).replace("curl ", "curl --fail-with-body -sS ", 1),
        shell=True,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = _LINK.findall(page.read_text())
    assert [t for t in targets if not (page.parent / t).exists()] == []
