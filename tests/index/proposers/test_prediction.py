"""Predicted outputs: following, losing and finding the place."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suffixspec_index.draft import Draft, Source
from suffixspec_index.errors import InputError, TokenError, UnknownRequestError
from suffixspec_index.proposers.prediction import PredictionProposer
from suffixspec_index.speculative_config import SpeculativeConfig


def make(tokens: int = 16, forbidden: tuple[int, ...] = (), **extra: int) -> PredictionProposer:
    config = SpeculativeConfig(
        method="prediction",
        num_speculative_tokens=tokens,
        **extra,  # type: ignore[arg-type]
    )
    return PredictionProposer(config, vocab_size=5000, forbidden=forbidden)


def decode(proposer: PredictionProposer, prediction: list[int], output: list[int]) -> list[int]:
    """Decode ``output`` with drafts and return how many tokens each step gave."""
    request = proposer.begin("s", [1, 2, 3], prediction=prediction)
    done, steps = 0, []
    while done < len(output):
        draft = proposer.propose(request)
        draft.check_integrity()
        gained = min(len(draft.accepted_by(output[done:])) + 1, len(output) - done)
        proposer.advance(request, output[done : done + gained])
        done += gained
        steps.append(gained)
    proposer.finish(request)
    return steps


def code_like(length: int, seed: int = 0) -> list[int]:
    """Tokens as in a source file: a few very frequent ones among many rare ones."""
    rng = np.random.default_rng(seed)
    frequent = rng.random(length) < 0.4
    tokens: list[int] = np.where(
        frequent, rng.integers(0, 6, length), rng.integers(100, 400, length)
    ).tolist()
    return tokens


def test_an_exact_prediction_is_copied_whole() -> None:
    text = code_like(340)
    assert decode(make(16), text, text) == [17] * 20


EDITS: dict[str, Callable[[list[int]], list[int]]] = {
    "one token replaced": lambda t: [*t[:150], 4001, *t[151:]],
    "three tokens replaced": lambda t: [*t[:150], 4001, 4002, 4003, *t[153:]],
    "one token inserted": lambda t: [*t[:150], 4001, *t[150:]],
    "twenty tokens inserted": lambda t: [*t[:150], *range(4000, 4020), *t[150:]],
    "one token deleted": lambda t: [*t[:150], *t[151:]],
    "ten tokens deleted": lambda t: [*t[:150], *t[160:]],
    "a hundred tokens deleted": lambda t: [*t[:150], *t[250:]],
    "ten replaced by three": lambda t: [*t[:150], 4001, 4002, 4003, *t[160:]],
    "three replaced by ten": lambda t: [*t[:150], *range(4000, 4010), *t[153:]],
    "the beginning deleted": lambda t: t[50:],
    "the beginning inserted": lambda t: [4001, 4002, *t],
    "a block repeated": lambda t: [*t[:200], *t[120:]],
    "two blocks swapped": lambda t: [*t[:100], *t[200:300], *t[100:200], *t[300:]],
    "a token renamed everywhere": lambda t: [4001 if x == 3 else x for x in t],
}
COST = {  # most steps above those of an exact prediction; the new tokens themselves included
    "one token replaced": 2,
    "three tokens replaced": 4,
    "one token inserted": 3,
    "twenty tokens inserted": 21,
    "one token deleted": 2,
    "ten tokens deleted": 3,
    "a hundred tokens deleted": 3,
    "ten replaced by three": 5,
    "three replaced by ten": 12,
    "the beginning deleted": 3,
    "the beginning inserted": 4,
    "a block repeated": 4,
    "two blocks swapped": 8,
    "a token renamed everywhere": 37,
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("seed", range(5))
def test_finds_the_place_again(edit: str, seed: int) -> None:
    text = code_like(400, seed)
    output = EDITS[edit](text)
    steps = decode(make(16), text, output)
    assert sum(steps) == len(output)
    assert len(steps) <= len(output) / 17 + COST[edit]


@given(
    st.lists(st.integers(0, 5), max_size=40),
    st.lists(st.lists(st.integers(0, 6), max_size=5), max_size=10),
    st.integers(1, 8),
    st.integers(0, 40),
    st.sets(st.integers(0, 5), max_size=2),
)
@settings(deadline=None, max_examples=300)
def test_drafts_are_pieces_of_the_prediction(
    prediction: list[int],
    steps: list[list[int]],
    tokens: int,
    max_tokens: int,
    forbidden: set[int],
) -> None:
    proposer = make(tokens, tuple(forbidden))
    request = proposer.begin("s", [1], max_tokens=max_tokens, prediction=prediction)
    produced = 0
    for step in [[], *steps]:
        proposer.advance(request, step)
        produced += len(step)
        draft = proposer.propose(request)
        draft.check_integrity()
        ids = draft.token_ids.tolist()
        assert draft.is_path
        assert len(ids) <= max(0, min(tokens, max_tokens - produced))
        assert not forbidden & set(ids)
        assert any(prediction[i : i + len(ids)] == ids for i in range(len(prediction) + 1))
        assert proposer.propose(request, 1).token_ids.tolist() == ids[:1]


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_a_batch_equals_single_calls(data: st.DataObject) -> None:
    tokens = st.lists(st.integers(0, 3), max_size=20)
    proposer, single = make(6), make(6)
    predictions = data.draw(st.lists(tokens, max_size=12))
    requests = [proposer.begin("s", [1], prediction=p) for p in predictions]
    singles = [single.begin("s", [1], prediction=p) for p in predictions]
    for _ in range(3):
        gained = [data.draw(tokens) for _ in predictions]
        offsets = np.cumsum([0] + [len(g) for g in gained])
        proposer.advance_batch(requests, [t for g in gained for t in g], offsets)
        for request, ids in zip(singles, gained, strict=True):
            single.advance(request, ids)
        limits = [data.draw(st.integers(0, 8)) for _ in predictions]
        batch = proposer.propose_batch(requests, limits)
        for row, draft in enumerate(batch):
            expected = single.propose(singles[row], limits[row])
            draft.check_integrity()
            assert draft.token_ids.tolist() == expected.token_ids.tolist()
            assert draft.probs.tolist() == expected.probs.tolist()
            assert draft.match_len == expected.match_len


def test_without_a_prediction_there_is_no_draft() -> None:
    proposer = make()
    nothing: list[int] = []
    for prediction in (None, nothing):
        request = proposer.begin("s", [1, 2], prediction=prediction)
        proposer.advance(request, [1, 2, 3])
        assert proposer.propose(request) is Draft.empty()


def test_nothing_is_drafted_past_the_end() -> None:
    proposer = make()
    request = proposer.begin("s", [1], prediction=[10, 11, 12])
    assert proposer.propose(request).token_ids.tolist() == [10, 11, 12]
    proposer.advance(request, [10, 11, 12])
    assert len(proposer.propose(request)) == 0
    proposer.advance(request, [13])
    assert len(proposer.propose(request)) == 0


def test_a_huge_draft_limit_costs_no_memory() -> None:
    proposer = make(2**31 - 1)
    request = proposer.begin("s", [1], prediction=[10, 11, 12])
    assert proposer.propose(request).token_ids.tolist() == [10, 11, 12]
    assert proposer.propose_batch([request])[0].token_ids.tolist() == [10, 11, 12]


def test_the_model_length_bounds_the_draft() -> None:
    proposer = make(max_model_len=5)
    request = proposer.begin("s", [1, 2, 3], prediction=[10, 11, 12])
    assert proposer.propose(request).token_ids.tolist() == [10, 11]
    request = proposer.begin("s", [1] * 9, prediction=[10, 11, 12])
    assert len(proposer.propose(request)) == 0


def test_a_draft_says_what_it_rests_on() -> None:
    proposer = make()
    request = proposer.begin("s", [1], prediction=list(range(10, 40)))
    draft = proposer.propose(request)
    assert draft.source is Source.PREDICTION
    assert draft.match_len == 0
    proposer.advance(request, list(range(10, 16)))
    draft = proposer.propose(request)
    assert draft.match_len == 6
    assert 0.5 < draft.probs[0] < 1
    proposer.advance(request, [4000])
    guess = proposer.propose(request)
    assert guess.match_len == 0
    assert guess.probs[0] < 0.5
    assert guess.token_ids.tolist() == [17, 18, 19, 20]


def test_a_long_unpredicted_stretch_stops_drafting() -> None:
    proposer = make()
    request = proposer.begin("s", [1], prediction=list(range(10, 40)))
    proposer.advance(request, [10, 11, 12, 13, *range(4000, 4020)])
    assert len(proposer.propose(request)) == 0
    proposer.advance(request, [14])
    assert proposer.propose(request).token_ids.tolist() == [15, 16, 17, 18]


def test_requests_are_many_and_memory_goes_back() -> None:
    proposer = make()
    text = code_like(200)
    requests = [proposer.begin("s", [1], prediction=text[i:]) for i in range(40)]
    for i, request in enumerate(requests):
        assert proposer.propose(request, 3).token_ids.tolist() == text[i : i + 3]
    assert proposer.memory_bytes > 0
    for request in requests:
        proposer.finish(request)
    proposer.end_session("s")
    assert proposer.memory_bytes == 0


def test_the_caller_may_reuse_its_array() -> None:
    proposer = make()
    text = np.arange(10, 20, dtype=np.int32)
    request = proposer.begin("s", [1], prediction=text)
    text[:] = 0
    assert proposer.propose(request, 2).token_ids.tolist() == [10, 11]


def test_bad_input() -> None:
    proposer = make()
    with pytest.raises(TokenError, match="prediction: position 1 is 5000"):
        proposer.begin("s", [1], prediction=[1, 5000])
    with pytest.raises(TokenError, match="prompt"):
        proposer.begin("s", [-1], prediction=[1])
    with pytest.raises(InputError, match="max_tokens"):
        proposer.begin("s", [1], max_tokens=-1)
    with pytest.raises(UnknownRequestError):
        proposer.propose(1)
    request = proposer.begin("s", [1], prediction=[1, 2])
    with pytest.raises(TokenError, match="token_ids"):
        proposer.advance(request, [2.0])
    assert proposer.propose(request).token_ids.tolist() == [1, 2]
