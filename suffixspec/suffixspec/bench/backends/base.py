"""The contract of who serves requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from suffixspec.bench.results import RequestResult
from suffixspec.bench.speculation import SpeculationFigures
from suffixspec.bench.workload import BenchRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are chosen, the same for every request.

    Attributes:
        temperature, top_p, top_k, min_p: as in OpenAI's and vLLM's APIs; ``None``: the server's
            own (in this process: greedy, all tokens).
        seed: of a request; ``None``: none is given.
        ignore_eos: every output has its full length.
    """

    temperature: float | None = 0.0
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    ignore_eos: bool = False

    @property
    def repeatable(self) -> bool:
        """Whether the same request should be answered alike: greedy, or seeded."""
        return self.temperature == 0 or self.seed is not None


class Backend(Protocol):
    """Serves requests, many at once, within one event loop."""

    async def send(self, request: BenchRequest) -> RequestResult:
        """Serve one request. What goes wrong with it is told in the result, not raised."""

    async def speculation(self) -> SpeculationFigures | None:
        """Counts since it began; ``None`` where they are not told."""

    async def aclose(self) -> None:
        """Give back what it holds. Requests under way end."""
