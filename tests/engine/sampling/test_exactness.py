"""What is said does not depend on the drafts: to the token for greedy and ``coupled``."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from suffixspec_engine.sampling import RowState, SamplingParams, verify, verify_batch
from suffixspec_index.draft import Draft, Source
from tests.engine.sampling.hash_model import (
    HashModel,
    generate,
    no_draft,
    path_draft,
    tree_draft,
)

PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "plain": {},
    "hot": {"temperature": 1.7},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.1},
    "all truncations": {"temperature": 0.8, "top_k": 9, "top_p": 0.9, "min_p": 0.02},
    "repetition": {"repetition_penalty": 1.3},
    "presence and frequency": {"presence_penalty": 0.7, "frequency_penalty": 0.4},
    "greedy with penalties": {"temperature": 0.0, "frequency_penalty": 1.5},
    "bias": {"logit_bias": {3: 2.5, 4: -100.0}},
    "min_tokens": {"min_tokens": 7},
    "stop token": {"stop_token_ids": (5,)},
    "everything": {
        "temperature": 0.9,
        "top_k": 12,
        "top_p": 0.95,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
        "logit_bias": {2: 1.0},
        "min_tokens": 3,
        "stop_token_ids": (7, 8),
        "logprobs": 3,
    },
}


@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize("seed", [0, 1, -5])
def test_text_is_the_same_with_and_without_random_trees(name: str, seed: int) -> None:
    model = HashModel(salt=name)
    params = SamplingParams(max_tokens=40, **PARAMS[name])
    eos = frozenset({1})
    plain = generate(model, [4, 9, 2], params, no_draft, seed=seed, eos=eos)
    drafted = 0
    for trial in range(4):
        run = generate(
            model,
            [4, 9, 2],
            params,
            partial(tree_draft, model=model),
            seed=seed,
            eos=eos,
            rng=np.random.default_rng(trial),
        )
        assert run.tokens == plain.tokens
        assert run.verdicts[-1].finish_reason == plain.verdicts[-1].finish_reason
        drafted += run.accepted
    assert drafted or len(plain.tokens) < 8


@given(
    seed=st.integers(-(2**70), 2**70),
    trial=st.integers(0, 1000),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_k=st.integers(-1, 30),
    top_p=st.floats(0.05, 1.0),
    min_p=st.floats(0.0, 1.0),
    repetition=st.floats(0.5, 2.0),
    presence=st.floats(-2.0, 2.0),
    frequency=st.floats(-2.0, 2.0),
    min_tokens=st.integers(0, 10),
    max_tokens=st.integers(10, 20),
    stop=st.lists(st.integers(0, 23), max_size=2),
)
@settings(max_examples=60, deadline=None)
def test_any_parameters_any_tree(
    seed: int,
    trial: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    repetition: float,
    presence: float,
    frequency: float,
    min_tokens: int,
    max_tokens: int,
    stop: list[int],
) -> None:
    model = HashModel(salt=str(trial))
    params = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        min_tokens=min_tokens,
        max_tokens=max_tokens,
        stop_token_ids=tuple(stop),
    )
    rng = np.random.default_rng(trial)
    plain = generate(model, [1, 2], params, seed=seed)
    drafted = generate(
        model, [1, 2], params, partial(tree_draft, model=model, nodes=20), seed=seed, rng=rng
    )
    assert drafted.tokens == plain.tokens
    assert len(plain.tokens) <= max_tokens
    assert not set(plain.tokens[:min_tokens]) & set(stop)


def test_coupled_text_is_the_same_with_a_probabilistic_drafter() -> None:
    model, drafter = HashModel(), HashModel(salt="other")
    params = SamplingParams(max_tokens=50)
    plain = generate(model, [1], params, seed=3)
    run = generate(model, [1], params, partial(path_draft, drafter=drafter), seed=3)
    assert run.tokens == plain.tokens


def test_seeds_give_different_texts_and_the_same_seed_the_same() -> None:
    model = HashModel()
    params = SamplingParams(max_tokens=30)
    texts = {tuple(generate(model, [1], params, seed=seed).tokens) for seed in range(20)}
    assert len(texts) == 20
    assert tuple(generate(model, [1], params, seed=7).tokens) in texts


def _batch(
    model: HashModel, rng: np.random.Generator
) -> tuple[list[Draft], list[RowState], list[SamplingParams], list[torch.Tensor]]:
    drafts, states, params, rows = [], [], [], []
    for r, kwargs in enumerate(PARAMS.values()):
        context = rng.integers(0, 24, 6).tolist()
        draft, _ = tree_draft(context, 6, rng, model=model)
        drafts.append(draft)
        states.append(RowState(context[:3], seed=r, output_token_ids=context[3:]))
        params.append(SamplingParams(max_tokens=40, **kwargs))
        rows.append(model.rows(context, draft))
    return drafts, states, params, rows


@pytest.mark.parametrize("method", ["coupled", "standard", "block"])
def test_a_mixed_batch_decides_what_each_request_alone_does(method: Any) -> None:
    # vllm 6038, 10863: seeds ignored or broken in mixed batches; 38467: bias on the wrong rows.
    model = HashModel()
    rng = np.random.default_rng(5)
    for _ in range(10):
        drafts, states, params, rows = _batch(model, rng)
        together = verify_batch(torch.cat(rows), drafts, states, params, method)
        alone = [verify(*each, method) for each in zip(rows, drafts, states, params, strict=True)]
        assert together == alone
        order = rng.permutation(len(drafts)).tolist()
        shuffled = verify_batch(
            torch.cat([rows[i] for i in order]),
            [drafts[i] for i in order],
            [states[i] for i in order],
            [params[i] for i in order],
            method,
        )
        assert shuffled == [alone[i] for i in order]


def test_verify_changes_nothing() -> None:
    model = HashModel()
    drafts, states, params, rows = _batch(model, np.random.default_rng(1))
    logits = torch.cat(rows)
    before = logits.clone()
    outputs = [list(s.output_token_ids) for s in states]
    first = verify_batch(logits, drafts, states, params)
    assert verify_batch(logits, drafts, states, params) == first
    assert torch.equal(logits, before)
    assert [s.output_token_ids for s in states] == outputs


def test_greedy_ties_go_to_the_lowest_id() -> None:
    logits = torch.zeros(2, 8)
    logits[0, [3, 5]] = 1.0
    verdict = verify(
        logits,
        Draft.path([3], source=Source.NGRAM),
        RowState([1]),
        SamplingParams(temperature=0),
    )
    assert verdict.token_ids == (3, 0)
    assert verdict.accepted == (0,)


def test_logits_of_another_precision_are_taken() -> None:
    model = HashModel()
    rows = model.rows([1], Draft.empty()).to(torch.bfloat16)
    verdict = verify(rows, Draft.empty(), RowState([1]), SamplingParams(temperature=0))
    assert verdict.token_ids == (int(rows.float().argmax()),)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_batch_on_a_gpu_decides_the_same() -> None:
    drafts, states, params, rows = _batch(HashModel(), np.random.default_rng(1))
    logits = torch.cat(rows)
    assert verify_batch(logits.cuda(), drafts, states, params) == verify_batch(
        logits, drafts, states, params
    )
