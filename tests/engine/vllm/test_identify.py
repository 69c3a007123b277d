"""Facts from a model runner that looks like vLLM's, or does not."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from suffixspec_engine.vllm.identify import BatchFacts, install, read_facts


class Drafter:
    def __init__(self) -> None:
        self.seen: list[BatchFacts | None] = []

    def identify(self, facts: BatchFacts | None) -> None:
        self.seen.append(facts)


def runner_module(monkeypatch: pytest.MonkeyPatch, runner: type) -> None:
    module = ModuleType("vllm.v1.worker.gpu_model_runner")
    module.GPUModelRunner = runner  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)


def known_runner() -> type:
    class GPUModelRunner:
        def __init__(self) -> None:
            self.drafter: Any = Drafter()
            self.input_batch = SimpleNamespace(
                req_ids=["a", "b"], num_prompt_tokens=np.array([3, 4, 0])
            )
            self.requests = {
                "a": SimpleNamespace(lora_request=None),
                "b": SimpleNamespace(lora_request=SimpleNamespace(lora_name="tuned")),
            }

        def propose_draft_token_ids(self, scheduler_output: Any, sampled: Any) -> Any:
            return (scheduler_output, sampled)

    return GPUModelRunner


STEP = SimpleNamespace(finished_req_ids={"z"}, total_num_scheduled_tokens=7)


def test_the_drafter_learns_ids_and_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    made = known_runner()
    runner_module(monkeypatch, made)
    assert install(Drafter)
    assert install(Drafter)  # twice wraps once
    runner = made()
    assert runner.propose_draft_token_ids(STEP, 5) == (STEP, 5)
    assert runner.drafter.seen == [BatchFacts(("a", "b"), (3, 4), ("", "tuned"), frozenset("z"), 7)]


def test_other_drafters_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made = known_runner()
    runner_module(monkeypatch, made)
    install(Drafter)
    runner = made()
    runner.drafter = object()
    assert runner.propose_draft_token_ids(STEP, 5) == (STEP, 5)


def test_an_unknown_vllm_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm.v1.worker.gpu_model_runner", None)
    assert not install(Drafter)

    class GPUModelRunner:
        def propose_draft_token_ids(self, something: Any) -> None: ...

    runner_module(monkeypatch, GPUModelRunner)
    before = GPUModelRunner.propose_draft_token_ids
    assert not install(Drafter)
    assert GPUModelRunner.propose_draft_token_ids is before
    assert read_facts(GPUModelRunner(), STEP) is None
