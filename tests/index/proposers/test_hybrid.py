"""The hybrid: chooses by what came true, keeps its members in step, asks costly ones sparingly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from suffixspec_index.draft import Draft, Source
from suffixspec_index.errors import ConfigError, TokenError, UnknownRequestError
from suffixspec_index.proposers import create_proposer
from suffixspec_index.proposers.base import Proposer, RequestHandle
from suffixspec_index.proposers.calibration import Calibration
from suffixspec_index.proposers.drawing import DraftSampling, Drawn
from suffixspec_index.proposers.expectation import Acceptance, best_length
from suffixspec_index.proposers.hybrid import HybridProposer
from suffixspec_index.proposers.members import Member
from suffixspec_index.speculative_config import SpeculativeConfig

TEXT = np.random.default_rng(0).integers(0, 50, 4000).astype(np.int32).tolist()


class Reader(Proposer):
    """Knows the text and drafts it, right or wrong as it is told; keeps its own context."""

    name: ClassVar[str] = "reader"

    def __init__(
        self,
        right: Callable[[int], int],
        *,
        length: int = 4,
        prob: float = 1.0,
        source: Source = Source.NGRAM,
        fails_at: int | None = None,
    ) -> None:
        self.right, self.length, self.prob, self.source = right, length, prob, source
        self.fails_at = fails_at
        self.contexts: dict[int, list[int]] = {}
        self.asked: list[int] = []  # lengths asked for
        self.ended: list[str] = []

    def begin(self, session_id: str, prompt: ArrayLike, **_: Any) -> RequestHandle:
        handle = 100 + len(self.contexts)
        self.contexts[handle] = np.asarray(prompt).tolist()
        return handle

    def advance(self, request: RequestHandle, token_ids: ArrayLike) -> None:
        self.contexts[request] += np.asarray(token_ids).tolist()

    def propose(self, request: RequestHandle, limit: int | None = None) -> Draft:
        at = len(self.contexts[request])
        assert self.contexts[request] == TEXT[:at]
        if self.fails_at is not None and at >= self.fails_at:
            raise RuntimeError("broken")
        length = min(self.length, 10**6 if limit is None else limit)
        self.asked.append(length)
        tokens = TEXT[at : at + length]
        right = self.right(at)
        tokens[right:] = [(token + 1) % 50 for token in tokens[right:]]
        probs = self.prob ** np.arange(1, length + 1)
        return Draft.path(tokens, source=self.source, probs=probs.astype(np.float32))

    def finish(self, request: RequestHandle, *, keep: bool = True) -> None:
        del self.contexts[request]

    def end_session(self, session_id: str) -> None:
        self.ended.append(session_id)


class Drawer(Reader):
    """Draws, if it is asked to."""

    def propose_drawn(
        self,
        requests: Sequence[RequestHandle],
        limits: Sequence[int],
        samplings: Sequence[DraftSampling | None],
    ) -> list[Drawn]:
        drafts = [self.propose(r, limit) for r, limit in zip(requests, limits, strict=True)]
        return [
            (draft, None if sampling is None else f"probabilities of {len(draft)}")
            for draft, sampling in zip(drafts, samplings, strict=True)
        ]


def decode(hybrid: HybridProposer, steps: int, *, prompt: int = 5) -> list[Source]:
    """Greedy decoding of the text; who drafted in each step."""
    request = hybrid.begin("s", TEXT[:prompt])
    at, sources = prompt, []
    for _ in range(steps):
        draft = hybrid.propose(request, 8)
        draft.check_integrity()
        sources.append(draft.source)
        gained = len(draft.accepted_by(TEXT[at : at + 9])) + 1
        hybrid.advance(request, TEXT[at : at + gained])
        at += gained
    hybrid.finish(request)
    return sources


def test_who_promises_too_much_loses() -> None:
    honest = Reader(lambda at: 2, prob=0.6, source=Source.SESSION)
    boaster = Reader(lambda at: 0, prob=1.0, source=Source.NGRAM)
    sources = decode(HybridProposer([Member(honest), Member(boaster)]), 60)
    assert sources[0] is Source.NGRAM
    assert set(sources[20:]) == {Source.SESSION}


def test_who_has_become_better_is_noticed_though_not_chosen() -> None:
    steady = Reader(lambda at: 1, length=2, prob=0.7, source=Source.SESSION)
    late = Reader(lambda at: 4 if at > 150 else 0, prob=1.0, source=Source.NGRAM)
    hybrid = HybridProposer([Member(steady), Member(late)])
    sources = decode(hybrid, 240)
    assert set(sources[20:60]) == {Source.SESSION}
    assert set(sources[-30:]) == {Source.NGRAM}
    one, other = hybrid.statistics()
    assert one.chosen + other.chosen == 240
    assert one.asked == other.asked == 240
    assert one.foreseen > 0
    assert other.foreseen > 0


def test_a_costly_member_is_asked_where_the_cheap_draft_is_weak() -> None:
    costly = Reader(lambda at: 3, length=8, prob=0.8, source=Source.DRAFT_MODEL)

    def weak(at: int) -> bool:
        return at % 200 >= 100

    class Honest(Reader):
        def propose(self, request: RequestHandle, limit: int | None = None) -> Draft:
            self.prob = 0.1 if weak(len(self.contexts[request])) else 0.97
            return super().propose(request, limit)

    honest = Honest(lambda at: 0 if weak(at) else 6, length=6, source=Source.SESSION)
    hybrid = HybridProposer([Member(honest), Member(costly, token_cost=0.1)])
    request = hybrid.begin("s", TEXT[:5])
    at, asked = 5, {True: 0, False: 0}
    steps = {True: 0, False: 0}
    while at < 2000:
        before = len(costly.asked)
        draft = hybrid.propose(request, 8)
        asked[weak(at)] += len(costly.asked) - before
        steps[weak(at)] += 1
        gained = len(draft.accepted_by(TEXT[at : at + 9])) + 1
        hybrid.advance(request, TEXT[at : at + gained])
        at += gained
    assert asked[False] == 0
    assert asked[True] > 0.9 * steps[True]
    # It is right for 3 tokens of 8: the length asked for goes towards that.
    assert np.mean(costly.asked[-20:]) < 6
    assert costly.contexts == {100: TEXT[:at]}  # in step, though not asked


def test_a_costly_member_that_is_no_good_is_dropped_and_tried_again() -> None:
    costly = Reader(lambda at: 0, source=Source.DRAFT_MODEL)
    hybrid = HybridProposer([Member(Reader(lambda at: 0, prob=0.05)), Member(costly, 0.2)])
    request = hybrid.begin("s", TEXT[:5])
    asked = []
    for at in range(5, 605):
        before = len(costly.asked)
        hybrid.propose(request, 8)
        asked.append(len(costly.asked) > before)
        hybrid.advance(request, TEXT[at : at + 1])
    assert all(asked[:2])
    assert sum(asked[10:]) < 0.2 * len(asked)
    assert any(asked[-300:])


@pytest.mark.parametrize("coupled", [False, True])
def test_a_drawn_draft_is_taken_whatever_was_drawn(coupled: bool) -> None:
    cheap = Reader(lambda at: 0, length=2, prob=0.3, source=Source.SESSION)
    drawer = Drawer(lambda at: 4, prob=0.01, source=Source.DRAFT_MODEL)
    hybrid = HybridProposer([Member(cheap), Member(drawer, token_cost=0.01)])
    request = hybrid.begin("s", TEXT[:5])
    sampling = DraftSampling(1.0, 0, 0, coupled)
    ((draft, drawn_from),) = hybrid.propose_drawn([request], [4], [sampling])
    if coupled:  # any draft may be taken: the one that promises more
        assert (draft.source, drawn_from) == (Source.SESSION, None)
    else:
        assert (draft.source, drawn_from) == (Source.DRAFT_MODEL, "probabilities of 4")
    ((draft, drawn_from),) = hybrid.propose_drawn([request], [4], [None])
    assert drawn_from is None


def test_a_broken_member_costs_only_its_own_drafts() -> None:
    broken = Reader(lambda at: 4, fails_at=12, source=Source.NGRAM)
    sound = Reader(lambda at: 2, prob=0.5, source=Source.SESSION)
    hybrid = HybridProposer([Member(broken), Member(sound)])
    sources = decode(hybrid, 12)
    assert sources[0] is Source.NGRAM
    assert set(sources[3:]) == {Source.SESSION}
    assert broken.contexts == {}
    assert [one.failures for one in hybrid.statistics()] == [1, 0]


def test_one_broken_request_does_not_hurt_the_others_of_its_batch() -> None:
    broken = Reader(lambda at: 4, fails_at=12)
    hybrid = HybridProposer([Member(broken)])
    requests = [hybrid.begin("s", TEXT[:n]) for n in (5, 20, 6)]
    assert [len(draft) for draft in hybrid.propose_batch(requests)] == [4, 0, 4]
    hybrid.advance_batch(requests, TEXT[5:6] + TEXT[20:21] + TEXT[6:7], [0, 1, 2, 3])
    assert [len(draft) for draft in hybrid.propose_batch(requests, [3, 3, 0])] == [3, 0, 0]
    for request in requests:
        hybrid.finish(request)
    with pytest.raises(UnknownRequestError):
        hybrid.propose(requests[0])


def test_wrong_input_changes_nothing() -> None:
    reader = Reader(lambda at: 4)
    hybrid = HybridProposer([Member(reader)], vocab_size=50)
    request = hybrid.begin("s", TEXT[:5])
    with pytest.raises(TokenError):
        hybrid.advance(request, [50])
    with pytest.raises(TokenError):
        hybrid.begin("s", [-1])
    assert reader.contexts == {100: TEXT[:5]}
    hybrid.end_session("s")
    assert reader.ended == ["s"]
    with pytest.raises(ConfigError, match="members"):
        HybridProposer([])
    with pytest.raises(ConfigError, match="negative cost"):
        HybridProposer([Member(reader, token_cost=-1.0)])


def test_suffix_trees_and_a_prediction_without_a_model() -> None:
    hybrid = create_proposer(SpeculativeConfig(method="hybrid"), vocab_size=1000)
    seen: set[Source] = set()
    for turn in range(2):
        request = hybrid.begin(f"{turn}", TEXT[:50], prediction=TEXT[50:150] if not turn else None)
        at = 50
        while at < 140:
            draft = hybrid.propose(request)
            draft.check_integrity()
            seen.add(draft.source)
            gained = len(draft.accepted_by(TEXT[at:150])) + 1
            hybrid.advance(request, TEXT[at : at + gained])
            at += gained
        hybrid.finish(request)
        assert (Source.PREDICTION if not turn else Source.GLOBAL) in seen
        seen.clear()
    with pytest.raises(ConfigError, match="verification engine"):
        create_proposer(SpeculativeConfig(method="hybrid", model="small"))


def random_draft(rng: np.random.Generator, size: int) -> Draft:
    parents: list[int] = []
    tokens: list[int] = []
    probs: list[float] = []
    for node in range(size):
        parent = int(rng.integers(-1, node))
        token = int(rng.integers(0, 3))
        if (parent, token) in zip(parents, tokens, strict=True):
            continue
        if parent >= len(parents):
            parent = len(parents) - 1
            if (parent, token) in zip(parents, tokens, strict=True):
                continue
        parents.append(parent)
        tokens.append(token)
        probs.append((probs[parent] if parent >= 0 else 1.0) * float(rng.uniform(0.3, 1)))
    return Draft(
        np.array(tokens, np.int32),
        np.array(parents, np.int32),
        np.array(probs, np.float32),
        np.full(len(tokens), Source.SESSION, np.uint8),
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 12), st.lists(st.integers(0, 2), max_size=6))
def test_calibration_counts_what_the_gained_tokens_tell(
    seed: int, size: int, gained: list[int]
) -> None:
    draft = random_draft(np.random.default_rng(seed), size)
    calibration = Calibration()
    foreseen = calibration.observe(draft, gained)
    told = true = 0
    for node in range(len(draft)):  # the slow way: each node's own text against what was gained
        text: list[int] = []
        at = node
        while at >= 0:
            text.insert(0, int(draft.token_ids[at]))
            at = int(draft.parents[at])
        if text[:-1] == gained[: len(text) - 1] and len(text) <= len(gained):
            told += 1
            true += text[-1] == gained[len(text) - 1]
    assert foreseen == true
    for table in (calibration._cells, calibration._bins):
        seen, accepted = table.reshape(3, -1).sum(1)[:2]
        assert seen == pytest.approx(told, abs=0.02 * told)
        assert accepted == pytest.approx(true, abs=0.02 * told)
    corrected = calibration.correct(draft)
    assert corrected.shape == draft.probs.shape
    Draft(draft.token_ids, draft.parents, corrected, draft.sources).check_integrity()


def test_what_was_cut_off_is_not_counted_as_rejected() -> None:
    """A verifier that only ever takes the first tokens of a draft tells nothing of the others."""
    rng = np.random.default_rng(2)
    calibration = Calibration()
    text = list(range(1, 11))
    draft = Draft.path(text, source=Source.NGRAM, probs=0.9 ** np.arange(1, 11))
    for _ in range(2000):
        agreed = int(np.argmin(np.append(rng.random(2) < 0.9, False)))  # of the two verified
        bonus = text[agreed] if agreed == 2 and rng.random() < 0.9 else 0
        calibration.observe(draft, [*text[:agreed], bonus])
    np.testing.assert_allclose(calibration.correct(draft), draft.probs, rtol=0.12)


def test_calibration_finds_the_true_rates() -> None:
    rng = np.random.default_rng(1)
    calibration = Calibration()
    draft = Draft.path([1, 2], source=Source.NGRAM, probs=[0.95, 0.5])
    for _ in range(3000):
        first = rng.random() < 0.4
        second = rng.random() < 0.75
        calibration.observe(draft, [1, 2, 0] if first and second else [1, 0] if first else [0])
    assert calibration.correct(draft) == pytest.approx([0.4, 0.3], abs=0.08)


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.8, 0.97])
@pytest.mark.parametrize(("token_cost", "fixed_cost"), [(0.02, 0.0), (0.2, 0.0), (0.01, 0.5)])
def test_the_best_length_is_the_best_of_all(
    rate: float, token_cost: float, fixed_cost: float
) -> None:
    def value(length: int) -> float:
        cost = 1 + (fixed_cost + token_cost * length if length else 0)
        return sum(rate**i for i in range(length + 1)) / cost

    length, best = best_length(rate, 24, token_cost, fixed_cost)
    assert best == pytest.approx(max(map(value, range(25))))
    assert value(length) == pytest.approx(best)


def test_acceptance_forgets_towards_its_prior() -> None:
    acceptance = Acceptance.of_request()
    for _ in range(20):
        acceptance.observe(1, 0)
    assert acceptance.rate(0.8) < 0.4
    for _ in range(200):
        acceptance.observe(0, 0)
    assert acceptance.rate(0.8) > 0.75
