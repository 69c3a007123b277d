"""``suffixspec profile``: its files, its page, and that Ctrl-C leaves nothing half done."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

pytest.importorskip("torch")
pytest.importorskip("transformers")

from suffixspec import cli
from suffixspec.commands import profile
from suffixspec_index.errors import ConfigError
from suffixspec_traces.cost import load_cost_model
from suffixspec_traces.cost.measured import points_cost
from tests.engine.conftest import write_tiny_llama

runner = CliRunner()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


def test_a_file_and_a_page(tiny: Path, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    model, page = tmp_path / "mine.yaml", tmp_path / "mine.html"
    words = ["profile", "--model", str(tiny), "--sizes", "1,2,4", "--contexts", "4,16"]
    words += ["--concurrency", "1,2", "--rounds", "2", "-o", str(model), "--plot", str(page)]
    result = runner.invoke(cli.app, words)
    assert result.exit_code == 0, result.output
    cost = load_cost_model(str(model))
    assert float(cost.step_ms(4, 4, 1)) > 0
    text = page.read_text(encoding="utf-8")
    assert cost.name in text
    assert "<script src" not in text
    assert 'http-equiv="Content-Security-Policy"' in text


@pytest.mark.parametrize("width", [60, 80, 160])
def test_bars_are_as_long_as_steps_on_narrow_terminals_too(width: int) -> None:
    points = {1: 10.0, 2: 15.0, 64: 20.0}
    console = Console(width=width, record=True, file=io.StringIO())
    profile._print(
        points_cost(points, name="n", provenance="made up for this test, nothing was measured"),
        console,
    )
    text = console.export_text()
    assert width < 70 or "…" not in text
    short, middle, longest = (line.count("█") for line in text.splitlines() if "█" in line)
    assert short == longest / 2
    assert middle == pytest.approx(0.75 * longest, abs=0.5)


def test_nothing_is_measured_for_a_page_that_cannot_be_written(tiny: Path, tmp_path: Path) -> None:
    words = ["profile", "--model", str(tiny), "--plot", str(tmp_path / "no" / "page.html")]
    result = runner.invoke(cli.app, words)
    assert isinstance(result.exception, ConfigError)
    assert "no/page.html" in str(result.exception)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks at /proc")
def test_an_interrupt_leaves_no_file(tiny: Path, tmp_path: Path) -> None:
    model, page = tmp_path / "mine.yaml", tmp_path / "mine.html"
    words = ["-c", "from suffixspec.cli import main; main()", "profile", "--model", str(tiny)]
    words += ["--rounds", "1000000", "--sizes", "1,2,4", "--contexts", "4,16"]
    words += ["-o", str(model), "--plot", str(page)]
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen([sys.executable, *words], stderr=said, stdout=said)
        try:
            _wait_until_it_measures(process)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        finally:
            process.kill()
            process.wait()
    assert "nothing was written" in (tmp_path / "said").read_text()
    assert [file.name for file in tmp_path.iterdir()] == ["said"]


def _wait_until_it_measures(process: subprocess.Popen[bytes]) -> None:
    """Until torch is loaded, which the command does once it has taken over Ctrl-C, and a bit."""
    end = time.monotonic() + 60
    maps = Path(f"/proc/{process.pid}/maps")
    while time.monotonic() < end and process.poll() is None:
        if "libtorch_cpu" in maps.read_text():
            time.sleep(3.0)
            return
        time.sleep(0.1)
