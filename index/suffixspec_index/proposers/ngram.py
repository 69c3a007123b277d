"""Prompt lookup: what followed the last tokens when they came before, in this same context.

The semantics are vLLM's, exactly: of the last ``n`` tokens of the context, for ``n`` from
``prompt_lookup_max`` down to ``prompt_lookup_min``, the first ``n`` that occurred before decides,
and the draft is what follows its *earliest* occurrence, up to the end of the context. But where
vLLM scans the whole context before each step, here every new token is entered into a hash once.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from suffixspec_index.draft import Draft, DraftBatch, Source
from suffixspec_index.errors import ConfigError
from suffixspec_index.pointers import address_of
from suffixspec_index.proposers import ngram_kernels as kernels
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

_LEAST_CAPACITY = 256
_IDLE_BYTES = 256 * 2**20  # contexts of sessions between two turns; the oldest are dropped first


@dataclass(slots=True)
class _Request:
    session_id: str
    row: int
    prompt_length: int


class NgramProposer(Proposer):
    """Method ``ngram``: drafts from the request's own context, by prompt lookup.

    Between two turns a session's context is kept, so that a prompt that extends it costs only its
    new tokens; where the history was edited or cut, it is repaired from the first token that
    differs. This never changes a draft: what is proposed depends on the request's context alone.
    Requests of one session that run at the same time each hold their own context.

    The drafts' ``probs`` are 1: prompt lookup knows no probabilities. ``match_len`` is the length
    of the n-gram that was found. Calls may come from several threads; they are served one at a
    time, and kernels release the GIL.

    Memory: 4 to 8 bytes per token of context, and 8 to 16 more for each n-gram length.
    """

    name: ClassVar[str] = "ngram"

    def __init__(
        self,
        config: SpeculativeConfig,
        *,
        vocab_size: int | None = None,
        forbidden: ArrayLike = (),
    ) -> None:
        if config.prompt_lookup_min is None or config.prompt_lookup_max is None:
            raise ConfigError("prompt_lookup_max: missing; the n-gram proposer needs a bound")
        self._min_n = config.prompt_lookup_min
        self._max_n = config.prompt_lookup_max
        self._tokens = config.num_speculative_tokens
        self._max_context = config.max_model_len or UNBOUNDED
        self._vocab_size = as_vocab_size(vocab_size)
        self._forbidden = as_forbidden_array(forbidden)
        # A secret seed, so that nobody can choose tokens that all collide. Drafts do not depend
        # on it.
        self._seed = np.uint64(int.from_bytes(os.urandom(8), "little"))
        self._lock = threading.Lock()
        self._requests: RequestTable[_Request] = RequestTable()
        # Open sessions, least recently used first: the row of an idle one, None while in use.
        self._sessions: OrderedDict[str, int | None] = OrderedDict()
        self._idle_bytes = 0
        self._table = RowTable(kernels.COLUMNS)
        self._buffers: dict[int, tuple[NDArray[np.int32], NDArray[np.int32]]] = {}

    def begin(
        self,
        session_id: str,
        prompt: ArrayLike,
        *,
        max_tokens: int | None = None,
        prediction: ArrayLike | None = None,
    ) -> RequestHandle:
        """See :meth:`Proposer.begin`. O(tokens after the longest common prefix * n)."""
        as_session_id(session_id)
        output_bound = as_max_tokens(max_tokens)
        ids = as_token_array(prompt, self._vocab_size, field="prompt")
        with self._lock:
            row = self._take_row(session_id)
            keep = kernels.common_prefix(self._table.array[row], ids)
            if keep < self._table.array[row, kernels.LENGTH]:
                kernels.truncate(self._table.array[row], keep, self._min_n, self._max_n, self._seed)
            self._append(row, ids[keep:])
            self._table.array[row, kernels.END] = min(len(ids) + output_bound, self._max_context)
            return self._requests.add(_Request(session_id, row, len(ids)))

    def advance(self, request: RequestHandle, token_ids: ArrayLike) -> None:
        """See :meth:`Proposer.advance`. O(tokens * prompt_lookup_max), amortised."""
        ids = as_token_array(token_ids, self._vocab_size, field="token_ids")
        with self._lock:
            self._append(self._requests.get(request).row, ids)

    def advance_batch(
        self, requests: Sequence[RequestHandle], token_ids: ArrayLike, offsets: ArrayLike
    ) -> None:
        """See :meth:`Proposer.advance_batch`. One kernel call for all."""
        ids, bounds = as_ragged(token_ids, offsets, len(requests), self._vocab_size)
        with self._lock:
            row_ids = self._row_ids(requests)
            grown = self._table.array[row_ids, kernels.LENGTH] + np.diff(bounds)
            if len(set(row_ids.tolist())) < len(row_ids):  # a request named twice
                for i, row in enumerate(row_ids.tolist()):
                    self._append(row, ids[bounds[i] : bounds[i + 1]])
                return
            for i in np.flatnonzero(grown > self._table.array[row_ids, kernels.CAPACITY]).tolist():
                self._reserve(int(row_ids[i]), int(grown[i]))
            kernels.append_batch(
                self._table.array, row_ids, ids, bounds, self._min_n, self._max_n, self._seed
            )

    def propose(self, request: RequestHandle, limit: int | None = None) -> Draft:
        """See :meth:`Proposer.propose`. O(prompt_lookup_max + draft)."""
        most = min(as_limit(limit), self._tokens)
        with self._lock:
            row = self._table.array[self._requests.get(request).row]
            out = np.empty(min(most, int(row[kernels.LENGTH])), np.int32)
            count, matched = kernels.propose(
                row, most, self._min_n, self._max_n, self._seed, self._forbidden, out
            )
        if not count:
            return Draft.empty()
        return Draft.path(out[:count], source=Source.NGRAM, match_len=matched)

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
            kernels.propose_batch(
                self._table.array,
                row_ids,
                most,
                self._min_n,
                self._max_n,
                self._seed,
                self._forbidden,
                out,
                offsets,
                match_lens,
            )
        return path_batch(out, offsets, match_lens, Source.NGRAM)

    def finish(self, request: RequestHandle, *, keep: bool = True) -> None:
        """See :meth:`Proposer.finish`. With ``keep`` false the output is cut off the context."""
        with self._lock:
            ended = self._requests.remove(request)
            if ended.session_id not in self._sessions:  # the session ended first
                self._release_row(ended.row)
                return
            if not keep and ended.prompt_length < self._table.array[ended.row, kernels.LENGTH]:
                kernels.truncate(
                    self._table.array[ended.row],
                    ended.prompt_length,
                    self._min_n,
                    self._max_n,
                    self._seed,
                )
            self._drop_idle(ended.session_id)  # left by a request that ran beside this one
            self._sessions[ended.session_id] = ended.row
            self._idle_bytes += self._row_bytes(ended.row)
            self._drop_oldest()

    def end_session(self, session_id: str) -> None:
        """See :meth:`Proposer.end_session`. Requests that still run go on."""
        with self._lock:
            if session_id in self._sessions:
                self._drop_idle(session_id)

    @property
    def memory_bytes(self) -> int:
        """Bytes held for contexts, of live requests and idle sessions. O(requests + sessions)."""
        with self._lock:
            return sum(self._row_bytes(row) for row in self._buffers)

    def _take_row(self, session_id: str) -> int:
        """The session's idle context, or a new empty one; opens the session."""
        row = self._sessions.pop(session_id, None)
        self._sessions[session_id] = None
        if row is not None:
            self._idle_bytes -= self._row_bytes(row)
            return row
        row = self._table.take()
        self._reserve(row, _LEAST_CAPACITY)
        return row

    def _release_row(self, row: int) -> None:
        del self._buffers[row]
        self._table.give_back(row)

    def _drop_idle(self, session_id: str) -> None:
        row = self._sessions.pop(session_id)
        if row is not None:
            self._idle_bytes -= self._row_bytes(row)
            self._release_row(row)

    def _drop_oldest(self) -> None:
        if self._idle_bytes <= _IDLE_BYTES:
            return
        for session_id in [s for s, row in self._sessions.items() if row is not None]:
            self._drop_idle(session_id)
            if self._idle_bytes <= _IDLE_BYTES:
                return

    def _row_ids(self, requests: Sequence[RequestHandle]) -> NDArray[np.int64]:
        return np.array([self._requests.get(request).row for request in requests], np.int64)

    def _row_bytes(self, row: int) -> int:
        return sum(buffer.nbytes for buffer in self._buffers[row])

    def _append(self, row: int, ids: NDArray[np.int32]) -> None:
        self._reserve(row, int(self._table.array[row, kernels.LENGTH]) + len(ids))
        kernels.append(self._table.array[row], ids, self._min_n, self._max_n, self._seed)

    def _reserve(self, row: int, length: int) -> None:
        """Make room for ``length`` tokens; doubling, so appending is amortised O(1) per token."""
        entry = self._table.array[row]
        if length <= entry[kernels.CAPACITY]:
            return
        capacity = max(_LEAST_CAPACITY, 1 << (length - 1).bit_length())
        text = np.zeros(capacity, np.int32)
        slots = np.zeros(2 * capacity * (self._max_n - self._min_n + 1), np.int32)
        held = int(entry[kernels.LENGTH])
        if held:
            text[:held] = self._buffers[row][0][:held]
        self._buffers[row] = (text, slots)
        entry[kernels.TEXT] = address_of(text)
        entry[kernels.SLOTS] = address_of(slots)
        entry[kernels.CAPACITY] = capacity
        entry[kernels.LENGTH] = 0
        kernels.append(entry, text[:held], self._min_n, self._max_n, self._seed)
