"""Drafts: what a proposer hands to a verifier.

A draft is a small tree of proposed tokens. Node ``i`` continues node ``parents[i]``; ``-1`` stands
for the last token of the context. Parents come before their children, so one forward pass over the
arrays visits every node after its parent. A path is the special case ``parents == arange(n) - 1``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.errors import IntegrityError


class Source(IntEnum):
    """Where a drafted token came from."""

    NONE = 0
    SESSION = 1  # the session's own context (prompt, tool results, earlier output)
    GLOBAL = 2  # other sessions of the namespace, through the global tree
    NGRAM = 3
    PREDICTION = 4
    DRAFT_MODEL = 5
    EAGLE = 6
    MTP = 7
    FORCED = 8  # the grammar leaves one choice

    @property
    def label(self) -> str:
        """The name as reports and metrics print it, e.g. ``"session"``."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens for one request.

    Attributes:
        token_ids: ``(n,)`` int32.
        parents: ``(n,)`` int32, index of the parent node, ``-1`` for the context's last token.
        probs: ``(n,)`` float32, probability that the node *and all its ancestors* are accepted.
        sources: ``(n,)`` uint8, a :class:`Source` per token.
        match_len: how many last tokens of the context were found in the index (0: none).
    """

    token_ids: NDArray[np.int32]
    parents: NDArray[np.int32]
    probs: NDArray[np.float32]
    sources: NDArray[np.uint8]
    match_len: int = 0

    @staticmethod
    def empty() -> Draft:
        """A draft of no tokens."""
        return _EMPTY

    @staticmethod
    def path(
        token_ids: Sequence[int] | NDArray[np.int32],
        *,
        source: Source,
        probs: Sequence[float] | NDArray[np.float32] | None = None,
        match_len: int = 0,
    ) -> Draft:
        """A linear draft; ``probs`` (cumulative) default to 1."""
        ids = np.asarray(token_ids, dtype=np.int32)
        n = len(ids)
        p = np.ones(n, np.float32) if probs is None else np.asarray(probs, dtype=np.float32)
        parents = np.arange(-1, n - 1, dtype=np.int32)
        return Draft(ids, parents, p, np.full(n, source, np.uint8), match_len)

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def source(self) -> Source:
        """The source of the first token; ``Source.NONE`` for an empty draft."""
        return Source(int(self.sources[0])) if len(self.sources) else Source.NONE

    @property
    def score(self) -> float:
        """Expected number of accepted tokens: the sum of ``probs``."""
        return float(self.probs.sum())

    @property
    def is_path(self) -> bool:
        """Whether the draft is linear."""
        return bool((self.parents == np.arange(-1, len(self) - 1)).all())

    @property
    def depths(self) -> NDArray[np.int32]:
        """``(n,)`` int32, 1 for a first token. O(n)."""
        depths = np.ones(len(self), np.int32)
        for i, parent in enumerate(self.parents):
            if parent >= 0:
                depths[i] = depths[parent] + 1
        return depths

    def accepted_by(self, token_ids: Sequence[int] | NDArray[np.int32]) -> list[int]:
        """Indices of the draft nodes on the path spelled by ``token_ids``, in order. O(n).

        This is what a greedy verifier accepts when ``token_ids`` is what the model says.
        """
        accepted: list[int] = []
        children: dict[tuple[int, int], int] = {}
        for i in range(len(self) - 1, -1, -1):
            children[(int(self.parents[i]), int(self.token_ids[i]))] = i
        node = -1
        for token in token_ids:
            found = children.get((node, int(token)))
            if found is None:
                break
            accepted.append(found)
            node = found
        return accepted

    def check_integrity(self) -> None:
        """Raise :class:`IntegrityError` unless shapes, order and probabilities are sound. O(n)."""
        n = len(self.token_ids)
        if not (len(self.parents) == len(self.probs) == len(self.sources) == n):
            raise IntegrityError("draft: arrays differ in length")
        if n and bool((self.parents >= np.arange(n)).any() or (self.parents < -1).any()):
            raise IntegrityError("draft: a parent does not come before its child")
        if n and bool((self.probs < 0).any() or (self.probs > 1).any()):
            raise IntegrityError("draft: a probability is outside [0, 1]")
        seen = set(zip(self.parents.tolist(), self.token_ids.tolist(), strict=True))
        if len(seen) != n:
            raise IntegrityError("draft: two siblings propose the same token")
        for i, parent in enumerate(self.parents.tolist()):
            if parent >= 0 and self.probs[i] > self.probs[parent] + 1e-5:
                raise IntegrityError("draft: a child is more probable than its parent")


_EMPTY = Draft(
    np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.float32), np.empty(0, np.uint8)
)


@dataclass(frozen=True, slots=True)
class DraftBatch:
    """Drafts of several requests as ragged arrays; row ``r`` is ``offsets[r]:offsets[r + 1]``.

    ``parents`` are relative to the row. ``match_lens`` is ``(rows,)`` int32, the rest as in
    :class:`Draft`.
    """

    offsets: NDArray[np.int64]
    token_ids: NDArray[np.int32]
    parents: NDArray[np.int32]
    probs: NDArray[np.float32]
    sources: NDArray[np.uint8]
    match_lens: NDArray[np.int32]

    @staticmethod
    def of(drafts: Sequence[Draft]) -> DraftBatch:
        """Concatenate drafts."""
        offsets = np.zeros(len(drafts) + 1, np.int64)
        np.cumsum([len(d) for d in drafts], out=offsets[1:])
        if not drafts:
            drafts = [_EMPTY]
        return DraftBatch(
            offsets,
            np.concatenate([d.token_ids for d in drafts]),
            np.concatenate([d.parents for d in drafts]),
            np.concatenate([d.probs for d in drafts]),
            np.concatenate([d.sources for d in drafts]),
            np.array([d.match_len for d in drafts], np.int32)[: len(offsets) - 1],
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Draft:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of a batch of {len(self)}")
        span = slice(int(self.offsets[row]), int(self.offsets[row + 1]))
        return Draft(
            self.token_ids[span],
            self.parents[span],
            self.probs[span],
            self.sources[span],
            int(self.match_lens[row]),
        )

    def __iter__(self) -> Iterator[Draft]:
        """The drafts, row by row; cheaper than asking for each."""
        ids, parents, probs, sources = self.token_ids, self.parents, self.probs, self.sources
        first = 0
        ends, match_lens = self.offsets[1:].tolist(), self.match_lens.tolist()
        for last, match_len in zip(ends, match_lens, strict=True):
            span = slice(first, last)
            yield Draft(ids[span], parents[span], probs[span], sources[span], match_len)
            first = last
