"""Drafts whose probabilities are ratios of counts, as SuffixDecoding has them (arXiv 2411.04975).

They stand for "before" where calibration is compared: the same text and trees, nothing learned.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from suffixspec_index.draft import Draft
from suffixspec_index.proposers.base import Proposer, RequestHandle
from suffixspec_index.tree import SuffixTree

DEPTH = 24


class RawCounts(Proposer):
    """A tree of the request's own prompt and one of finished outputs; the better score drafts."""

    name = "raw-counts"

    def __init__(self) -> None:
        self._world = SuffixTree(DEPTH)
        self._requests: dict[int, tuple[SuffixTree, list[int], int]] = {}
        self._next = 1

    def begin(
        self,
        session_id: str,
        prompt: ArrayLike,
        *,
        max_tokens: int | None = None,
        prediction: ArrayLike | None = None,
    ) -> RequestHandle:
        """Index the prompt; O(prompt)."""
        tokens = np.asarray(prompt, np.int32)
        own = SuffixTree(DEPTH)
        own.insert(tokens)
        self._next += 1
        self._requests[self._next] = own, tokens.tolist(), len(tokens)
        return self._next

    def advance(self, request: RequestHandle, token_ids: ArrayLike) -> None:
        """Append what was gained."""
        self._requests[request][1].extend(np.asarray(token_ids).tolist())

    def propose(self, request: RequestHandle, limit: int | None = None) -> Draft:
        """The better of both trees' drafts, settings as vLLM's defaults."""
        own, context, _ = self._requests[request]
        tail = np.array(context[-DEPTH:], np.int32)
        drafts = [tree.draft(tail, num_speculative_tokens=DEPTH) for tree in (own, self._world)]
        return max(drafts, key=lambda draft: draft.score)

    def finish(self, request: RequestHandle, *, keep: bool = True) -> None:
        """Remember the output."""
        _, context, start = self._requests.pop(request)
        if keep and len(context) > start:
            self._world.insert(np.array(context[start:], np.int32))

    def end_session(self, session_id: str) -> None:
        """Sessions are not kept."""
