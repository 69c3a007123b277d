from __future__ import annotations

import pytest

from suffixspec.bench.speculation import SpeculationFigures, from_prometheus

PAGE = """# HELP vllm:spec_decode_num_drafts_total Number of drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 5.0
vllm:spec_decode_num_draft_tokens_total{model_name="m"} 6e+01
vllm:spec_decode_num_accepted_tokens_total{model_name="m"} 30.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="m",position="0"} 12.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="m",position="2"} 3.0
vllm:num_requests_running{model_name="m"} 2.0
broken line
"""


def test_counters_are_summed_over_labels() -> None:
    found = from_prometheus(PAGE.splitlines())
    assert found == SpeculationFigures(15, 60, 30, (12, 0, 3))
    assert found.acceptance_rate == 0.5
    assert found.acceptance_length == 3.0
    assert found.tokens_per_step is None
    keys = found.as_json()
    assert keys["spec_decode_acceptance_rate"] == 50.0
    assert keys["spec_decode_per_position_acceptance_rates"] == pytest.approx([0.8, 0.0, 0.2])


def test_pages_without_speculation() -> None:
    assert from_prometheus(["vllm:num_requests_running 2.0", "", "# x"]) is None
    renamed = PAGE.replace("vllm:", "").replace("_total", "")
    assert from_prometheus(renamed.splitlines()) == from_prometheus(PAGE.splitlines())


def test_arithmetic() -> None:
    before = SpeculationFigures(1, 4, 2, (1,), 5, 7)
    after = SpeculationFigures(3, 10, 6, (2, 1), 9, 20)
    assert after - before == SpeculationFigures(2, 6, 4, (1, 1), 4, 13)
    assert before + (after - before) == after.__class__(3, 10, 6, (2, 1), 9, 20)
    assert (after - before).tokens_per_step == 13 / 4
    assert (SpeculationFigures(1) + after).steps is None
    assert SpeculationFigures().acceptance_rate == 0.0
    assert SpeculationFigures().acceptance_length == 1.0
