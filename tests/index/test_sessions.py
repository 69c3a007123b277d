"""A session's own memory: its context through every kind of turn, and cursors into its tree."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suffixspec_index.forest import Forest
from suffixspec_index.index import SuffixIndex
from suffixspec_index.index_config import IndexConfig
from suffixspec_index.integrity import check_row
from suffixspec_index.kernels import draft as D  # noqa: N812 - as in the kernels
from suffixspec_index.kernels import layout as L  # noqa: N812
from suffixspec_index.kernels.cursor import K_DEPTH
from suffixspec_index.sessions import SessionMemory, common_prefix
from tests.index.oracle import Counts, NaiveCursor


def as_tokens(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(values, np.int32)


def windows_of(session: SessionMemory) -> list[tuple[int, ...]]:
    """The windows that a session's tree holds, read off its text."""
    head = session.forest.table[session.row]
    arrays = session.forest.arrays[session.row]
    assert arrays is not None
    text = [int(t) for t in arrays.text[: int(head[L.H_N_TEXT])]]
    depth, found = session.depth, []
    for start in range(int(head[L.H_NEXT])):
        window = text[start : start + depth]
        if L.END in window:
            window = window[: window.index(L.END) + 1]
        if window[0] != L.END:
            found.append(tuple(window))
    return found


turn = st.tuples(
    st.sampled_from(["extend", "edit", "truncate", "compact", "replace"]),
    st.integers(0, 60),
    st.lists(st.integers(0, 3), max_size=40),
)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(depth=st.integers(2, 8), turns=st.lists(turn, min_size=1, max_size=8))
def test_context_is_the_prompt_after_every_turn(
    depth: int, turns: list[tuple[str, int, list[int]]]
) -> None:
    session = SessionMemory("s", Forest(), depth)
    context: list[int] = []
    for kind, at, tokens in turns:
        previous = list(context)
        if kind == "extend":
            context = context + tokens
        elif kind == "edit":
            context = context[:at] + tokens + context[at + 1 :]
        elif kind == "truncate":
            context = context[:at]
        elif kind == "compact":
            context = tokens + context[at:]
        else:
            context = tokens
        known = session.set_prompt(as_tokens(context))
        if previous:
            assert known == common_prefix(as_tokens(previous), as_tokens(context))
        assert session.context().tolist() == context
        assert len(session) == len(context)
        for n in range(1, depth + 3):
            assert session.tail(n).tolist() == context[-n:]
        check_row(session.forest, session.row)
        assert Counts(windows_of(session)).total == session.forest.table[session.row, L.H_WINDOWS]


def test_the_next_turn_costs_only_the_new_tokens() -> None:
    rng = np.random.default_rng(1)
    prompt = rng.integers(0, 30_000, 60_000).astype(np.int32)
    forest = Forest()
    session = SessionMemory("s", forest, 24)
    began = time.perf_counter()
    session.set_prompt(prompt[:50_000])
    first = time.perf_counter() - began
    windows = int(forest.table[session.row, L.H_WINDOWS])
    best = first
    for turn in range(1, 11):
        began = time.perf_counter()
        known = session.set_prompt(prompt[: 50_000 + 100 * turn])
        best = min(best, time.perf_counter() - began)
        assert known == 50_000 + 100 * (turn - 1)
    assert int(forest.table[session.row, L.H_WINDOWS]) == windows + 1000
    assert best < first / 10


def test_abandoned_text_does_not_pile_up() -> None:
    rng = np.random.default_rng(2)
    forest = Forest()
    session = SessionMemory("s", forest, 16)
    start = rng.integers(0, 9000, 1000)
    for _ in range(60):  # each turn throws away what the last one added
        prompt = np.concatenate([start, rng.integers(0, 9000, 1000)]).astype(np.int32)
        session.set_prompt(prompt)
        assert session.context().tolist() == prompt.tolist()
        assert int(forest.table[session.row, L.H_N_TEXT]) <= 2 * len(prompt) + 4096 + 16
    check_row(forest, session.row)
    session.drop()
    session.drop()
    assert forest.nbytes_total == 0


def test_matches_run_across_an_edit() -> None:
    index = SuffixIndex(IndexConfig(session_depth=8, min_token_prob=0.0, learning_rate=0.0))
    index.finish(index.begin("s", [1, 2, 3, 4, 5, 6, 7, 8, 9]))
    handle = index.begin("s", [1, 2, 3, 4, 50, 51, 52, 1, 2, 3, 4])
    draft = index.propose(handle)
    assert draft.match_len == 4
    assert draft.token_ids[:3].tolist() == [50, 51, 52]
    index.check_integrity()


def test_abandoned_text_is_still_searched() -> None:
    index = SuffixIndex(IndexConfig(session_depth=8, min_token_prob=0.0, learning_rate=0.0))
    index.finish(index.begin("s", [1, 2, 3, 4, 5, 6]))
    handle = index.begin("s", [1, 2, 20, 21, 3, 4])
    assert index.propose(handle).token_ids[:2].tolist() == [5, 6]


@pytest.mark.parametrize("seed", range(24))
def test_cursor_knows_the_longest_match_in_spite_of_bursts(seed: int) -> None:
    """Windows of a session are inserted in bursts, so its newest strings lack their suffixes."""
    rng = random.Random(seed)
    depth, alphabet = rng.choice([2, 3, 4, 6, 8]), rng.choice([1, 2, 3, 5])
    index = SuffixIndex(
        IndexConfig(depth=depth, session_depth=depth, live_chunk=rng.choice([0, 1, 3]))
    )
    if rng.random() < 0.5:  # a session that has been edited before
        index.finish(index.begin("s", [rng.randrange(alphabet) for _ in range(20)]))
    context = [rng.randrange(alphabet) for _ in range(rng.randrange(1, 30))]
    handle = index.begin("s", context)
    (request,) = index._requests.lookup([handle])
    expected = NaiveCursor(lambda: windows_of(request.session), depth)
    expected.context = list(context)
    expected.match = Counts(windows_of(request.session)).longest(context, depth - 1)
    assert index._requests.table[request.row, D.R_OWN + K_DEPTH] == expected.match
    for _ in range(60):
        gained = [rng.randrange(alphabet) for _ in range(rng.randrange(4))]
        if rng.random() < 0.5:
            at = rng.randrange(len(context))
            gained = context[at : at + 3]
        for token in gained:
            index.advance_batch([handle], as_tokens([token]), np.array([0, 1]))
            context.append(token)
            match = expected.advance(token)
            assert index._requests.table[request.row, D.R_OWN + K_DEPTH] == match
        index.propose(handle).check_integrity()
    assert index.context(handle).tolist() == context
    index.check_integrity()


@given(a=st.lists(st.integers(0, 2), max_size=12), b=st.lists(st.integers(0, 2), max_size=12))
def test_common_prefix(a: list[int], b: list[int]) -> None:
    n = common_prefix(as_tokens(a), as_tokens(b))
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]
