"""Cost models: the files, the included ones, and the predictions that follow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from suffixspec_index.errors import ConfigError
from suffixspec_traces.cost import (
    DecodeWork,
    PointsCost,
    RooflineCost,
    batch_sizes,
    cost_model_names,
    load_cost_model,
    predict,
    read_cost_model,
)
from suffixspec_traces.cost.model import non_decreasing

WHY = "made up for the tests of this file"


def points(**more: object) -> PointsCost:
    values = {"kind": "points", "name": "p", "provenance": WHY, "points": {1: 10.0, 5: 18.0}}
    return PointsCost.model_validate(values | more)


def test_points_are_joined_by_lines_and_extended_by_their_slope() -> None:
    assert points().step_ms([1, 2, 5, 10], 0).tolist() == [10.0, 12.0, 18.0, 28.0]


def test_a_larger_step_is_never_cheaper() -> None:
    noisy = points(points={8: 50.0, 1: 54.0, 4: 48.0, 16: 67.0})
    ms = noisy.step_ms(np.arange(1, 40), 0)
    assert (np.diff(ms) >= 0).all()
    assert ms[0] == pytest.approx((54 + 48 + 50) / 3)  # the three that contradict are pooled
    assert non_decreasing([1, 5, 3, 7]).tolist() == [1, 4, 4, 7]
    assert non_decreasing([3, 2, 1]).tolist() == [2, 2, 2]


def test_context_costs_beyond_the_reference() -> None:
    model = points(reference_context_tokens=1000, ms_per_1000_context_tokens=2.0)
    assert float(model.step_ms(1, 3000)) == 14.0
    assert float(model.step_ms(2, 4000, 2)) == 16.0  # two requests of 2000 tokens each


def test_a_roofline_is_bound_by_memory_then_by_compute() -> None:
    model = RooflineCost(
        kind="roofline",
        name="r",
        provenance=WHY,
        weight_bytes=1e9,
        kv_bytes_per_token=1e6,
        flops_per_token=1e9,
        bandwidth_bytes_per_s=1e12,
        peak_flops_per_s=1e13,
        overhead_ms=0.5,
    )
    assert float(model.step_ms(1, 0)) == pytest.approx(1.5)
    assert float(model.step_ms(1, 1000)) == pytest.approx(2.5)
    assert float(model.step_ms(40, 0)) == pytest.approx(4.5)


def test_every_included_model_loads_and_says_how_it_was_obtained() -> None:
    names = cost_model_names()
    assert len(names) == len(set(names)) >= 14
    for name in names:
        model = load_cost_model(name)
        assert model.name == name
        assert ("Roofline" in model.provenance) == (model.kind == "roofline")
        ms = model.step_ms([1, 8, 512], 1000)
        assert (np.diff(ms) >= 0).all()
        assert (ms > 0).all()
    assert "h200-70b-fp8" in names
    assert "rtx4090-32b-bf16" not in names  # 64 GB do not fit


def test_a_file_may_be_yaml_or_json(tmp_path: Path) -> None:
    yaml_file, json_file = tmp_path / "a.yaml", tmp_path / "a.json"
    yaml_file.write_text(f"kind: points\nname: p\nprovenance: {WHY}\npoints: {{1: 10, 5: 18}}\n")
    json_file.write_text(points().model_dump_json())
    assert read_cost_model(yaml_file) == read_cost_model(json_file) == points()
    assert load_cost_model(str(json_file)) == points()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: points\nname: p\npoints: {1: 1, 2: 2}", "provenance"),
        (f"kind: points\nname: p\nprovenance: {WHY}\npoints: {{2: 1, 3: 2}}", "start at 1 token"),
        (f"kind: points\nname: p\nprovenance: {WHY}\npoints: {{1: -1, 3: 2}}", "greater than 0"),
        (f"kind: points\nname: p\nprovenance: {WHY}\npoints: {{1: 1}}", "at least 2"),
        (f"kind: points\nname: p\nprovenance: {WHY}\nextra: 1\npoints: {{1: 1, 2: 2}}", "extra"),
        ("kind: other", "other"),
        ("[1, 2]", "cost model"),
        ("{", "neither YAML nor JSON"),
    ],
)
def test_a_bad_file_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_cost_model(str(path))
    assert str(path) in str(caught.value)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="h100-sxm-8b-bf16"):
        load_cost_model("h100")


def work(drafted: list[int], tokens: int, overhead_ms: float = 0.0) -> DecodeWork:
    n = len(drafted)
    return DecodeWork(tokens, np.array(drafted, np.int32), np.zeros(n, np.int64), 0.0, overhead_ms)


def test_prediction_by_hand() -> None:
    # four tokens in two steps of 1 and 5 tokens: 28 ms and 4 ms of drafting, against 40 ms
    prediction = predict(points(), work([0, 4], 4, overhead_ms=4.0))
    assert prediction.plain_ms_per_token == 10.0
    assert prediction.ms_per_token == pytest.approx(8.0)
    assert prediction.proposer_ms_per_token == pytest.approx(1.0)
    assert prediction.speedup == pytest.approx(1.25)


def test_concurrency_mixes_independent_steps() -> None:
    assert batch_sizes(np.array([0, 2]), 2).round(12).tolist() == [0, 0, 0.25, 0, 0.5, 0, 0.25]
    # two requests, each 1 or 5 tokens: 2, 6 or 10 tokens, 12, 20 and 28 ms, 20 on average
    prediction = predict(points(), work([0, 4], 4), 2)
    assert prediction.plain_ms_per_token == 12.0
    assert prediction.ms_per_token == pytest.approx(10.0)


def test_nothing_drafted_is_no_speed_up() -> None:
    for n in (1, 7):
        assert predict(points(), work([0] * 5, 5), n).speedup == pytest.approx(1.0)
    assert predict(points(), work([], 0)).speedup == 0.0
