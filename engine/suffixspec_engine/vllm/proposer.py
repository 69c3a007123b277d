"""The proposer that vLLM loads as ``custom_class``.

Whatever happens in here must not stop vLLM: a draft longer than allowed, an id outside the
vocabulary, ``None`` or an exception would. So everything that leaves is checked, and a fault
costs drafts, is logged, and nothing else.
"""

from __future__ import annotations

import atexit
import logging
import time
from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suffixspec_engine.vllm.adapters import Adapters, namespace_of
from suffixspec_engine.vllm.depth import StepDepth
from suffixspec_engine.vllm.identify import BatchFacts, install
from suffixspec_engine.vllm.ranks import is_output_rank
from suffixspec_engine.vllm.rows import LiveRequest, Row, RowTracker
from suffixspec_engine.vllm.settings import PluginSettings
from suffixspec_index.depth import BatchSizeSchedule
from suffixspec_index.log import open_log
from suffixspec_index.prefixes import SessionPrefixes
from suffixspec_index.sharing import Sharing

_log = logging.getLogger(__name__)
_NOTHING = np.empty(0, np.int32)
_LOG_EVERY = 60.0  # seconds between messages about the same kind of fault


class SuffixSpecProposer:
    """Drafts for vLLM's batches; made and called by vLLM's model runner, in one thread.

    Args:
        vllm_config: vLLM's ``VllmConfig``.

    Raises:
        ConfigError: our part of ``additional_config`` is wrong; vLLM then does not start.
    """

    def __init__(self, vllm_config: Any) -> None:
        self.settings = PluginSettings.from_vllm(vllm_config)
        config = self.settings.speculative
        self.num_speculative_tokens = config.num_speculative_tokens
        self.max_model_len = int(vllm_config.model_config.max_model_len)
        self.faults = 0
        self.sharing: Sharing | None = None
        self._vocab_size = int(vllm_config.model_config.get_vocab_size())
        self._drafts_here = is_output_rank()
        if self.settings.log is not None and self._drafts_here:
            self.sharing = Sharing(open_log(self.settings.log))
            atexit.register(self.sharing.close)
        self._adapters = Adapters(
            self.settings,
            namespace_of(self.settings, vllm_config),
            vocab_size=self._vocab_size,
            share=None if self.sharing is None else self.sharing.attach,
        )
        self._tracker = RowTracker()
        self._prefixes = SessionPrefixes(self.settings.max_sessions)
        self._schedule = BatchSizeSchedule(config)
        self._depth = StepDepth() if config.dynamic else None
        self._numbers = count(1)
        self._facts: BatchFacts | None = None
        self._logged = -_LOG_EVERY
        if self.settings.identify and self._drafts_here:
            install(type(self))

    def load_model(self, *_args: object, **_kwargs: object) -> None:
        """vLLM calls this once its model is there: kernels are compiled now, not in a request."""
        started = time.perf_counter()
        self._adapters.warm_up()
        _log.info("suffixspec: kernels ready in %.1f s", time.perf_counter() - started)

    def identify(self, facts: BatchFacts | None) -> None:
        """Who the rows of the next :meth:`propose` are; ``None``: not known."""
        self._facts = facts

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: NDArray[np.int32],
        token_ids_cpu: NDArray[np.int32],
        slot_mappings: object = None,  # unused
    ) -> list[list[int]]:
        """Draft for every row that gained tokens in this step.

        Args:
            sampled_token_ids: per row, what it gained; empty while its prompt is computed.
            num_tokens_no_spec: ``(rows,)`` lengths, the gained tokens included.
            token_ids_cpu: ``(max_num_seqs, max_model_len)`` int32, prompt and output of each row.
            slot_mappings: unused; vLLM hands it over.

        Returns:
            Per row a list of at most ``num_speculative_tokens`` ids.
        """
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        if not self._drafts_here:
            return drafts
        facts, self._facts = self._facts, None
        try:
            rows = self._rows(sampled_token_ids, num_tokens_no_spec, token_ids_cpu, facts)
            requests = self._follow(rows, facts)
            for row, draft in zip(rows, self._draft(rows, requests), strict=True):
                drafts[row.index] = draft
        except Exception:
            self._fault()
        return drafts

    def _rows(
        self,
        sampled: Sequence[Sequence[int]],
        lengths: NDArray[np.int32],
        token_ids: NDArray[np.int32],
        facts: BatchFacts | None,
    ) -> list[Row]:
        """The rows that have something to go on."""
        rows = []
        for i, gained in enumerate(sampled):
            length = int(lengths[i])
            if not len(gained) or length > token_ids.shape[1]:
                continue
            known = facts.row(i) if facts is not None else {}
            rows.append(Row(i, token_ids[i, :length], len(gained), **known))
        return rows

    def _follow(self, rows: Sequence[Row], facts: BatchFacts | None) -> list[LiveRequest]:
        """Every row's request: begun if it is new, told what it gained if not."""
        if facts is not None:
            for request in self._tracker.live:
                if request.request_id in facts.finished:
                    self._end(request)
        found = self._tracker.match(rows)
        for ended in self._tracker.ended():
            self._end(ended)
        gained = [
            (request, request.extend(row.tokens))
            for row, request in zip(rows, found, strict=True)
            if request is not None
        ]
        self._adapters.advance(gained)
        if self._depth is not None:
            numbers = [request.number for request, _ in gained]
            new = len(rows) - len(gained)
            self._depth.learn(
                [*numbers, *(-1 - i for i in range(new))],  # new ones have no number yet
                [*(tokens for _, tokens in gained), *([_NOTHING] * new)],
                None if facts is None else facts.scheduled_tokens,
            )
        return [
            self._begin(row) if request is None else request
            for row, request in zip(rows, found, strict=True)
        ]

    def _begin(self, row: Row) -> LiveRequest:
        start = len(row.tokens) - row.gained
        # A preempted request comes back with what it had said as part of its prompt.
        prompt_length = start if row.prompt_length is None else min(row.prompt_length, start)
        busy = {request.session_id for request in self._tracker.live}
        session = self._prefixes.find(row.tokens[:start], scope=row.adapter, busy=busy)
        number = next(self._numbers)
        request = LiveRequest(
            number=number,
            handle=0,
            session_id=session or f"session-{number}",
            row=row.index,
            request_id=row.request_id,
            adapter=row.adapter,
            prompt_length=prompt_length,
        )
        request.extend(row.tokens)
        proposer = self._adapters.proposer(row.adapter)
        request.handle = proposer.begin(request.session_id, request.tokens[:start])
        self._tracker.add(request)
        proposer.advance(request.handle, request.tokens[start:])
        return request

    def _end(self, request: LiveRequest) -> None:
        """Its output becomes part of what later requests are matched against."""
        self._drop(request)
        self._adapters.proposer(request.adapter).finish(request.handle)
        forgotten = self._prefixes.remember(
            request.session_id,
            request.tokens,
            prompt_length=request.prompt_length,
            scope=request.adapter,
        )
        for session in forgotten:
            self._adapters.end_session(session)

    def _drop(self, request: LiveRequest) -> None:
        self._tracker.drop(request)
        if self._depth is not None:
            self._depth.forget(request.number)

    def _draft(self, rows: Sequence[Row], requests: Sequence[LiveRequest]) -> list[list[int]]:
        most = self._schedule.tokens_at(len(rows))
        # One token is always vLLM's own, so a draft ends one short of the longest context.
        limits = [max(min(most, self.max_model_len - len(row.tokens) - 1), 0) for row in rows]
        if self._depth is None:
            drafts = self._adapters.propose(requests, np.array(limits, np.int32))
        else:
            drafts = self._depth.propose(
                [request.number for request in requests],
                [request.length for request in requests],
                limits,
                lambda bounds, least: self._adapters.propose(requests, bounds, least),
            )
        return [
            self._sound(draft.token_ids.tolist(), limit)  # Python integers: vLLM takes no others
            for draft, limit in zip(drafts, limits, strict=True)
        ]

    def _sound(self, draft: list[int], limit: int) -> list[int]:
        draft = draft[:limit]
        for i, token in enumerate(draft):
            if not 0 <= token < self._vocab_size:
                return draft[:i]
        return draft

    def _fault(self) -> None:
        """Log, and begin again with nothing: what half a step left behind may be wrong."""
        self.faults += 1
        now = time.monotonic()
        if now - self._logged >= _LOG_EVERY:
            self._logged = now
            _log.exception("suffixspec: no drafts in this step (fault %d)", self.faults)
        for request in self._tracker.live:
            self._drop(request)
            try:
                self._adapters.proposer(request.adapter).finish(request.handle, keep=False)
            except Exception as error:  # it is gone already
                _log.debug("suffixspec: request %s: %s", request.handle, error)
