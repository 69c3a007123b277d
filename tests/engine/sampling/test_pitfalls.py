"""Faults that users reported of other engines in length, stopping and sampling."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from suffixspec_engine.sampling import (
    IncrementalDetokenizer,
    Method,
    RowState,
    SamplingParams,
    Verdict,
    verify,
    verify_batch,
)
from suffixspec_index.draft import Draft, Source
from suffixspec_index.errors import ConfigError, InputError
from tests.engine.sampling.hash_model import HashModel, generate, tree_draft

V = 16
METHODS: list[Method] = ["coupled", "standard", "block"]


def saying(tokens: list[int], *, vocab: int = V) -> torch.Tensor:
    """Logits of a model that says ``tokens``, one row each, with all but certainty."""
    logits = torch.full((len(tokens), vocab), -30.0)
    logits[torch.arange(len(tokens)), tokens] = 30.0
    return logits


def step(
    tokens: list[int], state: RowState | None = None, method: Method = "coupled", **kwargs: Any
) -> Verdict:
    """A step whose draft, all but the last of ``tokens``, is wholly right."""
    draft = Draft.path(tokens[:-1], source=Source.SESSION)
    params = SamplingParams(**{"max_tokens": 100, **kwargs})
    return verify(saying(tokens), draft, state or RowState([0]), params, method)


def letters(ids: list[int]) -> str:
    """Token 1 is "a", 2 "b", ...; from 10 on two letters, "jj"."""
    return "".join(chr(96 + i) * (1 if i < 10 else 2) for i in ids)


def lettered(**kwargs: Any) -> RowState:
    return RowState([0], detokenizer=IncrementalDetokenizer(letters), **kwargs)


# Length and stopping


@pytest.mark.parametrize("method", METHODS)
def test_never_more_than_max_tokens(method: Method) -> None:
    # transformers 46993, 47195: prompt lookup returned more than asked for.
    for limit in (1, 2, 3, 4):
        verdict = step([3, 4, 5, 6], method=method, max_tokens=limit)
        assert verdict.token_ids == (3, 4, 5, 6)[:limit]
        assert verdict.finish_reason == "length"
        assert len(verdict.accepted) == min(limit, 3)


def test_never_past_the_models_length() -> None:
    # Arctic 60: drafts past max_model_len crashed the engine.
    state = RowState([0] * 10, max_total_tokens=12)
    assert state.draft_limit(SamplingParams(max_tokens=None)) == 1
    verdict = step([3, 4, 5, 6], state, max_tokens=None)
    assert verdict.token_ids == (3, 4)
    assert verdict.finish_reason == "length"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_after_the_end_of_sequence_in_mid_block(method: Method, temperature: float) -> None:
    # transformers 47912, 47931, 48981.
    state = RowState([0], eos_token_ids=frozenset({5}))
    verdict = step([3, 5, 6, 7], state, method, temperature=temperature)
    assert verdict.token_ids == (3, 5)
    assert verdict.accepted == (0, 1)
    assert verdict.num_visible == 1
    assert (verdict.finish_reason, verdict.stop_reason) == ("stop", None)
    verdict = step([3, 5, 6, 7], state, method, temperature=temperature, ignore_eos=True)
    assert verdict.token_ids == (3, 5, 6, 7)


def test_a_stop_token_of_the_request_is_named() -> None:
    verdict = step([3, 5, 6], stop_token_ids=(6, 5))
    assert (verdict.token_ids, verdict.stop_reason, verdict.num_visible) == ((3, 5), 5, 1)
    verdict = step([3, 5, 6], stop_token_ids=(5,), include_stop_str_in_output=True)
    assert verdict.num_visible == 2


@pytest.mark.parametrize("method", METHODS)
def test_a_stop_string_inside_a_block_ends_it(method: Method) -> None:
    # transformers 48039.
    state = lettered()
    verdict = step([1, 2, 3, 4, 5], state, method, stop=("bc",))
    assert verdict.token_ids == (1, 2, 3)
    assert (verdict.finish_reason, verdict.stop_reason) == ("stop", "bc")
    assert state.commit(verdict) == "a"
    assert state.text == "a"


def test_a_stop_string_across_steps_and_inside_a_token() -> None:
    state = lettered()
    assert state.commit(step([1, 2], state, stop=("bcjj",))) == "ab"
    verdict = step([3, 10, 4], state, stop=("bcjj",))
    assert verdict.token_ids == (3, 10)
    assert verdict.text_end == 1
    state.commit(verdict)
    assert state.text == "a"

    state = lettered()
    verdict = step([1, 11, 4], state, stop=("ak",), include_stop_str_in_output=True)
    state.commit(verdict)
    assert (verdict.token_ids, state.text) == ((1, 11), "ak")


def test_the_stop_string_that_ends_first_wins() -> None:
    verdict = step([1, 2, 3, 4], lettered(), stop=("abcd", "bc", "c"))
    assert (verdict.token_ids, verdict.stop_reason, verdict.text_end) == ((1, 2, 3), "bc", 1)


def test_the_length_does_not_hide_an_earlier_stop() -> None:
    # sglang 31599: the cap hid the stop, and tokens leaked.
    state = RowState([0], eos_token_ids=frozenset({5}))
    for limit in (2, 3, 4):
        verdict = step([3, 5, 6, 7], state, max_tokens=limit)
        assert verdict.token_ids == (3, 5)
        assert verdict.finish_reason == "stop"
    assert step([3, 5, 6, 7], state, max_tokens=1).finish_reason == "length"
    verdict = step([1, 2, 3, 4], lettered(), max_tokens=3, stop=("c",))
    assert verdict.finish_reason == "stop"


def test_no_end_of_sequence_is_fine() -> None:
    # transformers 46790: a TypeError.
    assert step([3, 5, 6], RowState([0], eos_token_ids=frozenset())).finish_reason is None


def test_min_tokens_holds_back_every_stop_inside_a_block() -> None:
    logits = saying([3, 5, 5, 5])
    logits[:, 9] = 20.0
    draft = Draft.path([3, 5, 5], source=Source.SESSION)
    state = RowState([0], eos_token_ids=frozenset({5}))
    verdict = verify(logits, draft, state, SamplingParams(temperature=0, min_tokens=2))
    assert verdict.token_ids == (3, 9)  # the draft's 5 is not allowed yet
    state.commit(verdict)
    verdict = verify(logits[1:2], Draft.empty(), state, SamplingParams(temperature=0, min_tokens=2))
    assert verdict.token_ids == (5,)
    assert verdict.finish_reason == "stop"
    verdict = step([1, 2, 1, 2], lettered(), min_tokens=2, stop=("ab",))
    assert verdict.token_ids == (1, 2, 1, 2)


def test_stop_strings_without_a_tokenizer_are_refused() -> None:
    with pytest.raises(ConfigError, match="detokenizer"):
        step([1, 2], stop=("a",))


# Sampling


def test_penalties_see_each_accepted_token() -> None:
    # sglang 33643: one token per step was counted.
    logits = torch.zeros(4, V)
    logits[:, 3], logits[:, 4] = 1.0, 0.35
    draft = Draft.path([3, 3, 3], source=Source.SESSION)
    params = SamplingParams(temperature=0, frequency_penalty=0.3)
    assert verify(logits, draft, RowState([0]), params).token_ids == (3, 3, 3, 4)
    said = RowState([0], output_token_ids=[3, 3, 3])
    assert verify(logits[:1], Draft.empty(), said, params).token_ids == (4,)


def test_commit_keeps_the_counts() -> None:
    model = HashModel()
    params = SamplingParams(max_tokens=60, frequency_penalty=1.0, repetition_penalty=1.2)
    state = RowState([1, 2])
    rng = np.random.default_rng(0)
    for _ in range(10):
        context = [1, 2, *state.output_token_ids]
        draft, _ = tree_draft(context, state.draft_limit(params), rng, model=model)
        verdict = verify(model.rows(context, draft), draft, state, params)
        fresh = RowState([1, 2], output_token_ids=list(state.output_token_ids))
        assert verify(model.rows(context, draft), draft, fresh, params) == verdict
        state.commit(verdict)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"repetition_penalty": 1.9},
        {"presence_penalty": 2.0},
        {"frequency_penalty": 2.0},
        {"min_p": 0.9},
        {"logit_bias": {1: 20.0}},
        {"top_k": 1},
        {"top_p": 0.1},
        {"temperature": 0.01},
        {"min_tokens": 40, "stop_token_ids": (1, 2, 3, 4, 5, 6, 7, 8)},
    ],
)
def test_no_parameter_is_silently_ignored(kwargs: dict[str, Any]) -> None:
    # sglang 28180; vllm 18902, 42744, 42802.
    model = HashModel(spread=1.0)
    drafter = partial(tree_draft, model=model)
    base = generate(model, [1], SamplingParams(max_tokens=40), drafter)
    other = generate(model, [1], SamplingParams(**{"max_tokens": 40, **kwargs}), drafter)
    assert other.tokens != base.tokens


def test_logprobs_inside_a_block_are_those_without_a_draft() -> None:
    # vllm 34497, 17876: wrong, or 0.0.
    model = HashModel()
    params = SamplingParams(
        max_tokens=30, logprobs=3, temperature=0.7, top_k=6, repetition_penalty=1.3
    )
    plain = generate(model, [1, 2], params)
    drafted = generate(model, [1, 2], params, partial(tree_draft, model=model))
    assert drafted.accepted > 5
    flat = [p for v in drafted.verdicts for p in v.logprobs or ()]
    assert flat == [p for v in plain.verdicts for p in v.logprobs or ()]
    assert [p.token_id for p in flat] == plain.tokens
    for i, entry in enumerate(flat):
        row = torch.from_numpy(model.row([1, 2, *plain.tokens[:i]])).double()
        raw = row.log_softmax(-1)
        assert entry.logprob == pytest.approx(float(raw[entry.token_id]), abs=1e-6)
        assert entry.rank == 1 + int((row > row[entry.token_id]).sum())
        assert [t for t, _ in entry.top] == row.topk(3).indices.tolist()


def test_logprobs_of_none_and_of_all() -> None:
    assert step([3, 4]).logprobs is None
    only = step([3, 4], logprobs=0).logprobs
    assert only is not None
    assert [p.top for p in only] == [(), ()]
    whole = step([3, 4], logprobs=-1).logprobs
    assert whole is not None
    assert [len(p.top) for p in whole] == [V, V]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_end_only_their_own_request(
    bad: float, temperature: float
) -> None:
    good, broken = saying([3, 4]), saying([3, 4])
    broken[0, 7] = bad
    draft = Draft.path([3], source=Source.SESSION)
    params = SamplingParams(temperature=temperature)
    with pytest.raises(InputError, match="not a number"):
        verify(broken, draft, RowState([0]), params)
    verdicts = verify_batch(
        torch.cat([good, broken, good]), [draft] * 3, [RowState([0])] * 3, [params] * 3
    )
    assert [v.finish_reason for v in verdicts] == [None, "error", None]
    assert verdicts[1].token_ids == ()
    assert verdicts[0] == verdicts[2] == verify(good, draft, RowState([0]), params)


@pytest.mark.parametrize("token", [-1, V])
def test_sentinels_in_a_draft_are_refused(token: int) -> None:
    # sglang 27512, vllm 53977, llama.cpp 28158.
    draft = Draft.path([token], source=Source.SESSION)
    with pytest.raises(InputError, match="vocabulary"):
        verify(saying([3, 4]), draft, RowState([0]), SamplingParams())


def test_shapes_that_do_not_fit_are_refused() -> None:
    draft = Draft.path([3], source=Source.SESSION)
    with pytest.raises(InputError, match="logits"):
        verify(saying([3]), draft, RowState([0]), SamplingParams())
    with pytest.raises(InputError, match="draft_probs"):
        verify(
            saying([3, 4]), draft, RowState([0]), SamplingParams(), "standard", torch.zeros(2, V)
        )
    with pytest.raises(InputError, match="logits"):
        verify_batch(saying([3]), [draft], [RowState([0])], [SamplingParams()])
    with pytest.raises(InputError, match="drafts, states, params"):
        verify_batch(saying([3]), [draft], [], [SamplingParams()])
    with pytest.raises(ConfigError, match="rejection_sample_method"):
        verify(saying([3, 4]), draft, RowState([0]), SamplingParams(), "blok")  # type: ignore[arg-type]


# Text


def test_characters_that_span_tokens_come_out_whole() -> None:
    data = "né 🙂 ok".encode()

    def decode(ids: list[int]) -> str:
        return bytes(ids).decode(errors="replace")

    detokenizer = IncrementalDetokenizer(decode)
    pieces = [detokenizer.feed(b) for b in data]
    assert "".join(pieces) == "né 🙂 ok"
    assert not any("\ufffd" in piece for piece in pieces)
    fork = detokenizer.fork()
    fork.feed(65)
    assert detokenizer.feed(66) == "B"
