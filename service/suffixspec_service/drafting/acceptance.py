"""What became of drafts, counted for whole batches: a step of 64 requests costs microseconds.

Each open request has a row. The draft that was handed out last stands in it until the request
advances; then the tokens gained are held against it, and what they went through is accepted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.draft import DraftBatch, Source
from suffixspec_index.kernels.jit import kernel

SOURCES = len(Source)
_NODES = 64  # of a draft, at first; more where a method drafts more

# Columns of the counters.
CONTEXT, STEPS, DRAFT_STEPS, OUTPUT, DRAFTED, ACCEPTED = range(6)
_COUNTERS = 6


@dataclass(slots=True)
class Acceptance:
    """Counts of one request, or of many.

    Attributes:
        steps: advances by at least one token; of them ``steps_with_draft`` had a draft.
        output_tokens: tokens gained.
        drafted, accepted: tokens of drafts that an advance followed; a tree counts all its nodes.
        accepted_per_position: ``[d]``: how often a draft token at depth ``d`` was accepted.
        drafted_by_source, accepted_by_source: by :class:`~suffixspec_index.draft.Source`.
    """

    steps: int = 0
    steps_with_draft: int = 0
    output_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    drafted_by_source: list[int] = field(default_factory=lambda: [0] * SOURCES)
    accepted_by_source: list[int] = field(default_factory=lambda: [0] * SOURCES)

    def add(self, other: Acceptance) -> None:
        """Count another's too."""
        self.steps += other.steps
        self.steps_with_draft += other.steps_with_draft
        self.output_tokens += other.output_tokens
        self.drafted += other.drafted
        self.accepted += other.accepted
        self.accepted_per_position = _sum(self.accepted_per_position, other.accepted_per_position)
        self.drafted_by_source = _sum(self.drafted_by_source, other.drafted_by_source)
        self.accepted_by_source = _sum(self.accepted_by_source, other.accepted_by_source)

    @property
    def by_source(self) -> dict[str, tuple[int, int]]:
        """``(drafted, accepted)`` of every source that drafted, by its label."""
        pairs = zip(self.drafted_by_source, self.accepted_by_source, strict=True)
        return {
            Source(source).label: (drafted, accepted)
            for source, (drafted, accepted) in enumerate(pairs)
            if drafted
        }


class AcceptanceLedger:
    """Rows of counters and of drafts that wait for their verdict. Not thread-safe: its owner has a
    lock."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._width = _NODES
        self._allocate(64)

    def open(self, context: int) -> int:
        """A row for a request whose context has ``context`` tokens. O(1) amortised."""
        if not self._free:
            self._grow()
        row = self._free.pop()
        self._drafts[row] = 0
        self._counters[row] = 0
        self._counters[row, CONTEXT] = context
        self._positions[row] = 0
        self._by_source[row] = 0
        return row

    def close(self, row: int) -> Acceptance:
        """Give a row back; returns what it counted. O(draft length)."""
        counters = self._counters[row].tolist()
        reached = np.flatnonzero(self._positions[row])
        positions = self._positions[row, : int(reached[-1]) + 1 if len(reached) else 0]
        self._free.append(row)
        return Acceptance(
            steps=counters[STEPS],
            steps_with_draft=counters[DRAFT_STEPS],
            output_tokens=counters[OUTPUT],
            drafted=counters[DRAFTED],
            accepted=counters[ACCEPTED],
            accepted_per_position=positions.tolist(),
            drafted_by_source=self._by_source[row, 0].tolist(),
            accepted_by_source=self._by_source[row, 1].tolist(),
        )

    def contexts(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tokens in the contexts of rows, ``(n,)``."""
        contexts: NDArray[np.int64] = self._counters[rows, CONTEXT]
        return contexts

    def drafted(self, rows: NDArray[np.int64], batch: DraftBatch) -> None:
        """Remember the drafts that were handed out. One kernel call, but for drafts longer than
        any before."""
        while True:
            longest = _put_drafts(
                rows,
                batch.offsets,
                batch.token_ids,
                batch.parents,
                batch.sources,
                self._drafts,
                self._tokens,
                self._parents,
                self._sources,
            )
            if longest <= self._width:
                return
            self._widen(int(longest))

    def advanced(
        self, rows: NDArray[np.int64], token_ids: NDArray[np.int32], offsets: NDArray[np.int64]
    ) -> None:
        """Count what requests gained. One kernel call."""
        _count_gains(
            rows,
            offsets,
            token_ids,
            self._drafts,
            self._tokens,
            self._parents,
            self._sources,
            self._counters,
            self._positions,
            self._by_source,
        )

    def _allocate(self, rows: int) -> None:
        width = self._width
        self._drafts = np.zeros(rows, np.int32)
        self._tokens = np.zeros((rows, width), np.int32)
        self._parents = np.zeros((rows, width), np.int32)
        self._sources = np.zeros((rows, width), np.uint8)
        self._counters = np.zeros((rows, _COUNTERS), np.int64)
        self._positions = np.zeros((rows, width), np.int64)
        self._by_source = np.zeros((rows, 2, SOURCES), np.int64)
        self._free.extend(range(rows - 1, -1, -1))

    def _grow(self) -> None:
        rows = len(self._drafts)
        for name in _ARRAYS:
            array = getattr(self, name)
            setattr(self, name, np.concatenate([array, np.zeros_like(array)]))
        self._free.extend(range(2 * rows - 1, rows - 1, -1))

    def _widen(self, width: int) -> None:
        more = ((0, 0), (0, width - self._width))
        for name in ("_tokens", "_parents", "_sources", "_positions"):
            setattr(self, name, np.pad(getattr(self, name), more))
        self._width = width


_ARRAYS = ("_drafts", "_tokens", "_parents", "_sources", "_counters", "_positions", "_by_source")


@kernel
def _put_drafts(rows, offsets, tokens, parents, sources, n_nodes, to_tokens, to_parents, to_source):  # type: ignore[no-untyped-def]
    """Copy ragged drafts into rows, unless one is too long for them; returns the longest."""
    longest = 0
    for r in range(rows.shape[0]):
        longest = max(longest, offsets[r + 1] - offsets[r])
    if longest > to_tokens.shape[1]:
        return longest
    for r in range(rows.shape[0]):
        row = rows[r]
        first = offsets[r]
        n = offsets[r + 1] - first
        n_nodes[row] = n
        for i in range(n):
            to_tokens[row, i] = tokens[first + i]
            to_parents[row, i] = parents[first + i]
            to_source[row, i] = sources[first + i]
    return longest


@kernel
def _count_gains(  # type: ignore[no-untyped-def]
    rows, offsets, gained, n_nodes, tokens, parents, sources, counters, positions, by_source
):
    """Follow the gained tokens through each row's draft, which is spent then."""
    for r in range(rows.shape[0]):
        row = rows[r]
        n_gained = offsets[r + 1] - offsets[r]
        if n_gained == 0:
            continue
        n = n_nodes[row]
        counters[row, CONTEXT] += n_gained
        counters[row, STEPS] += 1
        counters[row, OUTPUT] += n_gained
        if n == 0:
            continue
        n_nodes[row] = 0
        counters[row, DRAFT_STEPS] += 1
        counters[row, DRAFTED] += n
        for i in range(n):
            by_source[row, 0, sources[row, i]] += 1
        node, depth = -1, 0
        for i in range(n):  # children come after their parents
            if depth == n_gained:
                break
            if parents[row, i] == node and tokens[row, i] == gained[offsets[r] + depth]:
                counters[row, ACCEPTED] += 1
                positions[row, depth] += 1
                by_source[row, 1, sources[row, i]] += 1
                node = i
                depth += 1


@kernel
def best_paths(offsets, parents, probs, kept, new_offsets):  # type: ignore[no-untyped-def]
    """Of every draft, the path with the largest sum of ``probs``, which is the number of tokens it
    is expected to have accepted.

    Writes the nodes' positions in the ragged arrays to ``kept`` and the bounds of the rows to
    ``new_offsets``; returns how many are kept. O(nodes).
    """
    longest = 0
    for r in range(offsets.shape[0] - 1):
        longest = max(longest, offsets[r + 1] - offsets[r])
    scores = np.empty(longest, np.float64)
    at = 0
    new_offsets[0] = 0
    for r in range(offsets.shape[0] - 1):
        first = offsets[r]
        best = -1
        for i in range(offsets[r + 1] - first):
            parent = parents[first + i]
            scores[i] = probs[first + i] + (scores[parent] if parent >= 0 else 0.0)
            if best < 0 or scores[i] > scores[best]:
                best = i
        length = 0
        node = best
        while node >= 0:
            length += 1
            node = parents[first + node]
        node = best
        for i in range(length - 1, -1, -1):
            kept[at + i] = first + node
            node = parents[first + node]
        at += length
        new_offsets[r + 1] = at
    return at


def as_paths(batch: DraftBatch) -> DraftBatch:
    """A batch for verifiers that take paths only; see :func:`best_paths`."""
    kept = np.empty(len(batch.token_ids), np.int64)
    offsets = np.empty(len(batch) + 1, np.int64)
    n = best_paths(batch.offsets, batch.parents, batch.probs, kept, offsets)
    kept = kept[:n]
    depths = np.arange(n) - np.repeat(offsets[:-1], np.diff(offsets))
    return DraftBatch(
        offsets,
        batch.token_ids[kept],
        (depths - 1).astype(np.int32),
        batch.probs[kept],
        batch.sources[kept],
        batch.match_lens,
    )


def _sum(a: list[int], b: list[int]) -> list[int]:
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    return [
        x + y for x, y in zip(longer, [*shorter, *[0] * (len(longer) - len(shorter))], strict=True)
    ]
