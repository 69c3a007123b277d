"""The tree against brute force: counts, matches, cursors and frequency drafts."""

from __future__ import annotations

import doctest
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from numpy.typing import NDArray

import suffixspec_index.tree
from suffixspec_index.draft import Draft
from suffixspec_index.errors import ConfigError, InputError, IntegrityError, TokenError
from suffixspec_index.kernels import layout as L  # noqa: N812 - as in the kernels
from suffixspec_index.kernels.cursor import CURSOR, K_DEPTH, advance
from suffixspec_index.kernels.jit import kernel
from suffixspec_index.kernels.layout import view
from suffixspec_index.tree import MAX_DEPTH, SuffixTree
from tests.index.oracle import Counts, NaiveCursor, NaiveTree, naive_draft

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"


@kernel
def _advance(table, row, cursor, token):  # type: ignore[no-untyped-def]
    head, text, nodes, leaves, keys, ids = view(table, row)
    advance(head, text, nodes, leaves, keys, ids, cursor, token)


def random_tokens(rng: random.Random, alphabet: int, longest: int) -> list[int]:
    return [rng.randrange(alphabet) for _ in range(rng.randrange(longest + 1))]


def assert_same_draft(draft: Draft, expected: Any) -> None:
    draft.check_integrity()
    assert draft.token_ids.tolist() == expected.tokens
    assert draft.parents.tolist() == expected.parents
    np.testing.assert_allclose(draft.probs, expected.probs, rtol=1e-5, atol=1e-6)
    assert draft.match_len == expected.match_len


class TreeMachine(RuleBasedStateMachine):
    """Random inserts, extensions, closes and evictions; the tree must always be the oracle's."""

    alphabet, depth, live_chunk = 3, 5, 4

    def __init__(self) -> None:
        super().__init__()
        self.tree = SuffixTree(self.depth, live_chunk=self.live_chunk)
        self.naive = NaiveTree(self.depth, self.live_chunk)
        self.cursor = np.zeros(CURSOR, np.int32)
        self.naive_cursor = NaiveCursor(self.naive.windows, self.depth)

    tokens = st.lists(st.integers(0, 2), max_size=14)

    @rule(tokens=tokens)
    def insert(self, tokens: list[int]) -> None:
        self.naive.insert(self.tree.insert(tokens), tokens)

    @rule(tokens=tokens)
    def open(self, tokens: list[int]) -> None:
        self.naive.open(self.tree.open(tokens), tokens)

    def some_open(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from([k for k, s in self.naive.sequences.items() if s.is_open]))

    @precondition(lambda self: any(s.is_open for s in self.naive.sequences.values()))
    @rule(tokens=tokens, data=st.data())
    def extend(self, tokens: list[int], data: st.DataObject) -> None:
        key = self.some_open(data)
        self.tree.extend(key, tokens)
        self.naive.extend(key, tokens)

    @precondition(lambda self: any(s.is_open for s in self.naive.sequences.values()))
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        key = self.some_open(data)
        self.tree.close(key)
        self.naive.close(key)

    @precondition(lambda self: self.naive.sequences)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        keys = data.draw(st.sets(st.sampled_from(sorted(self.naive.sequences))))
        assert self.tree.evict([*keys, 10_000]) == len(keys)
        self.naive.evict(keys)
        self.cursor[:] = 0  # as the tree's owner does
        self.naive_cursor.match = 0

    @rule(tokens=st.lists(st.integers(0, 2), max_size=5))
    def advance(self, tokens: list[int]) -> None:
        for token in tokens:
            _advance(self.tree.forest.table, self.tree.row, self.cursor, token)
            assert int(self.cursor[K_DEPTH]) == self.naive_cursor.advance(token)

    @rule(context=tokens)
    def match(self, context: list[int]) -> None:
        counts = Counts(self.naive.windows())
        assert self.tree.match(context) == counts.longest(context, self.depth - 1)

    @rule(
        context=tokens,
        n=st.integers(0, 12),
        factor=st.sampled_from([0.0, 0.5, 1.0, 2.0, 4.0]),
        offset=st.sampled_from([-1.0, 0.0, 1.0, 2.5]),
        min_prob=st.sampled_from([0.0, 0.1, 0.4, 1.0]),
        min_match=st.integers(1, 4),
        as_tree=st.booleans(),
    )
    def draft(
        self,
        context: list[int],
        n: int,
        factor: float,
        offset: float,
        min_prob: float,
        min_match: int,
        as_tree: bool,
    ) -> None:
        draft = self.tree.draft(
            context,
            num_speculative_tokens=n,
            max_spec_factor=factor,
            max_spec_offset=offset,
            min_token_prob=min_prob,
            min_match_len=min_match,
            tree=as_tree,
        )
        expected = naive_draft(
            self.naive,
            context,
            num_speculative_tokens=min(n, self.depth),
            max_spec_factor=factor,
            max_spec_offset=offset,
            min_token_prob=min_prob,
            min_match_len=min_match,
            as_tree=as_tree,
        )
        assert_same_draft(draft, expected)

    @invariant()
    def counts_are_right(self) -> None:
        self.tree.check_integrity()
        counts = Counts(self.naive.windows())
        for string, count in counts.count.items():
            if string[-1] >= 0:
                assert self.tree.count(string) == count
        assert self.tree.count([]) == counts.total
        assert len(self.tree) == len(self.naive.sequences)
        for key, sequence in self.naive.sequences.items():
            assert self.tree.sequence_tokens(key).tolist() == sequence.tokens


TreeMachine.TestCase.settings = settings(
    max_examples=250,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestTreeMachine = TreeMachine.TestCase


@pytest.mark.parametrize("seed", range(12))
def test_cursor_knows_the_longest_match_while_the_tree_grows_and_splits(seed: int) -> None:
    rng = random.Random(seed)
    depth, chunk, alphabet = rng.choice([2, 3, 6, 8]), rng.choice([1, 2, 5]), rng.choice([2, 3, 5])
    tree, naive = SuffixTree(depth, live_chunk=chunk), NaiveTree(depth, chunk)
    cursor, expected = np.zeros(CURSOR, np.int32), NaiveCursor(naive.windows, depth)
    live: list[int] = []
    for _ in range(90):
        tokens, what = random_tokens(rng, alphabet, 13), rng.random()
        if what < 0.1:
            naive.insert(tree.insert(tokens), tokens)
        elif what < 0.25:
            live.append(tree.open(tokens))
            naive.open(live[-1], tokens)
        elif what < 0.45 and live:
            key = rng.choice(live)
            tree.extend(key, tokens)
            naive.extend(key, tokens)
        elif what < 0.5 and live:
            key = live.pop(rng.randrange(len(live)))
            tree.close(key)
            naive.close(key)
        else:
            for token in tokens[:3]:
                _advance(tree.forest.table, tree.row, cursor, token)
                assert int(cursor[K_DEPTH]) == expected.advance(token)
    tree.check_integrity()


@pytest.mark.parametrize("alphabet", [1, 2, 4, 30])
@pytest.mark.parametrize("depth", [2, 3, 9])
def test_counts_and_drafts_on_random_text(alphabet: int, depth: int) -> None:
    rng = random.Random(alphabet * 100 + depth)
    tree, naive = SuffixTree(depth), NaiveTree(depth)
    for _ in range(12):
        tokens = random_tokens(rng, alphabet, 60)
        naive.insert(tree.insert(tokens), tokens)
    tree.check_integrity()
    counts = Counts(naive.windows())
    for _ in range(60):
        string = random_tokens(rng, alphabet, depth + 1)
        assert tree.count(string) == counts.of(string)
        context = random_tokens(rng, alphabet, 20)
        assert tree.match(context) == counts.longest(context, depth - 1)
    for _ in range(25):
        context, as_tree = random_tokens(rng, alphabet, 12), rng.random() < 0.5
        common = {"max_spec_factor": 3.0, "max_spec_offset": 1.0, "min_token_prob": 0.05}
        assert_same_draft(
            tree.draft(context, num_speculative_tokens=depth, tree=as_tree, **common),  # type: ignore[arg-type]
            naive_draft(
                naive,
                context,
                num_speculative_tokens=depth,
                min_match_len=1,
                as_tree=as_tree,
                **common,
            ),
        )


def _real_tokens(limit: int) -> NDArray[np.int32]:
    """Bytes of real traces, as tokens: long repeats, a skewed alphabet of up to 256."""
    if not SHARED.is_dir():
        pytest.skip("no ../shared/traces beside the repository")
    parts = [p.read_bytes()[: limit // 4] for p in sorted(SHARED.glob("*.jsonl"))[:4]]
    return np.frombuffer(b"".join(parts), np.uint8).astype(np.int32)


def test_counts_on_real_traces() -> None:
    tokens = _real_tokens(24_000)
    pieces = np.array_split(tokens, 9)
    tree, naive = SuffixTree(12), NaiveTree(12)
    keys = []
    for number, piece in enumerate(pieces):
        if number % 3:
            keys.append(tree.insert(piece))
            naive.insert(keys[-1], piece.tolist())
        else:
            keys.append(tree.open(piece[:700]))
            naive.open(keys[-1], piece[:700].tolist())
    for number in range(0, 9, 3):
        tree.extend(keys[number], pieces[number][700:])
        naive.extend(keys[number], pieces[number][700:].tolist())
    tree.evict(keys[1:3])
    naive.evict(keys[1:3])
    tree.close(keys[0])
    naive.close(keys[0])
    tree.check_integrity()
    counts = Counts(naive.windows())
    for string, count in counts.count.items():
        if string[-1] >= 0:
            assert tree.count(string) == count
    for at in range(20, len(tokens), 501):
        context = tokens[at - 20 : at].tolist()
        assert tree.match(context) == counts.longest(context, 11)


# --- bounds of a draft -------------------------------------------------------------------------


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    text=st.lists(st.integers(0, 3), min_size=1, max_size=80),
    context=st.lists(st.integers(0, 3), max_size=20),
    n=st.integers(0, 30),
    factor=st.floats(0, 8),
    offset=st.floats(-3, 8),
    min_prob=st.floats(0, 1),
    min_match=st.integers(1, 10),
    as_tree=st.booleans(),
)
def test_draft_bounds(
    text: list[int],
    context: list[int],
    n: int,
    factor: float,
    offset: float,
    min_prob: float,
    min_match: int,
    as_tree: bool,
) -> None:
    tree = SuffixTree(9)
    tree.insert(text)
    draft = tree.draft(
        context,
        num_speculative_tokens=n,
        max_spec_factor=factor,
        max_spec_offset=offset,
        min_token_prob=min_prob,
        min_match_len=min_match,
        tree=as_tree,
    )
    draft.check_integrity()
    assert len(draft) <= n
    if len(draft):
        assert draft.match_len >= min_match
        assert len(draft) <= factor * draft.match_len + offset + 1e-6
        assert draft.probs.min() >= min_prob - 1e-6
        assert as_tree or draft.is_path
        assert set(draft.token_ids.tolist()) <= set(text)


def test_an_unbounded_factor_is_no_factor() -> None:
    tree = SuffixTree(16)
    tree.insert(range(40))
    draft = tree.draft([3], num_speculative_tokens=8, max_spec_factor=float("inf"))
    assert draft.token_ids.tolist() == list(range(4, 12))


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_speculative_tokens": -1},
        {"max_spec_factor": -0.5},
        {"max_spec_factor": float("nan")},
        {"max_spec_offset": float("nan")},
        {"min_token_prob": 1.5},
        {"min_token_prob": float("nan")},
    ],
)
def test_wrong_draft_settings(wrong: dict[str, Any]) -> None:
    tree = SuffixTree(8)
    tree.insert([1, 2, 3])
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        tree.draft([1], **wrong)


# --- faults that others had ---------------------------------------------------------------------


@pytest.mark.parametrize("depth", [64, 256])
@pytest.mark.parametrize("last", [7, 8])
def test_memory_is_linear_on_one_repeated_token(depth: int, last: int) -> None:
    n = 20_000
    tree = SuffixTree(depth)
    tree.insert([1])
    started = time.perf_counter()
    tree.insert([7] * n + [last])
    tree.insert([7] * n + [last])
    assert time.perf_counter() - started < 2
    statistics = tree.statistics()
    assert statistics.bytes_per_token < 60
    assert statistics.nodes < 4 * depth
    tree.check_integrity()
    assert tree.count([7] * depth) == 2 * (n - depth + 1) + (2 if last == 7 else 0)


@pytest.mark.parametrize("n", [63, 64, 65])
def test_depth_equal_to_what_there_is(n: int) -> None:
    tree = SuffixTree(64)
    tokens = list(range(n))
    tree.insert(tokens)
    tree.check_integrity()
    assert tree.match(tokens) == min(n, 63)
    assert tree.count(tokens) == (1 if n <= 64 else 0)
    assert tree.draft([5], num_speculative_tokens=64, max_spec_factor=64).token_ids.tolist() == (
        list(range(6, min(n, 70)))
    )


@pytest.mark.parametrize("depth", [2, MAX_DEPTH])
def test_extreme_depths(depth: int) -> None:
    tree = SuffixTree(depth)
    tree.insert([1, 2, 3, 1, 2])
    key = tree.open([1, 2, 1])
    tree.close(key)
    tree.check_integrity()
    assert tree.count([1, 2]) == 3


@pytest.mark.parametrize("bad", [[-1], [2**31 - 1], [2**40], [1.5], [True], [None], [[1]], "ab"])
def test_wrong_ids_change_nothing(bad: Any) -> None:
    tree = SuffixTree(8)
    tree.insert([1, 2, 3])
    key = tree.open([1, 2])
    before = tree.statistics()
    for call in (tree.insert, tree.open, lambda b: tree.extend(key, b), tree.match, tree.draft):
        with pytest.raises(TokenError):
            call(bad)
    assert tree.statistics() == before
    tree.check_integrity()


def test_ids_at_the_edges() -> None:
    largest = 2**31 - 2
    tree = SuffixTree(8)
    tree.insert([0, largest, 0, largest, 70_000, 65_536 + 70_000 % 65_536])
    tree.check_integrity()
    assert tree.count([0, largest]) == 2
    assert tree.count([70_000 % 65_536]) == 0  # ids are not cut to 16 bits
    small = SuffixTree(8, vocab_size=10)
    small.insert([9])
    with pytest.raises(TokenError, match="vocabulary has 10 ids"):
        small.insert([1, 10])


def test_many_children_of_one_node() -> None:
    rng = random.Random(5)
    tree, naive = SuffixTree(3), NaiveTree(3)
    tokens = [t for _ in range(600) for t in (0, 1 + min(int(rng.paretovariate(0.7)), 400))]
    naive.insert(tree.insert(tokens), tokens)
    tree.check_integrity()
    expected = Counts(naive.windows()).best((0,), width=3)
    draft = tree.draft(
        [0], num_speculative_tokens=3, max_spec_factor=3, min_token_prob=0, tree=True
    )
    first = draft.token_ids[draft.parents == -1].tolist()
    assert first == [symbol for symbol, _, _ in expected][: len(first)]


def test_memory_is_returned_after_eviction() -> None:
    rng = np.random.default_rng(1)
    tree = SuffixTree(32)
    empty = tree.statistics().bytes
    keys = [tree.insert(rng.integers(0, 5000, 2000)) for _ in range(20)]
    full = tree.statistics().bytes
    tree.evict(keys[:15])
    assert tree.statistics().bytes < 0.3 * full
    assert tree.statistics().tokens == 5 * 2000
    tree.check_integrity()
    tree.clear()
    assert tree.statistics().bytes <= empty
    assert tree.statistics().nodes == 1
    assert tree.match([1, 2]) == 0
    tree.check_integrity()


def test_live_text_is_visible_without_a_copy_per_token() -> None:
    tree = SuffixTree(8, live_chunk=4)
    key = tree.open()
    for token in range(100):
        tree.extend(key, [token])
    assert tree.count([80, 81]) == 1  # all but the last depth - 1 + live_chunk tokens
    assert tree.count([99]) == 0
    tree.close(key)
    assert tree.count([99]) == 1
    tree.check_integrity()


def test_a_copy_does_not_run_into_another_sequence() -> None:
    tree = SuffixTree(4, live_chunk=1)
    first = tree.open(range(10))
    second = tree.open(range(50, 60))
    draft = tree.draft([6], num_speculative_tokens=4, max_spec_factor=9, min_token_prob=0)
    assert not set(draft.token_ids.tolist()) & set(range(50, 60))
    tree.close(first)
    tree.close(second)
    draft = tree.draft([6], num_speculative_tokens=4, max_spec_factor=9, min_token_prob=0)
    assert draft.token_ids.tolist() == [7, 8, 9]


# --- the interface ------------------------------------------------------------------------------


def test_closed_and_unknown_sequences() -> None:
    tree = SuffixTree(8)
    key = tree.insert([1])
    with pytest.raises(InputError, match="is closed"):
        tree.extend(key, [2])
    with pytest.raises(InputError, match="is closed"):
        tree.close(key)
    tree.evict([key])
    with pytest.raises(InputError, match="evicted"):
        tree.sequence_tokens(key)
    assert list(tree) == []


@pytest.mark.parametrize("depth", [0, 1, MAX_DEPTH + 1, 2.5, True, "8", None])
def test_wrong_depth(depth: Any) -> None:
    with pytest.raises(ConfigError, match="depth"):
        SuffixTree(depth)


def test_wrong_live_chunk() -> None:
    with pytest.raises(ConfigError, match="live_chunk"):
        SuffixTree(8, live_chunk=0)


def test_empty_tree_and_empty_sequences() -> None:
    tree = SuffixTree(8)
    assert tree.match([1]) == tree.count([1]) == 0
    assert len(tree.draft([1])) == 0
    assert tree.statistics().bytes_per_token == 0
    tree.insert([])
    tree.close(tree.open())
    tree.check_integrity()
    assert len(tree) == 2


def test_damage_is_found() -> None:
    rng = random.Random(3)
    for column in (L.POS, L.DEPTH, L.COUNT, L.LINK, L.PARENT, L.KIDS, L.C0, L.T0):
        tree = SuffixTree(6)
        for _ in range(6):
            tree.insert(random_tokens(rng, 3, 40))
        arrays = tree.forest.arrays[tree.row]
        assert arrays is not None
        used = int(tree.forest.table[tree.row, L.H_N_NODES])
        deep = next(v for v in range(1, used) if arrays.nodes[v, L.DEPTH] >= 2)
        arrays.nodes[deep, column] += 1
        with pytest.raises(IntegrityError):
            tree.check_integrity()


def test_identical_histories_give_identical_trees() -> None:
    def build() -> SuffixTree:
        rng = random.Random(11)
        tree = SuffixTree(7, live_chunk=3)
        keys = [tree.open(random_tokens(rng, 4, 30), at_time=0.0) for _ in range(4)]
        for _ in range(30):
            tree.extend(rng.choice(keys), random_tokens(rng, 4, 9))
        tree.evict(keys[:1])
        return tree

    first, second = build(), build()
    assert first.statistics() == second.statistics()
    a, b = first.forest.arrays[first.row], second.forest.arrays[second.row]
    assert a is not None
    assert b is not None
    assert (a.nodes == b.nodes).all()


def test_the_examples_run() -> None:
    assert doctest.testmod(suffixspec_index.tree).failed == 0
