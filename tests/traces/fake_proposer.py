"""A scripted proposer, and sessions small enough to count by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from suffixspec_index.draft import Draft, Source
from suffixspec_index.errors import UnknownRequestError
from suffixspec_index.proposers.base import Proposer, RequestHandle
from suffixspec_traces.model import TokenSession, Turn

Script = Callable[[list[int], int], Draft]
"""From the context so far, and the prompt's length, to a draft."""


class FakeProposer(Proposer):
    """Drafts by a script and writes down every call."""

    name = "fake"

    def __init__(self, script: Script | None = None) -> None:
        self.script = script or (lambda context, prompt: Draft.empty())
        self.contexts: dict[int, list[int]] = {}
        self.prompts: dict[int, int] = {}
        self.calls: list[tuple[object, ...]] = []
        self.max_tokens: list[int | None] = []

    def begin(
        self,
        session_id: str,
        prompt: ArrayLike,
        *,
        max_tokens: int | None = None,
        prediction: ArrayLike | None = None,
    ) -> RequestHandle:
        handle = len(self.prompts)
        self.contexts[handle] = [int(t) for t in np.asarray(prompt)]
        self.prompts[handle] = len(self.contexts[handle])
        self.max_tokens.append(max_tokens)
        self.calls.append(("begin", session_id, handle))
        return handle

    def advance(self, request: RequestHandle, token_ids: ArrayLike) -> None:
        tokens = [int(t) for t in np.asarray(token_ids)]
        self._context(request).extend(tokens)
        self.calls.append(("advance", request, tuple(tokens)))

    def propose(self, request: RequestHandle, limit: int | None = None) -> Draft:
        self.calls.append(("propose", request))
        return self.script(self._context(request), self.prompts[request])

    def finish(self, request: RequestHandle, *, keep: bool = True) -> None:
        self._context(request)
        self.calls.append(("finish", request, keep))

    def end_session(self, session_id: str) -> None:
        self.calls.append(("end_session", session_id))

    def _context(self, request: RequestHandle) -> list[int]:
        try:
            return self.contexts[request]
        except KeyError:
            raise UnknownRequestError(f"request {request}: never begun") from None


def turn(
    prompt: Sequence[int],
    output: Sequence[int],
    *,
    tool: str | None = None,
    timestamp: float | None = None,
) -> Turn:
    return Turn(
        np.array(prompt, np.int32), np.array(output, np.int32), tool=tool, timestamp=timestamp
    )


def session(name: str, *turns: Turn, source: str = "work") -> TokenSession:
    return TokenSession(name, turns, source=source)


def counting(drafted: int) -> Script:
    """Drafts ``drafted`` tokens counting upwards from the last one; match length 2."""

    def script(context: list[int], prompt: int) -> Draft:
        last = context[-1]
        ids = np.arange(last + 1, last + 1 + drafted, dtype=np.int32)
        probs = np.array([0.5 ** (i + 1) for i in range(drafted)], np.float32)
        return Draft.path(ids, source=Source.SESSION, probs=probs, match_len=2)

    return script
