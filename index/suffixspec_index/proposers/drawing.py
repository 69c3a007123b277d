"""Proposers that can draw their drafts at random, and say from what.

Rejection sampling needs that: it accepts a drawn token with a probability that follows from the
distribution it was drawn from. A draft that is not drawn (the most probable tokens, a copy from an
index) needs nothing but the contract of :mod:`.base`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from suffixspec_index.draft import Draft
from suffixspec_index.proposers.base import RequestHandle


@dataclass(frozen=True, slots=True)
class DraftSampling:
    """How the draft tokens of one request are drawn.

    Attributes:
        temperature: of the drafter's distribution; above 0.
        seed: the request's.
        position: output position of the first drafted token.
        coupled: draw with the randomness that the target model will draw with, so that both agree
            as often as their distributions allow; only for verification by ``coupled``.
    """

    temperature: float
    seed: int
    position: int
    coupled: bool


Drawn = tuple[Draft, Any]
"""A draft and, where it was drawn, ``(n, vocab)`` float32, row ``i`` what node ``i`` was drawn
from (a torch tensor; this package does not import torch); ``None`` where it was not drawn."""


@runtime_checkable
class DrawingProposer(Protocol):
    """A proposer that can draw its drafts."""

    def propose_drawn(
        self,
        requests: Sequence[RequestHandle],
        limits: Sequence[int],
        samplings: Sequence[DraftSampling | None],
    ) -> list[Drawn]:
        """Propose for many requests in one call.

        Whether and how much is drafted must not depend on what is drawn: that would favour some
        tokens over others, and the distribution of the text would not be the target model's.

        Args:
            requests: of ``begin``.
            limits: most tokens, per request.
            samplings: how to draw, per request; ``None``: the most probable tokens.

        Raises:
            UnknownRequestError: no such request.
        """
