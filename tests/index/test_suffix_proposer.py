"""The suffix proposer keeps the contract of proposers and checks what it is given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from suffixspec_index.draft import Source
from suffixspec_index.errors import ConfigError, InputError, TokenError, UnknownRequestError
from suffixspec_index.index import SuffixIndex
from suffixspec_index.index_config import IndexConfig
from suffixspec_index.proposers import create_proposer
from suffixspec_index.proposers.suffix import SuffixProposer
from suffixspec_index.speculative_config import SpeculativeConfig


def new_proposer(
    vocab_size: int | None = None, forbidden: Any = (), **config: Any
) -> SuffixProposer:
    settings = {"suffix_decoding_min_token_prob": 0.0} | config
    return SuffixProposer(
        SpeculativeConfig(method="suffix", **settings), vocab_size=vocab_size, forbidden=forbidden
    )


def test_is_made_by_the_registry() -> None:
    config = SpeculativeConfig(
        method="suffix",
        num_speculative_tokens=7,
        suffix_decoding_max_tree_depth=10,
        suffix_decoding_max_spec_factor=2.0,
        suffix_decoding_min_token_prob=0.2,
        suffix_decoding_max_cached_requests=5,
    )
    proposer = create_proposer(config, vocab_size=100, forbidden_token_ids=[3])
    assert isinstance(proposer, SuffixProposer)
    settings = proposer.index.config
    assert (settings.depth, settings.session_depth) == (10, 10)
    assert settings.num_speculative_tokens == 7
    assert settings.max_spec_factor == 2.0
    assert settings.min_token_prob == 0.2
    assert settings.max_cached_requests == 5
    assert proposer.index.vocab_size == 100


def test_life_of_a_request() -> None:
    proposer = new_proposer()
    request = proposer.begin("s", [1, 2, 3, 4, 1, 2])
    draft = proposer.propose(request)
    draft.check_integrity()
    assert draft.token_ids[:2].tolist() == [3, 4]
    assert draft.source is Source.SESSION
    assert draft.match_len == 2
    proposer.advance(request, [3, 4])
    proposer.finish(request)
    request = proposer.begin("s", [1, 2, 3, 4, 1, 2, 3, 4, 9])
    assert proposer.index.context(request).tolist() == [1, 2, 3, 4, 1, 2, 3, 4, 9]
    proposer.finish(request)
    proposer.end_session("s")
    proposer.end_session("s")
    assert proposer.index.statistics().sessions == 0


def test_sources_are_told_apart() -> None:
    proposer = new_proposer()
    first = proposer.begin("a", [1])
    proposer.advance(first, [5, 6, 7, 8])
    proposer.finish(first)
    draft = proposer.propose(proposer.begin("b", [5, 6]))
    assert draft.token_ids[:2].tolist() == [7, 8]
    assert draft.source is Source.GLOBAL


@pytest.mark.parametrize(("most", "expected"), [(0, 0), (1, 0), (2, 1), (5, 4), (9, 8)])
def test_max_tokens(most: int | None, expected: int) -> None:
    """The model adds one token itself, so a draft leaves room for it."""
    proposer = new_proposer()
    request = proposer.begin("s", [*range(10, 18), 10], max_tokens=most)
    assert len(proposer.propose(request)) == expected


@pytest.mark.parametrize("period", [1, 2, 5, 20, 40])
def test_a_copy_that_reaches_the_end_goes_on_with_itself(period: int) -> None:
    """A rule of dashes is one token over and over: it is drafted at full length."""
    proposer = new_proposer(num_speculative_tokens=32, suffix_decoding_min_token_prob=0)
    pattern = list(range(10, 10 + period))
    request = proposer.begin("s", [1, 2, 3, *pattern * 4])
    expected = (pattern * 33)[:32] if period <= 20 else pattern[:32]
    assert proposer.propose(request).token_ids.tolist() == expected


def test_max_model_len() -> None:
    proposer = new_proposer(max_model_len=12)
    request = proposer.begin("s", [*range(10, 18), 10])
    assert len(proposer.propose(request)) == 2
    proposer.advance(request, [11, 12])
    assert len(proposer.propose(request)) == 0
    longer = proposer.begin("t", [1, 2] * 10)  # already past it
    assert len(proposer.propose(longer)) == 0


def test_limits() -> None:
    proposer = new_proposer()
    requests = [proposer.begin(f"s{i}", [*range(10, 30), 10]) for i in range(3)]
    batch = proposer.propose_batch(requests, [0, 2, 5])
    assert [len(draft) for draft in batch] == [0, 2, 5]
    assert len(proposer.propose(requests[0], 3)) == 3
    assert len(proposer.propose(requests[0], 0)) == 0


def test_batches() -> None:
    proposer = new_proposer()
    requests = [proposer.begin(f"s{i}", [i, 9, i]) for i in range(4)]
    proposer.advance_batch(requests, [9, 0, 9, 1, 9, 2, 9], [0, 2, 4, 6, 7])
    contexts = [proposer.index.context(request).tolist() for request in requests]
    assert contexts == [[0, 9, 0, 9, 0], [1, 9, 1, 9, 1], [2, 9, 2, 9, 2], [3, 9, 3, 9]]
    drafts = list(proposer.propose_batch(requests))
    assert [int(draft.token_ids[0]) for draft in drafts] == [9, 9, 9, 3]
    assert len(proposer.propose_batch([])) == 0
    proposer.advance_batch([], [], [0])


@pytest.mark.parametrize("bad", [[-1], [50], [2**31], [1.0], [True], [[1]], "x", [None]])
def test_wrong_ids_change_nothing(bad: Any) -> None:
    proposer = new_proposer(vocab_size=50)
    request = proposer.begin("s", [1, 2, 1])
    before = proposer.index.statistics()
    with pytest.raises(TokenError, match="prompt"):
        proposer.begin("s", bad)
    with pytest.raises(TokenError, match="token_ids"):
        proposer.advance(request, bad)
    with pytest.raises(TokenError):
        proposer.advance_batch([request], bad, [0, 1])
    assert proposer.index.statistics() == before
    assert proposer.index.context(request).tolist() == [1, 2, 1]


@pytest.mark.parametrize("bad", [-1, 1.5, "3", True])
def test_wrong_counts(bad: Any) -> None:
    proposer = new_proposer()
    request = proposer.begin("s", [1, 2, 1])
    with pytest.raises(InputError, match="limit"):
        proposer.propose(request, bad)
    with pytest.raises(InputError, match="max_tokens"):
        proposer.begin("t", [1], max_tokens=bad)
    if bad is not True:
        with pytest.raises(InputError, match="limits"):
            proposer.propose_batch([request], [bad])
    with pytest.raises(InputError, match="session_id"):
        proposer.begin(bad if not isinstance(bad, str) else 3, [1])  # type: ignore[arg-type]


@pytest.mark.parametrize("offsets", [[0], [0, 1], [1, 2], [0, 3], [0, 2, 2], [0.0, 2.0]])
def test_wrong_offsets(offsets: Any) -> None:
    proposer = new_proposer()
    request = proposer.begin("s", [1, 2, 1])
    with pytest.raises(InputError, match="offsets"):
        proposer.advance_batch([request], [1, 2], offsets)
    assert proposer.index.context(request).tolist() == [1, 2, 1]


def test_unknown_requests() -> None:
    proposer = new_proposer()
    known = proposer.begin("s", [1, 2])
    finished = proposer.begin("t", [1])
    proposer.finish(finished)
    for handle in (finished, 999, "x", None, [1]):
        for call in (
            lambda h: proposer.propose(h),
            lambda h: proposer.advance(h, [1]),
            lambda h: proposer.finish(h),
            lambda h: proposer.propose_batch([known, h]),
            lambda h: proposer.advance_batch([known, h], [1, 1], [0, 1, 2]),
        ):
            with pytest.raises(UnknownRequestError, match="request"):
                call(handle)
    assert proposer.index.context(known).tolist() == [1, 2]  # a batch is refused as a whole


def test_forbidden_tokens_and_vocabulary() -> None:
    proposer = new_proposer(vocab_size=20, forbidden=[3, 19, 50_000])
    request = proposer.begin("s", [1, 2, 3, 4, 1, 2])
    assert len(proposer.propose(request)) == 0
    with pytest.raises(TokenError):
        new_proposer(forbidden=[-1])
    with pytest.raises(ConfigError):
        new_proposer(vocab_size=0)


def test_an_index_can_be_shared() -> None:
    index = SuffixIndex(IndexConfig(min_token_prob=0.0))
    first, second = SuffixProposer(index=index), SuffixProposer(index=index)
    request = first.begin("a", [1])
    first.advance(request, [5, 6, 7])
    first.finish(request)
    assert second.propose(second.begin("b", [5])).token_ids[0] == 6


def test_a_prediction_is_ignored() -> None:
    proposer = new_proposer()
    request = proposer.begin("s", [1, 2], prediction=np.array([3, 4]))
    assert len(proposer.propose(request)) == 0
