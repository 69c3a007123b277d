"""The suffix proposer: the namespace's index behind the proposers' contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from suffixspec_index.draft import Draft, DraftBatch
from suffixspec_index.index import SuffixIndex
from suffixspec_index.index_config import IndexConfig
from suffixspec_index.proposers.base import Proposer, RequestHandle
from suffixspec_index.proposers.requests import (
    as_limit,
    as_limits,
    as_max_tokens,
    as_ragged,
    as_session_id,
)
from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_index.tokens import as_token_array


class SuffixProposer(Proposer):
    """Drafts from the suffix trees of a namespace; see :class:`~suffixspec_index.SuffixIndex`.

    Args:
        config: a speculative configuration of method ``suffix``.
        vocab_size: ids must be below it; ``None``: unknown.
        forbidden: token ids that drafts never hold.
        index: an index to use (shared with others); by default a new one.
    """

    name: ClassVar[str] = "suffix"
    takes_min_prob: ClassVar[bool] = True

    def __init__(
        self,
        config: SpeculativeConfig | None = None,
        *,
        vocab_size: int | None = None,
        forbidden: ArrayLike = (),
        index: SuffixIndex | None = None,
    ) -> None:
        self.config = config or SpeculativeConfig(method="suffix")
        if index is None:
            index = SuffixIndex(
                IndexConfig.from_speculative(self.config),
                vocab_size=vocab_size,
                forbidden=forbidden,
            )
        self.index = index
        self._max_model_len = self.config.max_model_len

    def begin(
        self,
        session_id: str,
        prompt: ArrayLike,
        *,
        max_tokens: int | None = None,
        prediction: ArrayLike | None = None,
    ) -> RequestHandle:
        """Start a request; O(new tokens)."""
        tokens = as_token_array(prompt, self.index.vocab_size, field="prompt")
        most = as_max_tokens(max_tokens)
        if self._max_model_len is not None:
            most = min(most, max(self._max_model_len - len(tokens), 0))
        return self.index.begin(as_session_id(session_id), tokens, max_tokens=most)

    def advance(self, request: RequestHandle, token_ids: ArrayLike) -> None:
        """Append the tokens a step gained, and learn which drafted ones came true."""
        tokens = as_token_array(token_ids, self.index.vocab_size, field="token_ids")
        self.index.advance(request, tokens)

    def advance_batch(
        self, requests: Sequence[RequestHandle], token_ids: ArrayLike, offsets: ArrayLike
    ) -> None:
        """Advance many requests in one kernel call."""
        ids, bounds = as_ragged(token_ids, offsets, len(requests), self.index.vocab_size)
        self.index.advance_batch(requests, ids, bounds)

    def propose(self, request: RequestHandle, limit: int | None = None) -> Draft:
        """Draft for one request."""
        return self.index.propose(request, None if limit is None else as_limit(limit))

    def propose_batch(
        self,
        requests: Sequence[RequestHandle],
        limits: Sequence[int] | NDArray[np.int32] | None = None,
        *,
        min_prob: float | None = None,
    ) -> DraftBatch:
        """Draft for many requests in one kernel call; ``min_prob`` as for
        :meth:`suffixspec_index.index.SuffixIndex.propose_batch`."""
        checked = None if limits is None else as_limits(limits, len(requests))
        return self.index.propose_batch(requests, checked, min_prob=min_prob)

    def set_step_costs(self, costs: ArrayLike | None) -> None:
        """Let the size of drafts follow from the cost of verifying them; see
        :meth:`suffixspec_index.index.SuffixIndex.set_step_costs`."""
        self.index.set_step_costs(costs)

    def finish(self, request: RequestHandle, *, keep: bool = True) -> None:
        """End a request; its output enters the global tree unless ``keep`` is false."""
        self.index.finish(request, keep=keep)

    def end_session(self, session_id: str) -> None:
        """Forget the session's own memory."""
        self.index.end_session(session_id)
