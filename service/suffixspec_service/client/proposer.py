"""A client behind the contract of a proposer, for engines that speak it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from suffixspec_index.draft import Draft, DraftBatch
from suffixspec_index.proposers.base import Proposer, RequestHandle
from suffixspec_index.proposers.requests import as_limit, as_limits, as_ragged
from suffixspec_index.tokens import as_token_array
from suffixspec_service.client.blocking import DraftClient


class RemoteProposer(Proposer):
    """Drafts of a service.

    What requests gained is held back until the next draft or end, and then travels with it, so a
    step costs one round trip. Where that fails, what was held back is told when the client resumes.

    Args:
        client: open; it is not closed here.
    """

    name: ClassVar[str] = "remote"

    def __init__(self, client: DraftClient) -> None:
        self._client = client
        self._gained: dict[RequestHandle, list[NDArray[np.int32]]] = {}

    def begin(
        self,
        session_id: str,
        prompt: ArrayLike,
        *,
        max_tokens: int | None = None,
        prediction: ArrayLike | None = None,
    ) -> RequestHandle:
        """Start a request."""
        request = self._client.begin(
            session_id, prompt, max_tokens=max_tokens, prediction=prediction
        )
        return request.number

    def advance(self, request: RequestHandle, token_ids: ArrayLike) -> None:
        """Append the tokens a step gained, at the next call that goes to the service."""
        self._client.request(request)
        vocab_size = self._client.options.vocab_size
        tokens = as_token_array(token_ids, vocab_size, field="token_ids")
        self._gained.setdefault(request, []).append(tokens.copy())

    def advance_batch(
        self, requests: Sequence[RequestHandle], token_ids: ArrayLike, offsets: ArrayLike
    ) -> None:
        """Advance many requests."""
        vocab_size = self._client.options.vocab_size
        ids, bounds = as_ragged(token_ids, offsets, len(requests), vocab_size)
        for request in requests:
            self._client.request(request)
        for row, request in enumerate(requests):
            self.advance(request, ids[bounds[row] : bounds[row + 1]])

    def propose(self, request: RequestHandle, limit: int | None = None) -> Draft:
        """Draft for one request."""
        limits = None if limit is None else [as_limit(limit)]
        return self.propose_batch([request], limits)[0]

    def propose_batch(
        self,
        requests: Sequence[RequestHandle],
        limits: Sequence[int] | NDArray[np.int32] | None = None,
    ) -> DraftBatch:
        """Draft for many requests in one round trip, which takes along what they gained."""
        asked = [self._client.request(request) for request in requests]
        most: list[int] = []
        if limits is not None:
            checked = as_limits(limits, len(requests))
            most = np.minimum(checked, 2**31 - 1).tolist()
        gained = {request: self._gained.pop(request, []) for request in requests}
        return self._client.step(
            [(r, np.concatenate(gained[r.number])) for r in asked if gained.get(r.number)],
            asked,
            most,
        )

    def finish(self, request: RequestHandle, *, keep: bool = True) -> None:
        """End a request."""
        found = self._client.request(request)
        gained = self._gained.pop(request, [])
        if gained:
            self._client.step([(found, np.concatenate(gained))])
        self._client.finish([found], discard=not keep)

    def end_session(self, session_id: str) -> None:
        """Forget what the service holds for the session alone."""
        self._client.end_session(session_id)
