"""The coding workload: read a small Python file, see its tests fail, rewrite it, test again."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from suffixspec_traces.record.base import (
    Arguments,
    Step,
    Task,
    ToolFailure,
    argument,
    example,
    request,
    tool,
)
from suffixspec_traces.record.functions import EXERCISES, Exercise
from suffixspec_traces.record.sandbox import FILE_BYTES, run_python, shorten

SYSTEM = (
    "You are a coding assistant. You work on a small Python project by calling tools, and you "
    "answer briefly. When you change a file, write the whole file."
)
TOOLS = (
    tool("read_file", "Read a file of the project.", path="file name"),
    tool("write_file", "Replace a file.", path="file name", content="the whole new text"),
    tool("run_python", "Run a Python file of the project.", path="file name"),
    tool("run_tests", "Run the tests of a module.", module="file name of the module"),
)
_EXAMPLES = (
    *example(
        "read_file",
        {"path": "demo.py"},
        "def double(x):\n    return 2 * x\n",
        "Explain in one sentence what `double` does, and show the code of `double` again.",
        "`double` returns twice its argument:\n\n```python\ndef double(x):\n    return 2 * x\n```",
    ),
    *example(
        "run_tests",
        {"module": "demo.py"},
        "FAIL double(0) == 1\nok   double(2) == 4\n1 failed",
        "Which checks fail? Quote them.",
        "One check fails:\n\n- `double(0) == 1`\n\nThe check `double(2) == 4` passes.",
    ),
)
_MODULES = ("helpers", "textkit", "numbers_util", "core", "report", "tools", "stats", "shared")


class Project:
    """A temporary directory of Python files; tools see nothing outside it."""

    def __init__(self, files: dict[str, str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="suffixspec-record-")
        self.root = Path(self._folder.name).resolve()
        for name, text in files.items():
            (self.root / name).write_text(text, encoding="utf-8")

    def call(self, name: str, arguments: Arguments) -> str:
        """Run ``read_file``, ``write_file``, ``run_python`` or ``run_tests``."""
        if name == "read_file":
            path = self._existing(argument(arguments, "path"))
            return shorten(path.read_text("utf-8", "replace"))
        if name == "write_file":
            path = self._inside(argument(arguments, "path"))
            content = argument(arguments, "content")
            if len(content.encode()) > FILE_BYTES:
                raise ToolFailure(f"error: the content is longer than {FILE_BYTES} bytes")
            path.write_text(content, encoding="utf-8")
            return f"wrote {len(content.splitlines())} lines to {path.name}"
        if name == "run_python":
            return run_python(self.root, str(self._existing(argument(arguments, "path"))))
        if name == "run_tests":
            module = Path(argument(arguments, "module")).stem
            return run_python(self.root, str(self._existing(f"test_{module}.py")))
        raise ToolFailure(f"error: there is no tool {name!r}")

    def close(self) -> None:
        """Remove the directory."""
        self._folder.cleanup()

    def _inside(self, name: str) -> Path:
        path = (self.root / name).resolve()
        if path.parent != self.root:
            raise ToolFailure(f"error: {name!r} is not a file of this project")
        return path

    def _existing(self, name: str) -> Path:
        path = self._inside(name)
        if not path.is_file():
            listing = ", ".join(sorted(p.name for p in self.root.glob("*.py")))
            raise ToolFailure(f"error: no file {name!r}; the project has {listing}")
        return path


def make_task(seed: int, number: int) -> Task:
    """A project of two functions, one of them faulty."""
    rng = random.Random(f"coding-{seed}-{number}")
    broken, sound = rng.sample(EXERCISES, 2)
    pair = [broken, sound]
    rng.shuffle(pair)
    name = rng.choice(_MODULES)
    path = f"{name}.py"
    faulty = "\n\n".join(e.faulty if e is broken else e.code for e in pair)
    fixed = "\n\n".join(e.code for e in pair)
    files = {path: faulty, f"test_{path}": _tests(name, pair)}
    names = " and ".join(f"`{e.name}`" for e in pair)
    steps = (
        Step(
            request("read_file", {"path": path}),
            "read_file",
            {"path": path},
            f"Explain in one sentence each what {names} do, and show the code of "
            f"`{sound.name}` again.",
        ),
        Step(
            request("run_tests", {"module": path}),
            "run_tests",
            {"module": path},
            "Which checks fail? Quote them, and quote the line of the file that is wrong.",
        ),
        Step(
            f"In `{broken.name}`, {broken.hint}: replace `{broken.wrong}` by `{broken.right}`. "
            f"Write the whole corrected {path}, both functions, in one ```python block.",
            "write_file",
            {"path": path, "content": fixed},
            f"Show the final code of `{broken.name}`.",
            block="python",
            wrap=lambda code: {"path": path, "content": code},
        ),
        Step(
            request("run_tests", {"module": path}),
            "run_tests",
            {"module": path},
            f"Summarise for the commit message what was wrong in `{broken.name}`, what was "
            "changed, and what the tests say now.",
        ),
    )
    return Task(
        f"coding-{seed}-{number:04d}",
        "coding",
        SYSTEM,
        TOOLS,
        _EXAMPLES,
        steps,
        lambda: Project(files),
    )


def _tests(module: str, pair: list[Exercise]) -> str:
    """A test file that prints a line per check and needs no test framework."""
    names = ", ".join(e.name for e in pair)
    lines = [f"from {module} import {names}", "", "failed = 0"]
    for check in (check for e in pair for check in e.checks):
        lines += [
            "try:",
            f"    ok = bool({check})",
            "except Exception as error:",
            "    ok = False",
            '    print("error:", type(error).__name__, error)',
            f"print('ok  ' if ok else 'FAIL', {check!r})",
            "failed += not ok",
        ]
    lines.append('print("all passed" if not failed else f"{failed} failed")')
    return "\n".join(lines) + "\n"
