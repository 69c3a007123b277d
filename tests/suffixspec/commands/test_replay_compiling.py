"""A replay on a new machine says that it is compiling, instead of standing still."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rich.console import Console

from suffixspec import command_parts as command
from suffixspec_index.speculative_config import SpeculativeConfig


@pytest.mark.parametrize(
    ("method", "cold", "shown"), [("suffix", True, 1), ("suffix", False, 0), ("ngram", True, 0)]
)
def test_compiling_is_shown(
    monkeypatch: pytest.MonkeyPatch, method: str, cold: bool, shown: int
) -> None:
    details: list[str] = []
    console = Console(force_terminal=True, width=100)
    with command.make_progress(console) as progress:
        task = progress.add_task("suffix", total=10, detail="")

        def warm_up(say: Callable[[str], None]) -> None:
            say("compiling kernels (once): inserting, 1 of 5")
            details.append(progress.tasks[task].fields["detail"])

        monkeypatch.setattr(command, "is_cold", lambda: cold)
        monkeypatch.setattr(command, "warm_up_kernels", warm_up)
        command.compile_kernels(
            SpeculativeConfig(method=method, num_speculative_tokens=4), progress, task
        )
        assert progress.tasks[task].fields["detail"] == ""
    assert details == ["compiling kernels (once): inserting, 1 of 5"] * shown
