"""What is asked: requests, and sessions of requests that follow each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """One generation.

    Attributes:
        number: its place in the workload, from 0.
        session: the conversation it belongs to.
        prompt: a text, or ``(n,)`` int32 token ids.
        max_tokens: most output tokens.
        messages: the same as OpenAI chat messages, for a chat endpoint; ``None`` where the prompt
            has no such form.
    """

    number: int
    session: str
    prompt: str | Ids
    max_tokens: int
    messages: tuple[Mapping[str, Any], ...] | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """Sessions of requests; a request is sent when the one before it in its session is answered.

    Attributes:
        name: where the requests came from.
        sessions: in the order of arrival.
    """

    name: str
    sessions: tuple[tuple[BenchRequest, ...], ...]

    @property
    def requests(self) -> list[BenchRequest]:
        """All requests, by number."""
        found = [request for session in self.sessions for request in session]
        return sorted(found, key=lambda request: request.number)
