"""The engine's step: propose, run the model once over all requests, verify, keep what is true.

A request's row in a step is some of its own tokens — a piece of its prompt, or the last token it
gained — and, where they reach the end of its context, its draft. So the last piece of a prompt
already carries a draft behind it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from suffixspec_engine.attention import PackedRow
from suffixspec_engine.cache import KeyValueCache
from suffixspec_engine.depth import EngineDepth
from suffixspec_engine.engine_config import EngineConfig, verification_method
from suffixspec_engine.graphs import make_runner
from suffixspec_engine.metrics import EngineMetrics
from suffixspec_engine.models import TargetModel
from suffixspec_engine.profiling import time_small_steps
from suffixspec_engine.proposing import NOTHING, Proposed, Proposing
from suffixspec_engine.request import FinishReason, Request, StepEvent
from suffixspec_engine.sampling import Verdict, verify_batch
from suffixspec_engine.scheduler import Scheduler
from suffixspec_engine.text import held_back
from suffixspec_index.depth import StepCost
from suffixspec_index.draft import Draft, Source
from suffixspec_index.speculative_config import SpeculativeConfig

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Row:
    """A request's part in a step: ``own`` tokens of its context, then the draft's.

    ``verified``: its own tokens reach the end of the context, so there is something to decide.
    """

    request: Request
    own: list[int]
    proposed: Proposed
    verified: bool
    packed: PackedRow

    @property
    def draft(self) -> Draft:
        return self.proposed.draft

    @property
    def token_ids(self) -> list[int]:
        drafted: list[int] = self.draft.token_ids.tolist()
        return self.own + drafted

    @property
    def logit_rows(self) -> NDArray[np.int64]:
        """Columns of the packed row: the last own token's, then the draft's."""
        last = self.packed.start + len(self.own) - 1
        return np.arange(last, last + 1 + len(self.draft)) if self.verified else np.arange(0)


class EngineCore:
    """Requests, caches and the step. Not thread-safe: :class:`~.engine.Engine` guards it.

    Attributes:
        scheduler, cache, metrics, depth: as their classes say.
    """

    def __init__(
        self,
        model: TargetModel,
        config: EngineConfig,
        speculative: SpeculativeConfig | None = None,
        step_cost: StepCost | None = None,
    ) -> None:
        self.model, self.config = model, config
        self.depth = EngineDepth(speculative, step_cost)
        pooled = config.attention == "flex"
        if config.attention == "auto":
            pooled = model.device.type == "cuda"
        self.cache = KeyValueCache(
            model.shapes,
            dtype=model.dtype,
            device=model.device,
            max_bytes=config.cache_bytes,
            pooled=pooled,
        )
        self._runner = make_runner(model, self.cache.pool)
        self.scheduler = Scheduler(config, self.cache)
        self.metrics = EngineMetrics()
        self._method = verification_method(speculative)
        self._proposing = Proposing(
            model.vocab_size,
            self._method,
            draws=speculative is not None and speculative.draft_sample_method == "probabilistic",
        )

    def time_small_steps(self) -> None:
        """Time some steps for the choice of depths, where there is one and nothing is known yet.
        Not where all requests are attended to at once: there sizes are compiled as they come, and
        small ones cost alike."""
        if self.depth.wants_times and self.cache.pool is None:
            self.depth.cost.expect(time_small_steps(self.model))

    def admit(self) -> None:
        """Drop what was cancelled and start what there is room for."""
        for request in [*self.scheduler.running, *self.scheduler.waiting]:
            if request.cancelled:
                self._end(request, "cancelled")
        for request in self.scheduler.admit():
            request.metrics.started_at = time.perf_counter()
            with self.metrics.seconds.measure("propose"):
                self._proposing.begin(request)

    def step(self) -> None:
        """One forward pass, for all running requests. Does nothing where there are none.

        Cost: the model's, and O(tokens · layers) calls around it.
        """
        seconds = self.metrics.seconds
        proposing, began = seconds.propose, time.perf_counter()
        with seconds.measure("total"):
            rows = self._rows(self.scheduler.plan())
            if not rows:
                return
            self.metrics.steps += 1
            verified = [row for row in rows if row.verified]
            start = time.perf_counter()
            logits = self._runner.run(
                [row.packed for row in rows],
                [token for row in rows for token in row.token_ids],
                np.concatenate([row.logit_rows for row in rows]),
            )
            self._share_time(rows, time.perf_counter() - start)
            with seconds.measure("sample"):
                verdicts = self._verify(logits, verified)
            for row in rows:
                if not row.verified:
                    _keep(row, ())
            lengths = sum(row.packed.past for row in rows)
            self._commit(verified, verdicts, seconds.propose - proposing)
        self.depth.observe(
            tokens=sum(row.packed.count for row in rows),
            context_tokens=lengths,
            requests=len(rows),
            seconds=time.perf_counter() - began - (seconds.propose - proposing),
        )

    def fail_running(self, error: Exception) -> None:
        """A step raised: its requests end, and their caches, which may be half written, go."""
        _log.error("a step failed; its requests end with an error", exc_info=error)
        self.depth.abandon()
        for request in list(self.scheduler.running):
            self._end(request, "error", stop_reason=str(error), keep_cache=False)

    def fail_all(self, reason: str) -> None:
        """End every request, waiting ones too."""
        for request in [*self.scheduler.running, *self.scheduler.waiting]:
            self._end(request, "error", stop_reason=reason)

    def _rows(self, plan: Sequence[tuple[Request, int]]) -> list[_Row]:
        ending = [request for request, count in plan if count == request.uncomputed]
        with self.metrics.seconds.measure("propose"):
            proposed = self.depth.draft(
                self._proposing,
                ending,
                tokens=sum(count for _, count in plan),
                context_tokens=sum(request.cache.length for request, _ in plan if request.cache),
            )
            drafts = dict(zip(ending, proposed, strict=True))
            self.metrics.proposer_failures = self._proposing.failures
        rows: list[_Row] = []
        column = 0
        for request, count in plan:
            assert request.cache is not None
            own = request.next_tokens(count)
            given = drafts.get(request, NOTHING)
            draft = given.draft
            past = request.cache.length
            tokens = len(own) + len(draft)
            request.cache.reserve(past + tokens)
            packed = PackedRow(request.cache, column, tokens, past, _parents(len(own), draft))
            rows.append(_Row(request, own, given, request in drafts, packed))
            column += tokens
        return rows

    def _share_time(self, rows: Sequence[_Row], elapsed: float) -> None:
        """Prompt tokens' share of a step is prefill, the others' is verification."""
        tokens = sum(row.packed.count for row in rows)
        prompt = sum(len(row.own) for row in rows if not row.request.generating)
        self.metrics.seconds.prefill += elapsed * prompt / tokens
        self.metrics.seconds.verify += elapsed * (tokens - prompt) / tokens

    def _verify(self, logits: Tensor, rows: Sequence[_Row]) -> list[Verdict]:
        return verify_batch(
            logits,
            [row.draft for row in rows],
            [row.request.state for row in rows],
            [row.request.params for row in rows],
            self._method,
            draft_probs={
                i: row.proposed.probs
                for i, row in enumerate(rows)
                if row.proposed.probs is not None
            },
            grammars={
                i: row.request.grammar
                for i, row in enumerate(rows)
                if row.request.grammar is not None
            },
        )

    def _commit(self, rows: Sequence[_Row], verdicts: Sequence[Verdict], proposing: float) -> None:
        """Keep what was accepted, tell proposers and callers, end what has ended. ``proposing``:
        seconds that making the drafts took."""
        gained: list[tuple[Request, Sequence[int]]] = []
        texts: list[str] = []
        for row, verdict in zip(rows, verdicts, strict=True):
            request = row.request
            _keep(row, verdict.accepted)
            request.metrics.count(row.draft, verdict.accepted, len(verdict.token_ids))
            self.metrics.counts.count(row.draft, verdict.accepted, len(verdict.token_ids))
            if verdict.token_ids and not request.metrics.first_token_at:
                request.metrics.first_token_at = time.perf_counter()
            request.state.commit(verdict, request.grammar)
            texts.append(_certain_text(request, verdict.finished))
            gained.append((request, verdict.token_ids))
        with self.metrics.seconds.measure("propose"):
            self._proposing.advance(gained)
            self.depth.learn(gained, propose_seconds=proposing)
        for row, verdict, text in zip(rows, verdicts, texts, strict=True):
            self._tell(row, verdict, text)

    def _tell(self, row: _Row, verdict: Verdict, text: str) -> None:
        request = row.request
        drafted = [Source(int(row.draft.sources[node])) for node in verdict.accepted]
        added = len(verdict.token_ids) - len(drafted)
        sources = (*drafted, *[Source.NONE] * added)
        request.sources.extend(int(source) for source in sources)
        request.logprobs.extend(verdict.logprobs or ())
        event = StepEvent(
            request_id=request.request_id,
            token_ids=verdict.token_ids,
            sources=sources,
            text=text,
            logprobs=verdict.logprobs,
            finish_reason=verdict.finish_reason,
            stop_reason=verdict.stop_reason,
            draft=row.draft if len(row.draft) else None,
            accepted=tuple(verdict.accepted),
        )
        if verdict.finish_reason is None:
            request.emit(event)
        else:
            failed = verdict.finish_reason == "error"
            self._close(request, verdict.finish_reason, verdict.stop_reason, keep=not failed)
            request.emit(event)

    def _end(
        self,
        request: Request,
        reason: FinishReason,
        *,
        stop_reason: str | None = None,
        keep_cache: bool = True,
    ) -> None:
        """End a request from outside a step."""
        self._close(request, reason, stop_reason, keep=False, keep_cache=keep_cache)
        text = request.state.text[request.emitted :]
        request.emitted += len(text)
        request.emit(
            StepEvent(
                request.request_id, (), (), text, finish_reason=reason, stop_reason=stop_reason
            )
        )

    def _close(
        self,
        request: Request,
        reason: FinishReason,
        stop_reason: int | str | None,
        *,
        keep: bool,
        keep_cache: bool = True,
    ) -> None:
        """Give back what a request holds. ``keep``: its output is worth remembering."""
        request.finish_reason, request.stop_reason = reason, stop_reason
        request.metrics.finished_at = time.perf_counter()
        self.scheduler.remove(request)
        self.depth.forget(request)
        with self.metrics.seconds.measure("propose"):
            self._proposing.finish(request, keep=keep)
        if request.cache is not None:
            self.metrics.prompt_tokens += len(request.prompt)
            self.metrics.cached_tokens += request.metrics.cached_tokens
            if keep_cache:
                self.cache.close(request.cache)
            else:
                self.cache.drop(request.cache)
            request.cache = None
        self.metrics.requests[reason] = self.metrics.requests.get(reason, 0) + 1


def _parents(own: int, draft: Draft) -> NDArray[np.int32] | None:
    """Parents for a row of ``own`` tokens and a draft; ``None`` for a path."""
    if not len(draft) or draft.is_path:
        return None
    before = np.arange(-1, own - 2, dtype=np.int32)
    return np.concatenate([before, draft.parents + np.int32(own - 1)])


def _keep(row: _Row, accepted: Sequence[int]) -> None:
    """Own tokens and accepted draft tokens stay in the cache."""
    own = len(row.own)
    row.packed.cache.commit(row.token_ids, [*range(own), *(own + node for node in accepted)])


def _certain_text(request: Request, finished: bool) -> str:
    """The text that can be given out: what may be the beginning of a stop string waits."""
    text = request.state.text
    end = len(text) if finished else len(text) - held_back(text, request.params.stop)
    certain = text[request.emitted : end]
    request.emitted = max(request.emitted, end)
    return certain
