"""What a costly proposer may be expected to gain, before it is asked."""

from __future__ import annotations

from dataclasses import dataclass

_FIRST_GUESS = 0.7  # of a draft model's acceptance, before anything is known
_OVERALL_WEIGHT, _OVERALL_MEMORY = 10.0, 2000.0
_REQUEST_WEIGHT, _REQUEST_MEMORY = 10.0, 40.0


@dataclass(slots=True)
class Acceptance:
    """A running estimate of the chance that one more drafted token is accepted.

    It fades towards ``prior`` with every step, asked or not, so that a proposer that was bad for a
    while is tried again.

    Attributes:
        weight: tokens that the prior counts for.
        memory: steps after which an observation counts 1/e.
    """

    weight: float
    memory: float
    tested: float = 0.0
    accepted: float = 0.0

    @staticmethod
    def overall() -> Acceptance:
        """Of a proposer, over all requests."""
        return Acceptance(_OVERALL_WEIGHT, _OVERALL_MEMORY)

    @staticmethod
    def of_request() -> Acceptance:
        """Of a proposer for one request."""
        return Acceptance(_REQUEST_WEIGHT, _REQUEST_MEMORY)

    def rate(self, prior: float = _FIRST_GUESS) -> float:
        """The estimate, in (0, 1)."""
        return (self.accepted + self.weight * prior) / (self.tested + self.weight)

    def observe(self, tested: int, accepted: int) -> None:
        """A step has passed; ``tested`` drafted tokens were decided about (0: it was not asked)."""
        fade = 1.0 - 1.0 / self.memory
        self.tested = self.tested * fade + tested
        self.accepted = self.accepted * fade + accepted


def best_length(rate: float, limit: int, token_cost: float, fixed_cost: float) -> tuple[int, float]:
    """How many tokens to let a proposer draft, and the tokens per unit of time that this gives.

    A step gains 1 token and ``rate + rate**2 + …`` drafted ones, and costs 1 and the drafting. The
    quotient rises to one maximum and falls behind it. O(length).

    Args:
        rate: chance that one more token is accepted, in (0, 1).
        limit: most tokens.
        token_cost, fixed_cost: of drafting, in steps of the target model.
    """
    best, at = 1.0, 0
    gain, chance = 1.0, 1.0
    for length in range(1, limit + 1):
        chance *= rate
        gain += chance
        value = gain / (1.0 + fixed_cost + token_cost * length)
        if value > best:
            best, at = value, length
        elif at:
            break
    return at, best
