"""The group ``engine`` without a model: when it is skipped, and how its figures add up."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec

import numpy as np
import pytest

from benchmarks.engine_setup import NEEDED
from benchmarks.groups import engine
from benchmarks.harness import Context


@pytest.mark.parametrize("missing", NEEDED)
def test_is_skipped_with_the_reason_where_a_package_is_missing(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    def find(name: str) -> ModuleSpec | None:
        return None if name == missing else ModuleSpec(name, None)

    said: list[str] = []
    monkeypatch.setattr(importlib.util, "find_spec", find)
    assert engine.run(Context(say=said.append)) == []
    assert len(said) == 1
    assert missing in said[0]
    assert "pip install" in said[0]


def test_decoding_speed_leaves_out_the_first_step() -> None:
    served = engine.Served(
        outputs=[np.arange(6, dtype=np.int32), np.arange(4, dtype=np.int32)],
        steps=[[(2, 1), (4, 3)], [(1, 0), (3, 2)]],
        seconds=5.0,
        first_token_seconds=3.0,
    )
    assert served.tokens == 10
    assert served.speed == 2.0
    assert served.decoding_speed == 3.5


def test_differing_outputs_and_speeds_become_rows() -> None:
    def served(output: list[int], seconds: float) -> engine.Served:
        return engine.Served([np.array(output, np.int32)], [[(1, 0), (2, 1)]], seconds, 1.0)

    rows = engine._speed_rows(
        {"none": served([1, 2, 3], 4), "cold": served([1, 2, 3], 2), "warm": served([1, 2, 4], 2)}
    )
    assert [row.ratio for row in rows[:4]] == [2.0, 2.0, 3.0, 3.0]
    assert [row.met for row in rows] == [True, True, None, None, False]
