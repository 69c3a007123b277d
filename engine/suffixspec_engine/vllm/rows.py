"""Which request a row of vLLM's batch holds, recognised by its tokens where nobody says so.

vLLM hands a proposer rows without request ids. A row keeps its request from step to step, except
that rows are closed up when a request ends, and that a preempted request comes back elsewhere.
So the same row is looked at first, and the others only where that fails. Tokens are compared in
full: a request that were taken for another would speak with its memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Row:
    """What vLLM shows of one row after a step.

    Attributes:
        index: where it is in the batch.
        tokens: ``(n,)`` int32, prompt and output, the tokens of this step included; a view.
        gained: how many of them this step brought.
        request_id: vLLM's name for it, where the plug-in could learn it.
        prompt_length: tokens of its prompt, where the plug-in could learn it.
        adapter: its LoRA adapter, where the plug-in could learn it; empty: none.
    """

    index: int
    tokens: Tokens
    gained: int
    request_id: str | None = None
    prompt_length: int | None = None
    adapter: str = ""


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request as the tracker knows it.

    Attributes:
        number: its own in this process.
        handle: the proposer's.
        session_id: the conversation it belongs to.
        row: where it was seen last.
        request_id: vLLM's name for it, if known.
        adapter: its LoRA adapter.
        length: tokens known.
        absent: steps since it was seen.
    """

    number: int
    handle: int
    session_id: str
    row: int
    request_id: str | None
    adapter: str
    prompt_length: int
    length: int = 0
    absent: int = 0
    _tokens: Tokens = field(default_factory=lambda: np.empty(0, np.int32))

    @property
    def tokens(self) -> Tokens:
        """``(length,)`` int32, a view."""
        return self._tokens[: self.length]

    def extend(self, tokens: Tokens) -> Tokens:
        """Take over the whole context ``tokens``; returns what was new. Amortised O(new)."""
        start, end = self.length, len(tokens)
        if end > len(self._tokens):
            grown = np.empty(max(end + end // 4, 1024), np.int32)
            grown[:start] = self._tokens[:start]
            self._tokens = grown
        self._tokens[start:end] = tokens[start:end]
        self.length = end
        return self._tokens[start:end]

    def continues_in(self, row: Row) -> bool:
        """Whether the row holds this request, some tokens later. O(length), at memory speed."""
        if row.request_id is not None and self.request_id is not None:
            return row.request_id == self.request_id and self.length <= len(row.tokens)
        if row.adapter != self.adapter or not 0 < self.length <= len(row.tokens) - 1:
            return False
        last = self.length - 1
        if self._tokens[last] != row.tokens[last]:  # most strangers differ here already
            return False
        return bool(np.array_equal(self.tokens, row.tokens[: self.length]))


class RowTracker:
    """The live requests of a batch.

    Args:
        patience: steps that a request may be missing before it counts as ended. While its tokens
            are computed again after a preemption, a request has no row with samples.
    """

    def __init__(self, patience: int = 4) -> None:
        self._patience = patience
        self._live: list[LiveRequest] = []

    @property
    def live(self) -> Sequence[LiveRequest]:
        """All of them, oldest first."""
        return tuple(self._live)

    def add(self, request: LiveRequest) -> None:
        """Track a request from now on."""
        self._live.append(request)

    def drop(self, request: LiveRequest) -> None:
        """Forget a request."""
        self._live.remove(request)

    def match(self, rows: Sequence[Row]) -> list[LiveRequest | None]:
        """The request of each row, ``None`` where the row holds a new one.

        O(rows) comparisons where rows kept their requests; O(rows x requests) cheap ones where
        they did not.
        """
        by_row = {request.row: request for request in self._live}
        found: list[LiveRequest | None] = [None] * len(rows)
        claimed: set[int] = set()
        for i, row in enumerate(rows):
            candidate = by_row.get(row.index)
            if candidate is not None and candidate.continues_in(row):
                found[i] = candidate
                claimed.add(id(candidate))
        for i, row in enumerate(rows):
            if found[i] is not None:
                continue
            # The longest known context: of two with the same beginning it is the true one.
            best = max(
                (r for r in self._live if id(r) not in claimed and r.continues_in(row)),
                key=lambda r: r.length,
                default=None,
            )
            if best is not None:
                found[i] = best
                claimed.add(id(best))
        for request in self._live:
            request.absent = 0 if id(request) in claimed else request.absent + 1
        for row, match in zip(rows, found, strict=True):
            if match is not None:
                match.row = row.index
        return found

    def ended(self) -> list[LiveRequest]:
        """Requests that have been missing for too long."""
        return [request for request in self._live if request.absent > self._patience]
