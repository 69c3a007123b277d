from __future__ import annotations

from pathlib import Path

import pytest

from suffixspec_traces.record import sandbox
from suffixspec_traces.record.sandbox import run_python, shorten


def run(folder: Path, code: str) -> str:
    (folder / "main.py").write_text(code)
    return run_python(folder.resolve(), str(folder.resolve() / "main.py"))


def test_output_and_errors(tmp_path: Path) -> None:
    assert run(tmp_path, "print('é', 6 * 7)") == "é 42"
    assert run(tmp_path, "") == "(no output)"
    assert "ZeroDivisionError" in run(tmp_path, "1 / 0")
    assert "SyntaxError" in run(tmp_path, "def")


def test_modules_of_the_directory_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("answer = 42")
    assert run(tmp_path, "import helper; print(helper.answer)") == "42"
    assert not (tmp_path / "__pycache__").exists()


def test_writing_inside_is_allowed(tmp_path: Path) -> None:
    run(tmp_path, "open('out.txt', 'w').write('x')")
    assert (tmp_path / "out.txt").read_text() == "x"


@pytest.mark.parametrize(
    "code",
    [
        "open('../escaped.txt', 'w')",
        "open({outside!r}, 'a')",
        "import os; os.remove({outside!r})",
        "import os; os.rename({outside!r}, 'x')",
        "import os; os.system('touch escaped.txt')",
        "import subprocess; subprocess.run(['true'])",
        "import os; os.fork()",
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import socket; socket.socket().connect(('127.0.0.1', 9))",
        "import shutil; shutil.rmtree('..')",
        "import os; os.kill(os.getppid(), 15)",
        "import ctypes; ctypes.CDLL(None)",
    ],
)
def test_what_the_guard_refuses(tmp_path: Path, code: str) -> None:
    outside = tmp_path / "precious.txt"
    outside.write_text("keep")
    folder = tmp_path / "project"
    folder.mkdir()
    said = run(folder, code.format(outside=str(outside)))
    assert "PermissionError" in said
    assert outside.read_text() == "keep"
    assert not (tmp_path / "escaped.txt").exists()


def test_endless_programs_are_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "WALL_SECONDS", 1.0)
    assert "stopped after 1 s" in run(tmp_path, "while True: pass")


def test_memory_and_file_size_are_limited(tmp_path: Path) -> None:
    assert "MemoryError" in run(tmp_path, "x = bytearray(2 << 30)")
    run(tmp_path, f"open('big', 'wb').write(b'x' * {sandbox.FILE_BYTES * 2})")
    assert (tmp_path / "big").stat().st_size <= sandbox.FILE_BYTES


def test_the_environment_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "hunter2")
    assert run(tmp_path, "import os; print('SECRET_KEY' in os.environ)") == "False"


def test_shorten() -> None:
    assert shorten("abc", 10) == "abc"
    assert shorten("a" * 50 + "b" * 50, 20).startswith("a" * 10 + "\n[... 80 characters left out")
