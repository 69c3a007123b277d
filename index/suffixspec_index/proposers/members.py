"""What a hybrid knows of the proposers it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.draft import Draft
from suffixspec_index.proposers.base import Proposer, RequestHandle


@dataclass(frozen=True, slots=True)
class Member:
    """One of the proposers of a hybrid.

    Attributes:
        proposer: nobody else may use it.
        token_cost: what drafting a token costs, in steps of the target model.
        fixed_cost: what drafting costs beside that, whatever the length.
        needs_prediction: it takes part only in requests that come with a prediction.
    """

    proposer: Proposer
    token_cost: float = 0.0
    fixed_cost: float = 0.0
    needs_prediction: bool = False

    @property
    def costly(self) -> bool:
        """Whether it is asked only where that pays off."""
        return self.token_cost > 0 or self.fixed_cost > 0


@dataclass(slots=True)
class MemberStatistics:
    """What became of a member's drafts.

    Attributes:
        name: of its method.
        asked: drafts asked for.
        chosen: of them, handed on.
        expected: tokens that its own probabilities promised, over all its drafts.
        foreseen: tokens of its drafts that came true, whether they were handed on or not.
        failures: calls that raised; each ended its part in one request.
    """

    name: str
    asked: int = 0
    chosen: int = 0
    expected: float = 0.0
    foreseen: int = 0
    failures: int = 0


@dataclass(slots=True)
class Choice:
    """The best draft of a request so far."""

    draft: Draft = field(default_factory=Draft.empty)
    drawn_from: Any = None
    member: int | None = None
    gain: float = 0.0

    def offer(self, member: int, draft: Draft, drawn_from: Any, *, always: bool = False) -> None:
        """Take a draft that is expected to gain more than the best so far (``always``: any)."""
        gain = draft.score
        if len(draft) and (gain > self.gain or always):
            self.draft, self.drawn_from, self.member, self.gain = draft, drawn_from, member, gain


def advance(
    proposer: Proposer,
    spans: Sequence[NDArray[np.int32]],
    handles: list[RequestHandle],
    at: list[int],
) -> list[None]:
    """Give a member the tokens ``spans[i]`` of the requests ``i`` in ``at``, in one call."""
    parts = [spans[i] for i in at]
    ends = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=ends[1:])
    proposer.advance_batch(handles, np.concatenate(parts), ends)
    return [None] * len(at)
