"""The plug-in inside a real vLLM, where one is installed (``benchmarks/install_vllm.sh``)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from suffixspec_engine.models import _converted, smollm2_gguf

ROOT = Path(__file__).parents[3]
PYTHON = Path(os.environ.get("SUFFIXSPEC_VLLM_PYTHON", ROOT / ".venv-vllm" / "bin" / "python"))

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(), reason="no vLLM: benchmarks/install_vllm.sh makes .venv-vllm"
)


def run(*arguments: str) -> list[dict[str, Any]]:
    packages = [str(ROOT / name) for name in ("index", "engine")]
    done = subprocess.run(
        [
            str(PYTHON),
            str(ROOT / "examples" / "vllm_plugin.py"),
            _converted(smollm2_gguf(), torch.float32, None),
            *arguments,
        ],
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(packages),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "HF_HUB_OFFLINE": "1",
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    rounds: list[dict[str, Any]] = json.loads(done.stdout.strip().splitlines()[-1])["rounds"]
    return rounds


@pytest.mark.parametrize("settings", [{}, {"identify": False, "speculative": {"dynamic": False}}])
def test_says_what_vllm_says_alone_in_fewer_steps(settings: dict[str, Any]) -> None:
    plain = run("--without")
    drafted = run("--settings", json.dumps(settings))
    assert [r["token_ids"] for r in drafted] == [r["token_ids"] for r in plain]
    first, both = (r["counters"]["num_accepted_tokens"] for r in drafted)
    tokens = sum(len(ids) for ids in drafted[1]["token_ids"])
    assert both - first > 0.5 * tokens  # the second time, most of it is drafted


def test_what_one_replica_said_another_drafts(tmp_path: Path) -> None:
    settings = json.dumps({"log": f"journal:{tmp_path / 'log'}"})
    alone = run("--settings", settings)[0]
    after = run("--settings", settings)[0]
    assert after["token_ids"] == alone["token_ids"]
    assert after["counters"]["num_accepted_tokens"] > alone["counters"]["num_accepted_tokens"]
