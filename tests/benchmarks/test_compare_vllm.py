"""The comparison with vLLM, without vLLM: its protocol against a stand-in process, its rows."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import compare_vllm
from benchmarks.compare_vllm import Comparison, Served, VllmSide, rows
from benchmarks.groups import vllm
from benchmarks.harness import Context
from suffixspec_traces.model import TokenSession, Turn

STAND_IN = """
import json, sys
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if "teach" in asked:
        answer = {"taught": len(asked["teach"])}
    elif not asked["serve"]:
        sys.exit("no more")
    else:
        counts = {"drafts": 2, "draft_tokens": 8, "accepted_tokens": 6}
        answer = {"outputs": [p[:n] for p, n in zip(asked["serve"], asked["max_tokens"])],
                  "first": [0.5] * len(asked["serve"]), "seconds": 2.0, "counts": counts}
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VllmSide:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "vllm_worker.py").write_text(STAND_IN)
    monkeypatch.setattr(compare_vllm, "ROOT", tmp_path)
    monkeypatch.setattr(compare_vllm, "python", lambda: Path(sys.executable))
    return VllmSide("folder", dtype="float32")


def test_questions_and_answers(side: VllmSide) -> None:
    served = Served()
    for _ in range(2):
        side.serve([np.arange(9, dtype=np.int32), np.arange(5, dtype=np.int32)], [3, 4], served)
    assert served.outputs == [[0, 1, 2], [0, 1, 2, 3]] * 2
    assert served.tokens == 14
    assert served.speed == 14 / 4.0
    assert served.decoding_speed == (14 - 4) / (4.0 - 2.0)
    assert served.acceptance_length == 1 + 12 / 4
    ids = np.arange(4, dtype=np.int32)
    side.teach([TokenSession("s", (Turn(ids, ids), Turn(ids, ids)))])
    side.close()


def test_a_process_that_ends_says_where_to_look(side: VllmSide) -> None:
    with pytest.raises(RuntimeError, match=r"vllm\.log"):
        side.serve([], [], Served())
    side.close()


def test_rows_judge_speed_and_texts() -> None:
    def served(outputs: list[list[int]], seconds: float) -> Served:
        return Served(outputs, seconds, 0.5, drafts=1, drafted=4, accepted=2)

    phase = {
        ("ours", "suffix"): served([[1, 2, 3]], 1.0),
        ("vllm", "suffix"): served([[1, 2, 4]], 2.0),
    }
    found = {
        row.name.partition(", ")[2]: row for row in rows(Comparison({"cold": phase}), "float32")
    }
    head = "one request at a time, cold index"
    assert found[f"{head}, suffix"].ratio == 2.0
    assert found[f"{head}, suffix"].met is True
    assert found[f"{head}, of 1 outputs, those that differ from vLLM's"].met is False
    (row,) = [r for r in rows(Comparison({"cold": phase}), "bfloat16") if "differ" in r.name]
    assert row.met is None


def test_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compare_vllm, "VENV", tmp_path)
    said: list[str] = []
    assert vllm.run(Context(say=said.append)) == []
    assert "install_vllm.sh" in said[0]
