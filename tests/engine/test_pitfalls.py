"""Faults that users reported of other engines, each tried on the whole engine with drafts of every
kind in the batch. The numbers are those of the reports; see tests/README.md."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from suffixspec_engine.attention import PackedRow, PackedStep  # noqa: E402
from suffixspec_engine.cache import SequenceCache  # noqa: E402
from suffixspec_engine.engine import Engine  # noqa: E402
from suffixspec_engine.models import load_model, prepare_model  # noqa: E402
from suffixspec_engine.sampling import SamplingParams  # noqa: E402
from tests.engine.conftest import VOCABULARY, write_tiny_llama  # noqa: E402
from tests.engine.oracles import TreeOracle  # noqa: E402
from tests.engine.said import Ids, random_prompt, said  # noqa: E402

if TYPE_CHECKING:
    from suffixspec_engine.models import TargetModel

LENGTHS = [3, 40, 17, 60, 8, 25, 12, 33]
DRAFTERS: dict[str, dict[str, Any]] = {
    "suffix": {
        "method": "suffix",
        "draft_shape": "tree",
        "suffix_decoding_max_spec_factor": 4.0,
        "suffix_decoding_min_token_prob": 0.0,
    },
    "hybrid": {"method": "hybrid", "suffix_decoding_min_token_prob": 0.0},
}


@pytest.fixture(scope="module")
def prompts() -> list[Ids]:
    return [random_prompt(seed, length) for seed, length in enumerate(LENGTHS)]


def every_parameter() -> list[SamplingParams]:
    """A batch in which each request asks for something else."""
    changes: list[dict[str, Any]] = [
        {"repetition_penalty": 1.4, "frequency_penalty": 0.5},
        {"presence_penalty": 1.5, "temperature": 0.0},
        {"min_p": 0.2},
        {"logit_bias": {7: 30.0}, "temperature": 0.0},
        {"logit_bias": {7: -100.0, 9: 4.0}, "top_k": 12},
        {"top_p": 0.5, "min_tokens": 15},
        {"temperature": 0.0},
        {"temperature": 1.3},
    ]
    return [
        SamplingParams(**({"temperature": 0.9, "max_tokens": 20, "seed": i, "logprobs": 3} | one))
        for i, one in enumerate(changes)
    ]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_parameters_and_seeds_hold_for_their_own_request(
    target: TargetModel, prompts: list[Ids], drafter: str
) -> None:
    # vllm 6038, 10863, 18902, 38467, 42744, 42802; sglang 28180, 33643.
    params = every_parameter()
    with Engine(target) as plain:
        alone = [plain.generate([p], one)[0] for p, one in zip(prompts, params, strict=True)]
        bare = plain.generate(prompts, [SamplingParams(temperature=0.0, max_tokens=20)] * 8)
    changed = sum(
        one.token_ids.tolist() != other.token_ids.tolist()
        for one, other in zip(alone, bare, strict=True)
    )
    assert changed >= 7  # none of the parameters is ignored
    assert alone[3].token_ids.tolist() == [7] * 20
    assert 7 not in alone[4].token_ids
    with Engine(target, speculative=DRAFTERS[drafter]) as engine:
        for _ in range(2):
            outputs = engine.generate(prompts, params)
            for output, expected in zip(outputs, alone, strict=True):
                assert output.token_ids.tolist() == expected.token_ids.tolist()
        assert engine.metrics.counts.accepted > 20


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_logprobs_are_the_models_own_inside_blocks(
    target: TargetModel, prompts: list[Ids], drafter: str
) -> None:
    # vllm 34497, 17876: wrong, or 0.0.
    params = every_parameter()
    with Engine(target, speculative=DRAFTERS[drafter]) as engine:
        engine.generate(prompts, params)
        outputs = engine.generate(prompts, params)
        assert engine.metrics.counts.accepted > 20
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.logprobs is not None
        assert len(output.logprobs) == len(output.token_ids)
        context = [*prompt.tolist(), *output.token_ids.tolist()]
        with torch.inference_mode():
            cache = SequenceCache(target.shapes, target.dtype, target.device, len(context))
            cache.reserve(len(context))
            step = PackedStep([PackedRow(cache, 0, len(context), 0)])
            rows = range(len(prompt) - 1, len(context) - 1)
            raw = target.run(step, context, list(rows)).log_softmax(-1)
        for position, entry in enumerate(output.logprobs):
            assert entry.token_id == output.token_ids[position]
            assert entry.logprob == pytest.approx(float(raw[position, entry.token_id]), abs=1e-3)
            assert entry.logprob < 0
            assert math.isfinite(entry.logprob)
            assert [one for one, _ in entry.top] == raw[position].topk(3).indices.tolist()


def test_no_end_of_sequence_is_no_error(tmp_path: Path) -> None:
    # transformers 46790: a TypeError.
    folder = write_tiny_llama(tmp_path, eos_token_id=None)
    target = load_model(folder)
    assert target.eos_token_ids == frozenset()
    with Engine(target, speculative={"method": "suffix"}) as engine:
        output = engine.generate([[1, 2, 3]], SamplingParams(temperature=0.0, max_tokens=30))[0]
        assert (len(output.token_ids), output.finish_reason) == (30, "length")


def test_drafts_never_pass_the_models_length(target: TargetModel, reference: Any) -> None:
    # Arctic 60: the engine crashed. transformers 46993, 47195: more than max_new_tokens.
    short = prepare_model(copy.deepcopy(reference), target.tokenizer, max_model_len=40)
    prompt = random_prompt(2, 25)
    truth = said(reference, prompt, 30, ignore_eos=True)
    known = {tuple(prompt.tolist()): truth}
    with Engine(short, proposer=TreeOracle(known, VOCABULARY, honesty=1.0)) as engine:
        for max_tokens in (1, 2, 14, 15, 16, None):
            params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
            output = engine.generate([prompt], params)[0]
            expected = min(max_tokens or 15, 15)
            assert output.token_ids.tolist() == truth[:expected]
            assert output.finish_reason == "length"


def test_a_session_is_not_held_back_by_what_it_rejected(
    target: TargetModel, reference: Any
) -> None:
    # TGI 2711, vllm 39273: wrong keys and values after a rejection, or with prefix caching.
    prompt = random_prompt(4, 50).tolist()
    with Engine(target, speculative=DRAFTERS["suffix"]) as engine:
        for _ in range(4):
            output = engine.generate(
                [prompt], SamplingParams(temperature=0.0, max_tokens=12), session_ids=["s"]
            )[0]
            assert output.token_ids.tolist() == said(reference, prompt, 12)
            prompt = [*prompt, *output.token_ids.tolist()[:7], 5, 6]
        assert engine.metrics.counts.accepted < engine.metrics.counts.drafted
        assert engine.metrics.cached_tokens > 100
