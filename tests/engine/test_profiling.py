"""Steps timed on a real (tiny) model, and the command that does it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from suffixspec_engine.profiling import StepShape, measure_steps, time_small_steps  # noqa: E402
from suffixspec_index.errors import ConfigError  # noqa: E402


@pytest.fixture(scope="module")
def model(tiny_llama: Path) -> Any:
    from suffixspec_engine.models import load_model

    return load_model(tiny_llama)


def test_every_shape_is_timed(model: Any) -> None:
    shapes = [StepShape(1, 1, 16), StepShape(7, 3, 16), StepShape(200, 1, 100)]
    said: list[tuple[int, int]] = []
    times = measure_steps(model, shapes, rounds=3, progress=lambda a, b, _: said.append((a, b)))
    assert times is not None
    assert [t.shape for t in times] == shapes
    assert all(len(t.ms) == 3 and t.median > 0 for t in times)
    assert times[2].median > times[0].median
    assert said[-1] == (12, 12)


def test_small_steps_are_timed_once_for_a_model(model: Any) -> None:
    times = time_small_steps(model)
    assert list(times) == [1, 4, 8, 16, 32]
    assert all(0.0 < ms < 10_000.0 for ms in times.values())
    times[1] = -1.0  # a copy
    again = time_small_steps(model)
    assert again[1] > 0.0
    assert {n: ms for n, ms in again.items() if n > 1} == {
        n: ms for n, ms in times.items() if n > 1
    }


def test_a_context_too_short_to_time_is_left_alone(tmp_path: Path) -> None:
    from suffixspec_engine.models import load_model
    from tests.engine.conftest import write_tiny_llama

    short = load_model(write_tiny_llama(tmp_path, max_position_embeddings=36))
    assert list(time_small_steps(short)) == [1, 4]
    shorter = load_model(write_tiny_llama(tmp_path, max_position_embeddings=16))
    assert time_small_steps(shorter) == {}


def test_it_can_be_stopped(model: Any) -> None:
    stop = threading.Event()
    stop.set()
    assert measure_steps(model, [StepShape(1, 1, 0)], stop=stop) is None


@pytest.mark.parametrize(
    ("shape", "rounds"),
    [
        (StepShape(1, 2, 0), 1),
        (StepShape(1, 0, 0), 1),
        (StepShape(8, 1, 100_000), 1),
        (StepShape(1, 1, 0), 0),
    ],
)
def test_impossible_steps_are_refused(model: Any, shape: StepShape, rounds: int) -> None:
    with pytest.raises(ConfigError):
        measure_steps(model, [shape], rounds=rounds)


def test_the_command_writes_what_replay_reads(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from suffixspec.cli import run_command
    from suffixspec.settings import load_settings
    from suffixspec_traces.cost import load_cost_model

    path = tmp_path / "mine.yaml"
    options = "--sizes 1,2,4,8 --contexts 16,64 --concurrency 1,2 --rounds 2 --json -q"
    arguments = ["--model", str(tiny_llama), *options.split(), "-o", str(path)]
    run_command("profile", arguments, load_settings())
    printed = json.loads(capsys.readouterr().out)
    model = load_cost_model(str(path))
    assert printed["points"] == {str(n): ms for n, ms in model.points.items()}  # type: ignore[union-attr]
    assert list(model.points) == [1, 2, 4, 8]  # type: ignore[union-attr]
    assert model.provenance.startswith("suffixspec profile")
