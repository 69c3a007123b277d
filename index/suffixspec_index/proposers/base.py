"""The contract of a proposer: something that proposes the next tokens of a request.

The life of a request, the same for every proposer:

1. ``begin(session_id, prompt)`` when its prompt is known; a session's later prompt normally
   starts with what the session already said, so only the new tokens cost anything.
2. ``propose(request)`` before each step of the target model.
3. ``advance(request, token_ids)`` after each step, with every token the request gained: the
   accepted ones and the one the model added. A proposer learns from this which of its proposals
   came true.
4. ``finish(request)`` when it ends; ``keep=False`` if its output must not be remembered.
5. ``end_session(session_id)`` when no further request of the session will come.

A draft is only ever a proposal. The verifier decides, so a wrong one costs time, never text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from suffixspec_index.draft import Draft, DraftBatch

RequestHandle = int


class Proposer(ABC):
    """What the verification engine, the replay and the service call. See the module docstring."""

    name: ClassVar[str]
    takes_min_prob: ClassVar[bool] = False
    """Whether :meth:`propose_batch` takes ``min_prob``: the least probability of a draft token,
    below which nothing need be drafted."""

    @abstractmethod
    def begin(
        self,
        session_id: str,
        prompt: ArrayLike,
        *,
        max_tokens: int | None = None,
        prediction: ArrayLike | None = None,
    ) -> RequestHandle:
        """Start a request.

        Args:
            session_id: the conversation it belongs to; unknown ids open a new session.
            prompt: ``(n,)`` integer token ids of the whole prompt, history included.
            max_tokens: output tokens the request may still produce; drafts never run past it.
            prediction: ``(m,)`` token ids the caller expects as output (OpenAI's predicted
                outputs); proposers that cannot use it ignore it.

        Raises:
            TokenError: an id is not an integer or is outside the vocabulary. Nothing is changed.
        """

    @abstractmethod
    def advance(self, request: RequestHandle, token_ids: ArrayLike) -> None:
        """Append the tokens a step gained.

        Raises:
            UnknownRequestError: no such request.
            TokenError: as for :meth:`begin`.
        """

    @abstractmethod
    def propose(self, request: RequestHandle, limit: int | None = None) -> Draft:
        """Propose at most ``limit`` tokens (``None``: the configured number). May be empty.

        Raises:
            UnknownRequestError: no such request.
        """

    @abstractmethod
    def finish(self, request: RequestHandle, *, keep: bool = True) -> None:
        """End a request. Its output is remembered for later requests unless ``keep`` is false.

        Raises:
            UnknownRequestError: no such request.
        """

    @abstractmethod
    def end_session(self, session_id: str) -> None:
        """Forget what is held for the session alone. Unknown ids are ignored."""

    def advance_batch(
        self, requests: Sequence[RequestHandle], token_ids: ArrayLike, offsets: ArrayLike
    ) -> None:
        """Advance many requests; row ``r`` gained ``token_ids[offsets[r]:offsets[r + 1]]``."""
        ids = np.asarray(token_ids)
        bounds = np.asarray(offsets)
        for row, request in enumerate(requests):
            self.advance(request, ids[bounds[row] : bounds[row + 1]])

    def propose_batch(
        self,
        requests: Sequence[RequestHandle],
        limits: Sequence[int] | NDArray[np.int32] | None = None,
    ) -> DraftBatch:
        """Propose for many requests in one call; ``limits`` is per request."""
        return DraftBatch.of(
            [
                self.propose(request, None if limits is None else int(limits[row]))
                for row, request in enumerate(requests)
            ]
        )
