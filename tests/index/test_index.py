"""The index of a namespace: contexts, both memories, bounds of drafts, budgets."""

from __future__ import annotations

import math
import random
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from suffixspec_index.draft import Draft
from suffixspec_index.errors import (
    CapacityError,
    ConfigError,
    InputError,
    TokenError,
    UnknownRequestError,
)
from suffixspec_index.index import SuffixIndex
from suffixspec_index.index_config import IndexConfig

EAGER: dict[str, Any] = {"min_token_prob": 0.0, "learning_rate": 0.0}


def new_index(vocab_size: int | None = None, forbidden: Any = (), **changes: Any) -> SuffixIndex:
    config = IndexConfig(**(EAGER | changes))
    return SuffixIndex(config, vocab_size=vocab_size, forbidden=forbidden)


def advance(index: SuffixIndex, handle: int, tokens: Any) -> None:
    ids = np.asarray(tokens, np.int32)
    index.advance_batch([handle], ids, np.array([0, len(ids)], np.int64))


def propose(index: SuffixIndex, handle: int, limit: int | None = None) -> Draft:
    limits = None if limit is None else np.array([limit], np.int64)
    draft = index.propose_batch([handle], limits)[0]
    draft.check_integrity()
    return draft


def say(index: SuffixIndex, session: str, prompt: Any, output: Any, *, keep: bool = True) -> None:
    handle = index.begin(session, prompt)
    for token in output:
        advance(index, handle, [token])
    index.finish(handle, keep=keep)


def drafted(index: SuffixIndex, prompt: Any, session: str = "probe") -> list[int]:
    """What a new session would be proposed after a prompt."""
    handle = index.begin(session, prompt)
    tokens: list[int] = propose(index, handle).token_ids.tolist()
    index.finish(handle, keep=False)
    index.end_session(session)
    return tokens


class IndexMachine(RuleBasedStateMachine):
    """Sessions that go on, branch, overlap and end, while budgets evict; nothing may be lost."""

    tokens = st.lists(st.integers(0, 4), max_size=30)
    some_session = st.sampled_from(["a", "b", "c"])

    def __init__(self) -> None:
        super().__init__()
        self.index = SuffixIndex(
            IndexConfig(
                depth=6,
                session_depth=4,
                live_chunk=5,
                max_cached_requests=7,
                min_token_prob=0.01,
                tree=True,
                num_speculative_tokens=9,
                index_prompts=True,
            ),
            vocab_size=5,
            forbidden=[3],
        )
        self.said: dict[str, list[int]] = {}
        self.live: dict[int, tuple[str, list[int], int]] = {}  # context and what it may still say

    def begin(self, session: str, prompt: list[int], most: int) -> None:
        handle = self.index.begin(session, prompt, max_tokens=most)
        self.live[handle] = (session, list(prompt), most)

    @rule(session=some_session, tokens=tokens, most=st.integers(0, 40))
    def next_turn(self, session: str, tokens: list[int], most: int) -> None:
        self.begin(session, self.said.get(session, []) + tokens, most)

    @rule(session=some_session, tokens=tokens, cut=st.integers(0, 60), most=st.integers(0, 40))
    def edited_turn(self, session: str, tokens: list[int], cut: int, most: int) -> None:
        self.begin(session, self.said.get(session, [])[:cut] + tokens, most)

    @rule(session=some_session, tokens=tokens, cut=st.integers(1, 40))
    def compacted_turn(self, session: str, tokens: list[int], cut: int) -> None:
        self.begin(session, tokens + self.said.get(session, [])[cut:], 9)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 4), max_size=12))
    def step(self, data: st.DataObject, tokens: list[int]) -> None:
        handle = data.draw(st.sampled_from(sorted(self.live)))
        session, context, left = self.live[handle]
        draft = propose(self.index, handle)
        assert len(draft) <= 9
        assert draft.depths.max(initial=0) <= max(left - 1, 0)
        assert not {3} & set(draft.token_ids.tolist())
        assert draft.token_ids.max(initial=0) < 5
        advance(self.index, handle, tokens)
        self.live[handle] = (session, context + tokens, max(left - len(tokens), 0))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), keep=st.booleans())
    def finish(self, data: st.DataObject, keep: bool) -> None:
        handle = data.draw(st.sampled_from(sorted(self.live)))
        session, context, _ = self.live.pop(handle)
        self.index.finish(handle, keep=keep)
        self.said[session] = context

    @rule(session=some_session)
    def end_session(self, session: str) -> None:
        self.index.end_session(session)

    @rule(tokens=tokens)
    def ingest(self, tokens: list[int]) -> None:
        self.index.ingest(tokens)

    @rule()
    def purge(self) -> None:
        self.index.purge()

    @invariant()
    def is_sound(self) -> None:
        self.index.check_integrity()
        for handle, (_, context, _) in self.live.items():
            assert self.index.context(handle).tolist() == context
        statistics = self.index.statistics()
        assert statistics.requests == len(self.live)
        assert statistics.sequences <= 7 + len(self.live)


IndexMachine.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestIndexMachine = IndexMachine.TestCase


# --- bounds of a draft -------------------------------------------------------------------------


@settings(max_examples=120, deadline=None, derandomize=True)
@given(data=st.data())
def test_every_bound_of_a_draft(data: st.DataObject) -> None:
    draw = data.draw
    config = IndexConfig(
        depth=draw(st.integers(2, 12)),
        session_depth=draw(st.integers(2, 12)),
        num_speculative_tokens=draw(st.integers(1, 64)),
        max_spec_factor=draw(st.one_of(st.just(math.inf), st.floats(0, 4))),
        max_spec_offset=draw(st.floats(-2, 4)),
        min_token_prob=draw(st.sampled_from([0.0, 0.05, 0.3, 1.0])),
        min_match_len=draw(st.integers(1, 6)),
        tree=draw(st.booleans()),
        beyond_depth=draw(st.booleans()),
        live_chunk=draw(st.sampled_from([0, 1, 8])),
        max_cached_requests=draw(st.sampled_from([0, 3, 100])),
        learning_rate=draw(st.sampled_from([0.0, 0.02, 1.0])),
    )
    rng = random.Random(draw(st.integers(0, 2**32)))
    alphabet = draw(st.integers(1, 6))
    forbidden = set(range(0, alphabet, 3)) if draw(st.booleans()) else set()
    index = SuffixIndex(config, vocab_size=alphabet, forbidden=sorted(forbidden))
    for number in range(4):
        prompt = [rng.randrange(alphabet) for _ in range(rng.randrange(25))]
        left = rng.randrange(30)
        handle = index.begin(f"s{number % 2}", prompt, max_tokens=left)
        while left > 0:
            limit = rng.randrange(12)
            draft = propose(index, handle, limit)
            assert len(draft) <= min(limit, config.num_speculative_tokens)
            assert draft.depths.max(initial=0) < left
            if len(draft):
                assert draft.match_len >= config.min_match_len
                room = config.max_spec_factor * draft.match_len + config.max_spec_offset
                assert len(draft) <= room + 1e-6
                assert draft.probs.min() >= config.min_token_prob
                assert config.tree or draft.is_path
                ids = set(draft.token_ids.tolist())
                assert not ids & forbidden
                assert ids <= set(range(alphabet))
            gained = [rng.randrange(alphabet) for _ in range(rng.randrange(1, 4))][:left]
            advance(index, handle, gained)
            left -= len(gained)
        assert len(propose(index, handle)) == 0
        index.finish(handle, keep=rng.random() < 0.8)
    index.check_integrity()


def test_min_match_len_holds_for_every_memory() -> None:
    index = new_index(min_match_len=3, tree=True)
    index.ingest([50, 7, 60, 61])  # the global tree knows only "7", which is too short
    draft = drafted(index, [1, 2, 7, 8, 9, 1, 2, 7])
    assert draft[:2] == [8, 9]
    assert 60 not in draft


def test_limit_of_zero_drafts_nothing() -> None:
    index = new_index()
    handle = index.begin("s", [1, 2, 1, 2, 1])
    assert len(propose(index, handle, 0)) == 0


# --- faults that others had ---------------------------------------------------------------------


def test_one_token_context_drafts() -> None:
    index = new_index()
    say(index, "a", [5], [6, 7, 8])
    index.ingest([5, 6, 7, 8])
    assert drafted(index, [5])[:3] == [6, 7, 8]


def test_one_token_context_of_the_session_itself_drafts() -> None:
    assert drafted(new_index(), [1, 1])[:1] == [1]


@pytest.mark.parametrize("where", ["session", "global"])
def test_long_copies_go_on_past_the_depth(where: str) -> None:
    rng = np.random.default_rng(2)
    copied = rng.permutation(5000)[:500].tolist()
    index = SuffixIndex(IndexConfig(num_speculative_tokens=16))
    opening = [6000, 6001]
    if where == "session":
        say(index, "s", opening, [*copied, 6002])
        prompt = [*opening, *copied, 6002, *opening]
    else:
        index.ingest([*opening, *copied, 6002])
        prompt = [6005, *opening]
    handle = index.begin("s", prompt)
    steps, at, sizes = 0, 0, []
    while at < len(copied):
        draft = propose(index, handle)
        accepted = len(draft.accepted_by(copied[at:]))
        sizes.append(len(draft))
        gained = copied[at : at + accepted + 1]
        advance(index, handle, gained)
        at += len(gained)
        steps += 1
    assert steps < 60
    assert min(sizes[12:-2]) == 16  # settled: as many at a time as are allowed


def test_copies_stay_within_the_depth_where_that_is_asked_for() -> None:
    index = new_index(depth=8, session_depth=8, beyond_depth=False)
    index.ingest(range(100))
    assert drafted(index, [3, 4])[-1] <= 3 + 8


def test_lookup_of_500_tokens_in_a_prompt_of_50000_is_fast() -> None:

    rng = np.random.default_rng(4)
    prompt = rng.integers(0, 30_000, 50_000)
    index = new_index()
    handle = index.begin("s", np.concatenate([prompt, prompt[20_000:20_500]]))
    expected = prompt[20_500:]
    at, began = 0, time.perf_counter()
    for _ in range(200):
        draft = propose(index, handle)
        assert draft.token_ids[0] == expected[at]
        advance(index, handle, expected[at : at + 3])
        at += 3
    assert (time.perf_counter() - began) / 200 < 0.002
    assert propose(index, handle).match_len >= 500


def test_preempted_request_keeps_its_memory() -> None:
    index = new_index()
    prompt, said = [9, 1, 2, 3, 4], [5, 6, 7, 1, 2]
    handle = index.begin("s", prompt)
    advance(index, handle, said)
    index.finish(handle, keep=False)
    before = index.statistics()
    handle = index.begin("s", prompt + said)
    assert index.context(handle).tolist() == prompt + said
    assert propose(index, handle).token_ids[:4].tolist() == [3, 4, 5, 6]
    advance(index, handle, [3])
    index.finish(handle)
    assert before.sequences == 0
    assert index.world.sequence_tokens(0).tolist() == [3]  # not falsely next to the prompt
    index.check_integrity()


def test_drafts_after_a_purge_are_fresh() -> None:
    index = new_index()
    for _ in range(3):
        index.ingest([1, 2, 3, 4])
    handle = index.begin("live", [1])
    assert propose(index, handle).token_ids[:2].tolist() == [2, 3]
    index.purge()
    assert len(propose(index, handle)) == 0
    for _ in range(2):
        index.ingest([1, 9, 8, 7])
    advance(index, handle, [1])
    draft = propose(index, handle)
    assert 2 not in draft.token_ids
    index.finish(handle)
    assert drafted(index, [1])[:2] == [9, 8]
    assert index.world.count([2]) == 0
    index.check_integrity()


@pytest.mark.parametrize("bad", [[-1], [10], [2**31], [0.5], [[1, 2]], "no"])
def test_wrong_prompts_change_nothing(bad: Any) -> None:
    index = new_index(vocab_size=10)
    say(index, "s", [1, 2], [3])
    before = index.statistics()
    with pytest.raises(TokenError):
        index.begin("s", bad)
    with pytest.raises(TokenError):
        index.begin("new", bad)
    with pytest.raises(TokenError):
        index.ingest(bad)
    assert index.statistics() == before
    index.check_integrity()


def test_extreme_ids() -> None:
    largest = 2**31 - 2
    index = new_index(forbidden=[70_000])
    index.ingest([1, largest, 70_000, 2])
    assert drafted(index, [1]) == [largest]
    small = new_index(vocab_size=70_001, forbidden=[70_000])
    small.ingest([1, 65_537, 1, 70_000])
    assert 70_000 not in drafted(small, [1])


def test_a_batch_that_names_a_request_twice_is_refused() -> None:
    index = new_index()
    handle = index.begin("s", [1, 2])
    with pytest.raises(InputError, match="twice"):
        index.advance_batch(
            [handle, handle], np.array([1, 2], np.int32), np.array([0, 1, 2], np.int64)
        )
    assert index.context(handle).tolist() == [1, 2]


# --- what is remembered -------------------------------------------------------------------------


@pytest.mark.parametrize("length", [10, 700])
def test_output_that_is_not_kept_is_forgotten(length: int) -> None:
    index = new_index(live_chunk=16, depth=8)
    secret = list(range(1000, 1000 + length))
    handle = index.begin("s", [1, 2, 3])
    for start in range(0, length, 7):
        advance(index, handle, secret[start : start + 7])
    if length > 100:  # it was shared while it ran
        assert index.world.count(secret[:4]) == 1
        assert drafted(index, secret[:4])[:2] == secret[4:6]
    index.finish(handle, keep=False)
    assert index.world.count(secret[:1]) == 0
    assert index.statistics().sequences == 0
    assert drafted(index, secret[:4]) == []
    handle = index.begin("s", [1, 2, 3, *secret[:2]])  # nor by the session itself
    assert secret[2] not in propose(index, handle).token_ids
    index.check_integrity()


def test_live_output_is_shared_in_chunks() -> None:
    index = new_index(live_chunk=16, depth=8)
    text = list(range(100, 200))
    handle = index.begin("s", [1])
    advance(index, handle, text)
    advance(index, handle, [5])
    assert drafted(index, text[10:14])[:2] == text[14:16]
    index.finish(handle)
    assert index.world.sequence_tokens(0).tolist() == [*text, 5]
    silent = new_index(live_chunk=0, depth=8)
    handle = silent.begin("s", [1])
    advance(silent, handle, text)
    assert silent.statistics().sequences == 0


def test_two_live_requests_in_one_session() -> None:
    index = new_index()
    say(index, "s", [1, 2, 3], [4, 5])
    first = index.begin("s", [1, 2, 3, 4, 5, 6])
    second = index.begin("s", [1, 2, 3, 4, 5, 7])
    advance(index, first, [10, 11])
    advance(index, second, [20, 21, 1, 2])
    assert index.context(first).tolist() == [1, 2, 3, 4, 5, 6, 10, 11]
    assert index.context(second).tolist() == [1, 2, 3, 4, 5, 7, 20, 21, 1, 2]
    assert propose(index, second).token_ids[:2].tolist() == [3, 4]
    index.check_integrity()
    index.finish(second)
    advance(index, first, [12])
    assert index.context(first).tolist() == [1, 2, 3, 4, 5, 6, 10, 11, 12]
    index.finish(first)
    assert index.statistics().sessions == 1
    index.check_integrity()


@pytest.mark.parametrize("keep", [True, False])
def test_session_that_ends_while_a_request_runs(keep: bool) -> None:
    index = new_index()
    handle = index.begin("s", [1, 2, 3])
    index.end_session("s")
    assert index.statistics().sessions == 0
    other = index.begin("s", [7, 8])  # a new session of the same name
    advance(index, handle, [1, 2])
    assert propose(index, handle).token_ids[:1].tolist() == [3]
    assert index.context(other).tolist() == [7, 8]
    index.finish(handle, keep=keep)
    index.check_integrity()
    index.finish(other)
    index.end_session("s")
    index.end_session("never was")
    index.check_integrity()
    assert index.statistics().sequences == (1 if keep else 0)


def test_prompts_enter_the_global_tree_where_asked_for() -> None:
    plain, wide = new_index(), new_index(index_prompts=True)
    for index in (plain, wide):
        say(index, "s", [1, 2, 3, 4, 5], [6])
        say(index, "s", [1, 2, 3, 4, 5, 6, 7, 8], [9])
        index.end_session("s")
    assert drafted(plain, [2, 3]) == []
    assert drafted(wide, [2, 3])[:2] == [4, 5]
    assert wide.world.count([7, 8]) == 1
    assert wide.world.count([1, 2]) == 1  # the known part is not counted again


def test_a_prompt_of_parallel_requests_is_counted_once() -> None:
    index = new_index(index_prompts=True)
    handles = [index.begin("s", [1, 2, 3, 4, 5 + i, 6]) for i in range(4)]
    assert index.world.count([1, 2]) == 1
    assert index.world.count([8, 6]) == 1
    for handle in handles:
        index.finish(handle, keep=False)
    index.check_integrity()


def test_full_text_leaves_the_request_running(monkeypatch: pytest.MonkeyPatch) -> None:
    index = new_index()
    handle = index.begin("s", [1, 2])
    advance(index, handle, [3] * 2000)
    monkeypatch.setattr("suffixspec_index.forest._MAX_TEXT", 100)
    with pytest.raises(CapacityError, match="byte budget"):
        index.finish(handle)
    index.check_integrity()
    assert len(index.context(handle)) == 2002
    index.finish(handle, keep=False)
    index.check_integrity()
    assert index.statistics().requests == 0


def test_without_a_global_tree() -> None:
    index = new_index(max_cached_requests=0, index_prompts=True)
    say(index, "a", [1, 2, 3], [4, 5, 6])
    index.ingest([1, 2, 3, 4])
    assert index.statistics().sequences == index.statistics().tokens == 0
    assert drafted(index, [1, 2, 3]) == []
    handle = index.begin("a", [1, 2, 3, 4, 5, 6, 1, 2])
    assert propose(index, handle).token_ids[:2].tolist() == [3, 4]
    index.finish(handle)
    index.check_integrity()


# --- budgets ------------------------------------------------------------------------------------


def test_number_of_sequences_is_bounded_and_the_oldest_go_first() -> None:
    index = new_index(max_cached_requests=20)
    for number in range(100):
        index.ingest([number, 1000 + number])
        assert index.statistics().sequences <= 20
    assert drafted(index, [99]) == [1099]
    assert drafted(index, [0]) == []
    assert index.statistics().evicted_sequences >= 80
    index.check_integrity()


def test_byte_budget_holds_and_memory_is_returned() -> None:
    rng = np.random.default_rng(7)
    budget = 3 << 20
    index = new_index(max_bytes=budget)
    for number in range(60):
        prompt = rng.integers(0, 20_000, 3000)
        say(index, f"s{number}", prompt, rng.integers(0, 20_000, 50).tolist())
        index.ingest(rng.integers(0, 20_000, 2000))
        assert index.statistics().bytes <= budget
        assert index.nbytes == index.statistics().bytes
    index.check_integrity()
    statistics = index.statistics()
    assert statistics.evicted_sequences > 0
    assert statistics.evicted_sessions > 0
    full = index.nbytes
    index.purge()
    assert index.statistics().sessions == 0
    assert index.nbytes < full / 2


def test_byte_budget_ends_where_everything_is_in_use() -> None:
    """Only running requests are left, all of them shared: nothing can be evicted, nothing hangs."""
    rng = np.random.default_rng(8)
    index = new_index(max_bytes=1 << 20, live_chunk=16, depth=8)
    handles = [index.begin(f"s{i}", rng.integers(0, 9000, 2000)) for i in range(4)]
    for _ in range(30):
        for handle in handles:
            advance(index, handle, rng.integers(0, 9000, 40))
    assert index.statistics().bytes > 1 << 20
    index.ingest([1, 2, 3])
    index.check_integrity()
    for handle in handles:
        index.finish(handle)
    index.begin("last", [1])
    assert index.statistics().bytes <= 1 << 20
    index.check_integrity()


def test_byte_budget_holds_while_requests_run() -> None:
    rng = np.random.default_rng(9)
    budget = 2 << 20
    index = new_index(max_bytes=budget, live_chunk=64)
    for number in range(20):
        say(index, f"old{number}", rng.integers(0, 9000, 500), [1, 2])
    handle = index.begin("live", [1])
    for _ in range(60):
        advance(index, handle, rng.integers(0, 9000, 100))
        assert index.statistics().bytes <= budget
    assert len(index.context(handle)) == 6001
    index.check_integrity()


def test_cursors_survive_an_eviction() -> None:
    index = new_index(max_cached_requests=10)
    for number in range(10):
        index.ingest([number, 50, 51, 52, 60 + number])
    handle = index.begin("s", [8, 50, 51])
    before = propose(index, handle)
    for number in range(10, 14):
        index.ingest([number, 50, 51, 52, 60 + number])
    index.check_integrity()
    after = propose(index, handle)
    assert after.match_len == before.match_len == 3
    advance(index, handle, [52])
    assert propose(index, handle).token_ids[:1].tolist() == [68]


# --- the interface ------------------------------------------------------------------------------


def test_unknown_requests() -> None:
    index = new_index()
    handle = index.begin("s", [1])
    index.finish(handle)
    calls: list[Any] = [
        lambda: advance(index, handle, [1]),
        lambda: propose(index, handle),
        lambda: index.finish(handle),
        lambda: index.context(handle),
        lambda: index.context("what"),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(UnknownRequestError, match="request"):
            call()


def test_batches_are_what_single_calls_are() -> None:
    def play(batched: bool) -> list[list[int]]:
        rng = random.Random(3)
        index = SuffixIndex(IndexConfig(depth=8, session_depth=6, live_chunk=0, learning_rate=0))
        texts = [[rng.randrange(5) for _ in range(60)] for _ in range(12)]
        handles = [index.begin(f"s{i}", text[:20]) for i, text in enumerate(texts)]
        found = []
        for at in range(20, 60, 4):
            rows = [np.array(text[at : at + 4], np.int32) for text in texts]
            if batched:
                drafts = list(index.propose_batch(handles))
                offsets = np.arange(0, 4 * len(rows) + 1, 4)
                index.advance_batch(handles, np.concatenate(rows), offsets)
            else:
                drafts = [propose(index, handle) for handle in handles]
                for handle, row in zip(handles, rows, strict=True):
                    advance(index, handle, row)
            found += [draft.token_ids.tolist() for draft in drafts]
        return found

    assert play(batched=True) == play(batched=False)


def test_many_requests_at_once() -> None:
    index = new_index()
    handles = [index.begin(f"s{i}", [i, 100 + i, i]) for i in range(100)]
    batch = index.propose_batch(handles)
    assert [draft.token_ids[0] for draft in batch] == [100 + i for i in range(100)]
    for handle in handles:
        index.finish(handle)
    index.check_integrity()


def test_identical_runs_draft_identically() -> None:
    def play() -> list[list[float]]:
        rng = random.Random(17)
        index = SuffixIndex(IndexConfig(depth=8, tree=True, max_cached_requests=6))
        found = []
        for number in range(15):
            handle = index.begin(f"s{number % 4}", [rng.randrange(6) for _ in range(20)])
            for _ in range(12):
                draft = propose(index, handle)
                found.append([*draft.token_ids.tolist(), *draft.probs.tolist()])
                advance(index, handle, [rng.randrange(6)])
            index.finish(handle, keep=number % 5 > 0)
        return found

    assert play() == play()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("depth", 1),
        ("depth", 5000),
        ("depth", 8.5),
        ("session_depth", 0),
        ("num_speculative_tokens", 0),
        ("num_speculative_tokens", 65),
        ("num_speculative_tokens", True),
        ("max_spec_factor", -1.0),
        ("max_spec_factor", math.nan),
        ("max_spec_offset", math.inf),
        ("max_spec_offset", math.nan),
        ("min_token_prob", 1.1),
        ("min_token_prob", "0.1"),
        ("min_match_len", 0),
        ("max_cached_requests", -1),
        ("max_bytes", 10),
        ("live_chunk", -1),
        ("learning_rate", 2.0),
        ("learning_memory", 0),
    ],
)
def test_wrong_settings(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        IndexConfig(**{name: value})
