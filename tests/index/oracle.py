"""The obvious answers: dictionaries of n-grams, counted anew for every question.

Slow and short on purpose. What a tree may see of its text follows one rule: the windows inserted so
far, each at most ``depth`` symbols long; everything else is derived from the list of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

END = -1


@dataclass
class NaiveSequence:
    """A sequence and how many of its windows can be seen."""

    tokens: list[int]
    is_open: bool
    shown: int = 0
    blocks: list[tuple[int, int]] = field(default_factory=list)  # text between them is not joined

    def symbols(self) -> list[int]:
        return self.tokens if self.is_open else [*self.tokens, END]


@dataclass
class NaiveTree:
    """What :class:`suffixspec_index.tree.SuffixTree` promises, by brute force."""

    depth: int
    live_chunk: int = 128
    sequences: dict[int, NaiveSequence] = field(default_factory=dict)
    log: list[tuple[int, int]] = field(default_factory=list)  # (sequence, start), as inserted

    def insert(self, key: int, tokens: Sequence[int]) -> None:
        self.sequences[key] = NaiveSequence(list(tokens), is_open=False)
        self._show(key, len(tokens))

    def open(self, key: int, tokens: Sequence[int]) -> None:
        self.sequences[key] = NaiveSequence([], is_open=True)
        self.extend(key, tokens)

    def extend(self, key: int, tokens: Sequence[int]) -> None:
        sequence = self.sequences[key]
        sequence.tokens += tokens
        complete = len(sequence.tokens) - self.depth + 1
        if complete - sequence.shown >= self.live_chunk:
            self._show(key, complete)

    def close(self, key: int) -> None:
        self.sequences[key].is_open = False
        self._show(key, len(self.sequences[key].tokens))

    def evict(self, keys: Iterable[int]) -> None:
        gone = set(keys)
        self.sequences = {k: s for k, s in self.sequences.items() if k not in gone}
        self.log = [(k, start) for k, s in self.sequences.items() for start in range(s.shown)]

    def _show(self, key: int, stop: int) -> None:
        sequence = self.sequences[key]
        self.log += [(key, start) for start in range(sequence.shown, stop)]
        sequence.blocks.append((sequence.shown, len(sequence.tokens)))
        sequence.shown = max(stop, sequence.shown)

    def windows(self) -> list[tuple[int, ...]]:
        """Every visible window, as inserted."""
        found = []
        for key, start in self.log:
            symbols = self.sequences[key].symbols()
            found.append(tuple(symbols[start : start + self.depth]))
        return found


class Counts:
    """Every prefix of a list of windows, with its count and when it was last seen."""

    def __init__(self, windows: Sequence[tuple[int, ...]]) -> None:
        self.total = len(windows)
        self.count: dict[tuple[int, ...], int] = {}
        self.latest: dict[tuple[int, ...], int] = {}
        self.next: dict[tuple[int, ...], set[int]] = {}
        for when, window in enumerate(windows):
            for n in range(1, len(window) + 1):
                key = window[:n]
                self.count[key] = self.count.get(key, 0) + 1
                self.latest[key] = when
                self.next.setdefault(key[:-1], set()).add(key[-1])

    def of(self, tokens: Sequence[int]) -> int:
        return self.count.get(tuple(tokens), 0) if len(tokens) else self.total

    def longest(self, context: Sequence[int], most: int) -> int:
        """Length of the longest suffix of ``context``, at most ``most``, that was counted."""
        for m in range(min(most, len(context)), 0, -1):
            if tuple(context[-m:]) in self.count:
                return m
        return 0

    def best(self, string: tuple[int, ...], width: int = 3) -> list[tuple[int, int, int]]:
        """The most frequent symbols after a string (ties: the latest first), with their count and
        the string's."""
        ranked = sorted(
            self.next.get(string, ()),
            key=lambda symbol: (self.count[(*string, symbol)], self.latest[(*string, symbol)]),
            reverse=True,
        )
        here = self.count[string]
        return [(s, self.count[(*string, s)], here) for s in ranked[:width]]


@dataclass
class NaiveDraft:
    """A draft as lists."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    probs: list[float] = field(default_factory=list)
    match_len: int = 0


def naive_draft(
    tree: NaiveTree,
    context: Sequence[int],
    *,
    num_speculative_tokens: int,
    max_spec_factor: float,
    max_spec_offset: float,
    min_token_prob: float,
    min_match_len: int,
    as_tree: bool,
) -> NaiveDraft:
    """Frequency drafts by their definition: for every match length the best-first draft of count
    ratios, of those the one with the largest sum of probabilities, the longest match on a tie."""
    counts = Counts(tree.windows())
    best = NaiveDraft()
    for m in range(min(tree.depth - 1, len(context)), max(min_match_len, 1) - 1, -1):
        string = tuple(context[-m:])
        if string not in counts.count:
            continue
        most = min(num_speculative_tokens, int(max_spec_factor * m + max_spec_offset + 1e-6))
        found = _grow(tree, counts, string, most, min_token_prob, as_tree)
        found.match_len = m
        if _score(found) > _score(best):
            best = found
    return best


def _score(draft: NaiveDraft) -> float:
    return float(sum(float(np.float32(p)) for p in draft.probs))


def _grow(
    tree: NaiveTree,
    counts: Counts,
    start: tuple[int, ...],
    most: int,
    min_prob: float,
    as_tree: bool,
) -> NaiveDraft:
    draft = NaiveDraft()
    pool: list[tuple[float, int, int, tuple[int, ...]]] = []

    def push(string: tuple[int, ...], parent: int, reach: float) -> None:
        for symbol, count, total in _continuations(tree, counts, string):
            if symbol != END:
                pool.append((reach * count / total, symbol, parent, string))

    push(start, -1, 1.0)
    while pool and len(draft.tokens) < most:
        at = max(range(len(pool)), key=lambda i: pool[i][0])
        reach, symbol, parent, string = pool[at]
        if reach < min_prob:
            break
        draft.tokens.append(symbol)
        draft.parents.append(parent)
        draft.probs.append(reach)
        last = pool.pop()
        if at < len(pool):
            pool[at] = last
        if not as_tree:
            pool.clear()
        push((*string, symbol), len(draft.tokens) - 1, reach)
    return draft


def _continuations(
    tree: NaiveTree, counts: Counts, string: tuple[int, ...]
) -> list[tuple[int, int, int]]:
    """Within a window by counts; past its end by the text that follows its latest occurrence."""
    if len(string) < tree.depth:
        return counts.best(string)
    key, start = tree.log[counts.latest[string[: tree.depth]]]
    symbols = tree.sequences[key].symbols()
    at = start + len(string)
    stop = next(end for first, end in tree.sequences[key].blocks if end >= start + tree.depth)
    if at < stop or (at == stop == len(tree.sequences[key].tokens) and at < len(symbols)):
        return [(symbols[at], 1, 1)]
    return []


class NaiveCursor:
    """The longest match of a growing context in a changing list of windows, as a cursor may know
    it: one token more than before at most, for it does not look back."""

    def __init__(self, windows: Callable[[], Sequence[tuple[int, ...]]], depth: int) -> None:
        self.windows = windows
        self.depth = depth
        self.context: list[int] = []
        self.match = 0

    def advance(self, token: int) -> int:
        self.context.append(token)
        most = min(self.match + 1, self.depth - 1)
        self.match = Counts(self.windows()).longest(self.context, most)
        return self.match


def as_ints(values: ArrayLike) -> list[int]:
    return [int(v) for v in np.asarray(values)]
