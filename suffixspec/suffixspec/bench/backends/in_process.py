"""Backend: an engine in this process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from suffixspec.bench.backends.base import Sampling
from suffixspec.bench.results import RequestResult
from suffixspec.bench.speculation import SpeculationFigures
from suffixspec.bench.workload import BenchRequest
from suffixspec_index.errors import SuffixSpecError

if TYPE_CHECKING:
    from suffixspec_engine.engine import Engine
    from suffixspec_engine.sampling import SamplingParams


class InProcessBackend:
    """Requests go to an engine, whose sessions are the workload's.

    Args:
        engine: closed by :meth:`aclose`.
    """

    def __init__(self, engine: Engine, sampling: Sampling) -> None:
        self._engine, self._sampling = engine, sampling

    async def send(self, request: BenchRequest) -> RequestResult:
        """See :class:`Backend`."""
        result = RequestResult(request, time.perf_counter())
        token_ids: list[int] = []
        try:
            stream = self._engine.submit(
                request.prompt, self._params(request), session_id=request.session
            )
            async with stream:
                async for event in stream:
                    if event.token_ids:
                        result.arrivals.append(time.perf_counter())
                    token_ids += event.token_ids
                    result.text += event.text
                    if event.finish_reason in ("error", "cancelled"):
                        result.error = f"{event.finish_reason}: {event.stop_reason}"
        except SuffixSpecError as error:
            result.error = str(error)
            result.ended = time.perf_counter()
            return result
        result.ended = time.perf_counter()
        result.token_ids = tuple(token_ids)
        result.output_tokens = len(token_ids)
        result.prompt_tokens = stream.request.metrics.prompt_tokens or len(stream.request.prompt)
        result.cached_tokens = stream.request.metrics.cached_tokens
        return result

    async def speculation(self) -> SpeculationFigures:
        """See :class:`Backend`."""
        counts = self._engine.metrics.counts
        return SpeculationFigures(
            counts.draft_steps,
            counts.drafted,
            counts.accepted,
            tuple(counts.accepted_per_position),
            counts.steps,
            counts.output_tokens,
        )

    async def aclose(self) -> None:
        """See :class:`Backend`."""
        self._engine.close()

    def _params(self, request: BenchRequest) -> SamplingParams:
        from suffixspec_engine.sampling import SamplingParams

        asked = self._sampling
        return SamplingParams(
            temperature=asked.temperature or 0.0,
            top_p=1.0 if asked.top_p is None else asked.top_p,
            top_k=asked.top_k or 0,
            min_p=asked.min_p or 0.0,
            seed=asked.seed,
            max_tokens=request.max_tokens,
            ignore_eos=asked.ignore_eos,
        )
