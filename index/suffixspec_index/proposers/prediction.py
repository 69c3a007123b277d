"""Predicted outputs: the caller knows most of the answer, and the draft is read from it.

An agent that rewrites a file passes the file as the prediction (OpenAI's ``prediction``). The
output follows it, departs from it where something is edited, and comes back. The proposer keeps
the place in the given text and finds it again after insertions, deletions, replacements and moves.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from suffixspec_index.draft import Draft, DraftBatch, Source
from suffixspec_index.pointers import address_of
from suffixspec_index.proposers import prediction_kernels as kernels
from suffixspec_index.proposers.base import Proposer, RequestHandle
from suffixspec_index.proposers.batches import path_batch
from suffixspec_index.proposers.requests import (
    UNBOUNDED,
    RequestTable,
    as_limit,
    as_limits,
    as_max_tokens,
    as_ragged,
    as_session_id,
)
from suffixspec_index.proposers.rows import RowTable
from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_index.tokens import as_forbidden_array, as_token_array, as_vocab_size


@dataclass(slots=True)
class _Request:
    """``text`` and ``orders`` are held because the row has their addresses."""

    row: int
    text: NDArray[np.int32]
    orders: NDArray[np.int32]


class PredictionProposer(Proposer):
    """Method ``prediction``: drafts from the predicted output given with a request.

    A request without a prediction gets empty drafts. Nothing is remembered from one request to the
    next. ``match_len`` of a draft is the number of last tokens known to agree with the prediction
    (0 for a guess behind an edit), ``probs`` follow the request's own acceptance so far.

    Calls may come from several threads; they are served one at a time, and kernels release the
    GIL. Memory: 20 bytes per predicted token.
    """

    name: ClassVar[str] = "prediction"

    def __init__(
        self,
        config: SpeculativeConfig,
        *,
        vocab_size: int | None = None,
        forbidden: ArrayLike = (),
    ) -> None:
        self._tokens = config.num_speculative_tokens
        self._max_context = config.max_model_len or UNBOUNDED
        self._vocab_size = as_vocab_size(vocab_size)
        self._forbidden = as_forbidden_array(forbidden)
        self._lock = threading.Lock()
        self._requests: RequestTable[_Request] = RequestTable()
        self._table = RowTable(kernels.COLUMNS)

    def begin(
        self,
        session_id: str,
        prompt: ArrayLike,
        *,
        max_tokens: int | None = None,
        prediction: ArrayLike | None = None,
    ) -> RequestHandle:
        """See :meth:`Proposer.begin`. O(m log m) for a prediction of m tokens."""
        as_session_id(session_id)
        output_bound = as_max_tokens(max_tokens)
        prompt_ids = as_token_array(prompt, self._vocab_size, field="prompt")
        text = np.empty(0, np.int32)
        if prediction is not None:
            text = as_token_array(prediction, self._vocab_size, field="prediction").copy()
        orders = _ngram_orders(text)
        with self._lock:
            row = self._table.take()
            entry = self._table.array[row]
            entry[:] = 0
            entry[kernels.TEXT] = address_of(text)
            entry[kernels.ORDERS] = address_of(orders)
            entry[kernels.LENGTH] = len(text)
            entry[kernels.END] = min(output_bound, max(self._max_context - len(prompt_ids), 0))
            return self._requests.add(_Request(row, text, orders))

    def advance(self, request: RequestHandle, token_ids: ArrayLike) -> None:
        """See :meth:`Proposer.advance`. O(tokens), and O(log m) for each unpredicted one."""
        ids = as_token_array(token_ids, self._vocab_size, field="token_ids")
        with self._lock:
            kernels.advance(self._table.array[self._requests.get(request).row], ids)

    def advance_batch(
        self, requests: Sequence[RequestHandle], token_ids: ArrayLike, offsets: ArrayLike
    ) -> None:
        """See :meth:`Proposer.advance_batch`. One kernel call for all."""
        ids, bounds = as_ragged(token_ids, offsets, len(requests), self._vocab_size)
        with self._lock:
            kernels.advance_batch(self._table.array, self._row_ids(requests), ids, bounds)

    def propose(self, request: RequestHandle, limit: int | None = None) -> Draft:
        """See :meth:`Proposer.propose`. O(draft)."""
        most = min(as_limit(limit), self._tokens)
        with self._lock:
            row = self._table.array[self._requests.get(request).row]
            out = np.empty(min(most, int(row[kernels.LENGTH])), np.int32)
            probs = np.empty(len(out), np.float32)
            count = kernels.propose(row, most, self._forbidden, out, probs)
            matched = int(row[kernels.RUN])
        if not count:
            return Draft.empty()
        return Draft.path(
            out[:count], source=Source.PREDICTION, probs=probs[:count], match_len=matched
        )

    def propose_batch(
        self,
        requests: Sequence[RequestHandle],
        limits: Sequence[int] | NDArray[np.int32] | None = None,
    ) -> DraftBatch:
        """See :meth:`Proposer.propose_batch`. One kernel call for all."""
        most = np.minimum(as_limits(limits, len(requests)), self._tokens)
        offsets = np.empty(len(requests) + 1, np.int64)
        match_lens = np.empty(len(requests), np.int32)
        with self._lock:
            row_ids = self._row_ids(requests)
            most = np.minimum(most, self._table.array[row_ids, kernels.LENGTH])
            out = np.empty(int(most.sum()), np.int32)
            probs = np.empty(len(out), np.float32)
            kernels.propose_batch(
                self._table.array,
                row_ids,
                most,
                self._forbidden,
                out,
                probs,
                offsets,
                match_lens,
            )
        return path_batch(out, offsets, match_lens, Source.PREDICTION, probs)

    def finish(self, request: RequestHandle, *, keep: bool = True) -> None:
        """See :meth:`Proposer.finish`. Nothing is kept either way."""
        with self._lock:
            ended = self._requests.remove(request)
            self._table.give_back(ended.row)

    def end_session(self, session_id: str) -> None:
        """Nothing is held for a session."""

    @property
    def memory_bytes(self) -> int:
        """Bytes held for the predictions of live requests. O(requests)."""
        with self._lock:
            return sum(r.text.nbytes + r.orders.nbytes for r in self._requests.values())

    def _row_ids(self, requests: Sequence[RequestHandle]) -> NDArray[np.int64]:
        return np.array([self._requests.get(request).row for request in requests], np.int64)


def _ngram_orders(text: NDArray[np.int32]) -> NDArray[np.int32]:
    """``(ANCHOR, m)`` int32: row ``n - 1`` starts with the ``m - n + 1`` positions of all n-grams,
    sorted by n-gram, then position. O(m log m)."""
    length = len(text)
    orders = np.zeros((kernels.ANCHOR, length), np.int32)
    if not length:
        return orders
    _, token_ranks = np.unique(text, return_inverse=True)
    ranks = token_ranks.astype(np.int64)
    for n in range(1, min(kernels.ANCHOR, length) + 1):
        if n > 1:  # the rank of an n-gram follows from those of its first n - 1 tokens and its last
            keys = ranks[:-1] * length + token_ranks[n - 1 :]
            _, ranks = np.unique(keys, return_inverse=True)
        orders[n - 1, : length - n + 1] = np.argsort(ranks, kind="stable")
    return orders
