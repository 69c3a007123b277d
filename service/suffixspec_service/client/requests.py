"""The client's own record of what it has open: tokens, by request and by session."""

from __future__ import annotations

import zlib
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.sessions import common_prefix
from suffixspec_service.drafting.messages import NewRequest, Tokens

_SESSIONS = 4096
_WORTH_NAMING = 64
"""Shorter beginnings are sent again rather than named."""


class ClientRequest:
    """An open request.

    Attributes:
        number: how it is called on the wire.
        session_id: the conversation it belongs to.
        prompt: ``(n,)`` int32.
        max_tokens: output tokens at most; ``None``: no limit.
        prediction: ``(m,)`` int32 expected as output; ``None``: none.
        finished: whether it is over.
    """

    __slots__ = (
        "_output",
        "_used",
        "finished",
        "max_tokens",
        "number",
        "prediction",
        "prompt",
        "session_id",
    )

    def __init__(
        self,
        number: int,
        session_id: str,
        prompt: Tokens,
        max_tokens: int | None = None,
        prediction: Tokens | None = None,
    ) -> None:
        self.number = number
        self.session_id = session_id
        self.prompt = prompt
        self.max_tokens = max_tokens
        self.prediction = prediction
        self.finished = False
        self._output = np.empty(64, np.int32)
        self._used = 0

    def __repr__(self) -> str:
        return f"ClientRequest({self.number}, {self.session_id!r}, {self._used} tokens)"

    @property
    def output(self) -> NDArray[np.int32]:
        """``(m,)`` int32, the tokens gained so far; a view."""
        return self._output[: self._used]

    @property
    def context(self) -> NDArray[np.int32]:
        """Prompt and output, a copy."""
        return np.concatenate([self.prompt, self.output])

    def gain(self, tokens: NDArray[np.int32]) -> None:
        """Append tokens. O(tokens) amortised."""
        used = self._used + len(tokens)
        if used > len(self._output):
            grown = np.empty(2 * used, np.int32)
            grown[: self._used] = self.output
            self._output = grown
        self._output[self._used : used] = tokens
        self._used = used

    def lose(self, count: int) -> None:
        """Take back the last ``count`` tokens."""
        self._used -= count


class SessionContexts:
    """What the service last held of each session, as far as this client knows."""

    def __init__(self, most: int = _SESSIONS) -> None:
        self._most = most
        self._contexts: OrderedDict[str, Tokens] = OrderedDict()

    def remember(self, session_id: str, context: Tokens) -> None:
        """A session holds this context now."""
        self._contexts[session_id] = context
        self._contexts.move_to_end(session_id)
        if len(self._contexts) > self._most:
            self._contexts.popitem(last=False)

    def forget(self, session_id: str) -> None:
        """It holds nothing."""
        self._contexts.pop(session_id, None)

    def clear(self) -> None:
        """The service has lost everything."""
        self._contexts.clear()

    def shortened(self, request: ClientRequest) -> NewRequest:
        """A request as it is sent: what its session holds already is named, not sent."""
        known = self._contexts.get(request.session_id)
        base = 0 if known is None else common_prefix(known, request.prompt)
        if base < _WORTH_NAMING:
            return whole(request)
        return NewRequest(
            request=request.number,
            session=request.session_id,
            prompt=request.prompt[base:],
            base=base,
            base_crc32=zlib.crc32(request.prompt[:base].tobytes()),
            max_tokens=request.max_tokens,
            prediction=request.prediction,
        )


def whole(request: ClientRequest) -> NewRequest:
    """A request as it is sent where the service holds nothing of its session."""
    return NewRequest(
        request=request.number,
        session=request.session_id,
        prompt=request.prompt,
        max_tokens=request.max_tokens,
        prediction=request.prediction,
    )
