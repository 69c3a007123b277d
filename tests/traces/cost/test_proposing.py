"""The time of a call and of its requests, told apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suffixspec_traces.cost import DecodeWork, PointsCost, predict
from suffixspec_traces.cost.proposing import ProposingCost


def _shares(rows: list[int], call: float, request: float, noise: int = 0) -> tuple[object, object]:
    random = np.random.default_rng(noise)
    batch, ns = [], []
    for number, r in enumerate(rows):
        total = call + request * r
        if noise and random.random() < 0.1:
            total *= 20  # the machine did something else
        batch += [number] * r
        ns += [total / r] * r
    return np.array(batch, np.int32), np.array(ns)


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=60).filter(lambda r: max(r) >= 2 * min(r)),
    st.floats(0, 1e5),
    st.floats(0, 1e4),
)
def test_a_line_is_found_again(rows: list[int], call: float, request: float) -> None:
    batch, ns = _shares(rows, call, request)
    found = ProposingCost.of(batch, ns)  # type: ignore[arg-type]
    assert found.call_ns == pytest.approx(call, abs=1e-3 + 1e-6 * (call + request))
    total = found.call_ns * len(rows) + found.request_ns.sum()
    assert total == pytest.approx(float(np.sum(ns)), abs=1e-2, rel=1e-6)  # type: ignore[call-overload]


def test_what_else_the_machine_did_does_not_decide() -> None:
    batch, ns = _shares([8] * 400 + [4] * 100 + [2] * 60 + [1] * 40, 50_000, 3_000, noise=4)
    found = ProposingCost.of(batch, ns)  # type: ignore[arg-type]
    assert found.call_ns == pytest.approx(50_000, rel=0.02)


def test_one_size_alone_cannot_tell() -> None:
    batch, ns = _shares([3] * 10, 1000, 100)
    found = ProposingCost.of(batch, ns)  # type: ignore[arg-type]
    assert found.call_ns == 0.0
    assert found.request_ns.sum() == pytest.approx(13_000)
    assert ProposingCost.of(np.empty(0, np.int32), np.empty(0, np.int64)).call_ns == 0.0


def test_a_prediction_charges_the_call_once() -> None:
    cost = PointsCost(
        kind="points", name="x", provenance="made up for this test", points={1: 10.0, 64: 10.0}
    )
    steps = np.zeros(5, np.int32)
    work = DecodeWork(5, steps, np.zeros(5, np.int64), 0.0, overhead_ms=5.0, call_ms=2.0)
    assert predict(cost, work, 1).proposer_ms_per_token == pytest.approx(3.0)
    assert predict(cost, work, 64).proposer_ms_per_token == pytest.approx(66.0)
