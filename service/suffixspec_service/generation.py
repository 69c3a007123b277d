"""One call's generations, from admission to the record that monitoring counts.

Every door that generates goes through here, so that limits, sessions, cancellation and counting
are the same for HTTP and gRPC.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from suffixspec_engine.metrics import RequestMetrics
from suffixspec_engine.request import FinishReason, StepEvent
from suffixspec_engine.streams import RequestStream
from suffixspec_index.errors import ConfigError
from suffixspec_service.callers import Tenant
from suffixspec_service.endings import Ending
from suffixspec_service.logs import get_logger
from suffixspec_service.monitor import Piece, RequestRecord
from suffixspec_service.monitor.pieces import StepSeen, pieces_of
from suffixspec_service.spaces import Space
from suffixspec_service.tracing import record_span

if TYPE_CHECKING:
    from suffixspec_engine.grammar import GrammarSpec
    from suffixspec_engine.sampling import SamplingParams
    from suffixspec_service.runtime import Runtime

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """What is to be generated.

    Attributes:
        api: the door, as in :class:`~.monitor.RequestRecord`.
        request_id: names it; its choices are numbered behind it.
        prompt: ``(n,)`` int32.
        params: one per choice.
        session_name: the conversation, if the caller names it.
        prediction: ``(m,)`` int32, expected as output.
        max_draft: most draft tokens per step; ``None``: as configured, 0: no speculation.
        priority: see :meth:`~suffixspec_engine.engine.Engine.submit`.
        grammar: what the output must obey.
        adapter: see :class:`~suffixspec_index.namespaces.NamespaceKey`.
    """

    api: str
    request_id: str
    prompt: NDArray[np.int32]
    params: Sequence[SamplingParams]
    session_name: str | None = None
    prediction: NDArray[np.int32] | None = None
    max_draft: int | None = None
    priority: float = 1.0
    grammar: GrammarSpec | None = None
    adapter: str = ""


@dataclass(slots=True)
class _Choice:
    """One generation while it runs."""

    index: int
    stream: RequestStream
    session_id: str
    text: list[str] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    steps: list[StepSeen] = field(default_factory=list)
    last_at: float = 0.0
    finish_reason: FinishReason | None = None

    @property
    def goes_on(self) -> bool:
        """Whether it has ended so that its session may be continued: the first choice's is."""
        return self.finish_reason in ("stop", "length") and self.index == 0

    @property
    def metrics(self) -> RequestMetrics:
        """Counts and times."""
        return self.stream.request.metrics


class Generation:
    """Generates within an ``async with`` block; leaving it early cancels what still runs.

    ::

        async with Generation(runtime, tenant, request) as generation:
            async for choice, event in generation:
                ...

    Entering raises what :meth:`~suffixspec_engine.engine.Engine.submit` and
    :meth:`~.admission.Admission.enter` raise; nothing is changed then. A generation counts against
    the tenant's limits until the engine has really ended it.
    """

    def __init__(self, runtime: Runtime, tenant: Tenant, request: GenerationRequest) -> None:
        if runtime.engine is None:
            raise ConfigError("model: this service drafts for other engines and runs no model")
        self._runtime, self._tenant, self.request = runtime, tenant, request
        self._engine = runtime.engine
        self._space: Space | None = None
        self._choices: list[_Choice] = []
        self._events: asyncio.Queue[tuple[int, StepEvent]] = asyncio.Queue()
        self._pumps: list[asyncio.Task[None]] = []
        self._began = 0.0
        self._began_at = 0.0
        self._open = 0

    async def __aenter__(self) -> Generation:
        self._began, self._began_at = time.perf_counter(), time.time()
        count = len(self.request.params)
        self._runtime.admission.enter(self._tenant, count)
        try:
            loop = asyncio.get_running_loop()
            if self.request.session_name is None:
                await self._runtime.endings.wait(self._tenant.name)
            await self._runtime.in_pool(self._submit, loop)
        except BaseException:
            for choice in self._choices:  # the others were refused
                choice.stream.cancel()
            if not self._choices:
                self._runtime.admission.leave(self._tenant, count)
            else:
                self._runtime.admission.leave(self._tenant, count - len(self._choices))
                self._start_pumps()
            raise
        self._start_pumps()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for choice in self._choices:
            if choice.finish_reason is None:
                self._runtime.cancel(choice.stream)

    def __aiter__(self) -> AsyncIterator[tuple[int, StepEvent]]:
        return self._merged()

    @property
    def session_id(self) -> str:
        """The session of the first choice."""
        return self._choices[0].session_id

    @property
    def prompt_tokens(self) -> int:
        """Of the prompt, which all choices share."""
        return len(self.request.prompt)

    @property
    def metrics(self) -> list[RequestMetrics]:
        """Counts and times per choice; complete when the choice has ended."""
        return [choice.metrics for choice in self._choices]

    def _submit(self, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread: the engine's lock may be held while it takes in other prompts."""
        request = self.request
        space = self._space = self._runtime.spaces.of(self._tenant, request.adapter)
        session = self._runtime.sessions.find(space.key, request.prompt, request.session_name)
        for index, params in enumerate(request.params):
            stream = self._engine.submit(
                request.prompt,
                params,
                request_id=f"{request.request_id}-{index}" if index else request.request_id,
                session_id=session,
                namespace=space.key.digest,
                prediction=request.prediction,
                max_draft=request.max_draft,
                priority=request.priority,
                proposer=space.proposer if request.prediction is None else space.predictive,
                grammar=request.grammar,
                loop=loop,
            )
            self._choices.append(_Choice(index, stream, session))

    def _start_pumps(self) -> None:
        self._open = len(self._choices)
        for choice in self._choices:
            task = asyncio.create_task(self._pump(choice))
            self._runtime.keep(task)
            self._pumps.append(task)

    async def _pump(self, choice: _Choice) -> None:
        """Forward one choice's events; goes on to its end also when nobody reads any more."""
        choice.last_at = self._began
        ending: Ending | None = None
        async for event in choice.stream:
            now = time.perf_counter()
            if event.token_ids:
                choice.gaps.append(now - choice.last_at)
                choice.last_at = now
                if self._runtime.monitor.keeps_text:
                    seen = (event.token_ids, event.sources, event.draft, event.accepted)
                    choice.steps.append(StepSeen.of(*seen))
            choice.text.append(event.text)
            choice.finish_reason = event.finish_reason
            if choice.goes_on:
                ending = self._runtime.endings.begin(self._tenant.name)
            self._events.put_nowait((choice.index, event))
        try:
            await self._ended(choice, ending)
        finally:
            if ending is not None:
                ending.remembered()

    async def _merged(self) -> AsyncIterator[tuple[int, StepEvent]]:
        open_choices = len(self._choices)
        while open_choices:
            index, event = await self._events.get()
            open_choices -= event.finish_reason is not None
            yield index, event

    async def _ended(self, choice: _Choice, ending: Ending | None) -> None:
        metrics = choice.metrics
        computed = metrics.prompt_tokens - metrics.cached_tokens + metrics.output_tokens
        self._runtime.admission.charge(self._tenant, computed)
        self._runtime.admission.leave(self._tenant)
        await self._runtime.in_pool(self._record, choice, ending)

    def _record(self, choice: _Choice, ending: Ending | None) -> None:
        """In a thread: a long context is hashed, and text is made of tokens once more."""
        space, metrics = self._space, choice.metrics
        assert space is not None
        output = choice.stream.request.output()
        if ending is not None:
            self._runtime.sessions.remember(
                space.key, choice.session_id, self.request.prompt, output.token_ids
            )
            ending.remembered()
        record = RequestRecord(
            tenant=self._tenant.name,
            namespace=str(space.key),
            model=space.key.model,
            api=self.request.api,
            request_id=output.request_id,
            session_id=choice.session_id,
            started_at=self._began_at,
            ttft_s=metrics.first_token_at - self._began if metrics.first_token_at else None,
            duration_s=metrics.finished_at - self._began,
            prompt_tokens=metrics.prompt_tokens,
            cached_tokens=metrics.cached_tokens,
            output_tokens=metrics.output_tokens,
            steps=metrics.steps,
            steps_with_draft=metrics.draft_steps,
            drafted=metrics.drafted,
            accepted=metrics.accepted,
            accepted_per_position=tuple(metrics.accepted_per_position),
            by_source={
                name: (counts.drafted, counts.accepted)
                for name, counts in metrics.by_source.items()
            },
            status=str(choice.finish_reason),
            pieces=self._pieces(choice) if self._runtime.monitor.keeps_text else None,
            gaps_s=tuple(choice.gaps[1:]),
        )
        self._runtime.monitor.observe(record)
        record_span(record)
        _log.info(
            "generated",
            api=record.api,
            tenant=record.tenant,
            request_id=record.request_id,
            session_id=record.session_id,
            status=record.status,
            prompt_tokens=record.prompt_tokens,
            cached_tokens=record.cached_tokens,
            output_tokens=record.output_tokens,
            steps=record.steps,
            drafted=record.drafted,
            accepted=record.accepted,
            seconds=round(record.duration_s, 4),
        )

    def _pieces(self, choice: _Choice) -> tuple[Piece, ...]:
        end = self.request.prompt[-8:].tolist()
        return pieces_of(end, choice.steps, self._engine.detokenizer)
