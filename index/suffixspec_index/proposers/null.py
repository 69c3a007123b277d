"""The proposer that never proposes: decoding without speculation, through the same calls."""

from __future__ import annotations

from typing import ClassVar

from numpy.typing import ArrayLike

from suffixspec_index.draft import Draft
from suffixspec_index.proposers.base import Proposer, RequestHandle
from suffixspec_index.proposers.requests import (
    RequestTable,
    as_limit,
    as_max_tokens,
    as_session_id,
)
from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_index.tokens import as_token_array, as_vocab_size


class NullProposer(Proposer):
    """Method ``none``. Checks its input like every proposer, keeps nothing, drafts nothing."""

    name: ClassVar[str] = "none"

    def __init__(
        self,
        config: SpeculativeConfig | None = None,
        *,
        vocab_size: int | None = None,
        forbidden: ArrayLike = (),
    ) -> None:
        self._vocab_size = as_vocab_size(vocab_size)
        self._requests: RequestTable[None] = RequestTable()

    def begin(
        self,
        session_id: str,
        prompt: ArrayLike,
        *,
        max_tokens: int | None = None,
        prediction: ArrayLike | None = None,
    ) -> RequestHandle:
        """See :meth:`Proposer.begin`."""
        as_session_id(session_id)
        as_max_tokens(max_tokens)
        as_token_array(prompt, self._vocab_size, field="prompt")
        return self._requests.add(None)

    def advance(self, request: RequestHandle, token_ids: ArrayLike) -> None:
        """See :meth:`Proposer.advance`."""
        self._requests.get(request)
        as_token_array(token_ids, self._vocab_size, field="token_ids")

    def propose(self, request: RequestHandle, limit: int | None = None) -> Draft:
        """Always the empty draft."""
        self._requests.get(request)
        as_limit(limit)
        return Draft.empty()

    def finish(self, request: RequestHandle, *, keep: bool = True) -> None:
        """See :meth:`Proposer.finish`."""
        self._requests.remove(request)

    def end_session(self, session_id: str) -> None:
        """Nothing is held."""
