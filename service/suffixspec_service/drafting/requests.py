"""The requests of leases: begun, advanced, drafted for, finished. Whoever calls holds the lease's
lock, and has checked what concerns the lease as a whole."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.draft import Draft, DraftBatch
from suffixspec_index.errors import CapacityError, InputError, OutOfStepError, TooLargeError
from suffixspec_index.proposers.base import Proposer
from suffixspec_index.proposers.requests import as_limits
from suffixspec_index.tokens import as_token_array
from suffixspec_service.drafting.acceptance import Acceptance, as_paths
from suffixspec_service.drafting.checks import check_count, check_name, check_request_number
from suffixspec_service.drafting.config import DraftingConfig
from suffixspec_service.drafting.leases import Lease, LeaseTable, LiveRequest, rows_of
from suffixspec_service.drafting.messages import NO_TOKENS, NewRequest, Step, Tokens
from suffixspec_service.drafting.records import Totals, record_of
from suffixspec_service.drafting.sessions import HeldSessions, SessionKey, proposer_session
from suffixspec_service.monitor.records import RequestRecord

_NO_ROWS = np.zeros(1, np.int64)


class Requests:
    """See the module docstring; arguments as for :class:`~.drafting.Drafting`."""

    def __init__(
        self,
        config: DraftingConfig,
        leases: LeaseTable,
        observe: Callable[[RequestRecord], None] | None,
        observe_propose: Callable[[float, int], None] | None,
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._leases = leases
        self._observe = observe
        self._observe_propose = observe_propose
        self._clock = clock
        self.sessions = HeldSessions(config.max_sessions, config.session_idle_seconds)
        self.totals = Totals()

    # -- beginning -----------------------------------------------------------------------------

    def check(self, lease: Lease, requests: Sequence[NewRequest]) -> list[Tokens]:
        """Check new requests; returns their whole prompts. Nothing is changed."""
        numbers = [request.request for request in requests]
        for number in numbers:
            check_request_number(number)
            if number in lease.requests:
                raise InputError(f"request: {number} is open already; finish it, or take another")
        if len(set(numbers)) < len(numbers):
            raise InputError(f"request: {numbers} names one twice; each needs a number of its own")
        return [self._prompt(lease, request) for request in requests]

    def begin(
        self, lease: Lease, requests: Sequence[NewRequest], prompts: Sequence[Tokens]
    ) -> None:
        """Begin checked requests, all or none."""
        begun: list[LiveRequest] = []
        keys = {(lease.space, request.session) for request in requests}
        new_sessions = [key for key in keys if not self.sessions.holds(key)]
        try:
            for request, prompt in zip(requests, prompts, strict=True):
                begun.append(self._begin(lease, request, prompt))
        except BaseException:
            for live in begun:
                self._drop(lease, live, keep=False)
            for key in new_sessions:
                self.forget(key)
            raise

    def _prompt(self, lease: Lease, request: NewRequest) -> Tokens:
        check_name(request.session, "session")
        if request.max_tokens is not None:
            check_count(request.max_tokens, "max_tokens")
        check_count(request.base, "base")
        vocab_size = lease.space.model.vocab_size
        prompt = as_token_array(request.prompt, vocab_size, field="prompt")
        if request.prediction is not None:
            as_token_array(request.prediction, vocab_size, field="prediction")
            self._check_context(len(request.prediction), "prediction")
        if request.base:
            prompt = np.concatenate([_base(lease, request), prompt])
        if not len(prompt):
            raise InputError(
                f"prompt: request {request.request} has none; a draft goes on from at least one "
                "token"
            )
        self._check_context(len(prompt), "prompt")
        return prompt

    def _check_context(self, tokens: int, field: str) -> None:
        check_context(tokens, self._config.max_context_tokens, field)

    def _begin(self, lease: Lease, request: NewRequest, prompt: Tokens) -> LiveRequest:
        space = lease.space
        predicted = request.prediction is not None and len(request.prediction) > 0
        proposer = space.predictive if predicted else space.proposer
        key = (space, request.session)
        evicted = self.sessions.begin(key, self._clock())
        if evicted is not None:
            self.forget(evicted)
        try:
            handle = proposer.begin(
                proposer_session(request.session),
                prompt,
                max_tokens=request.max_tokens,
                prediction=request.prediction if predicted else None,
            )
        except BaseException:
            self.sessions.finish(key, self._clock())
            raise
        live = LiveRequest(
            number=request.request,
            proposer=proposer,
            handle=handle,
            row=lease.ledger.open(len(prompt)),
            session=request.session,
            prompt_tokens=len(prompt),
            started_at=time.time(),
        )
        lease.requests[request.request] = live
        return live

    # -- stepping ------------------------------------------------------------------------------

    def check_gains(
        self, lease: Lease, requests: Sequence[LiveRequest], step: Step
    ) -> tuple[Tokens, NDArray[np.int64]]:
        """Check what requests gained: tokens and offsets. Nothing is changed."""
        if not requests and not step.lengths and not len(step.token_ids):
            return NO_TOKENS, _NO_ROWS
        lengths = np.asarray(step.lengths, np.int64)
        if len(lengths) != len(requests):
            raise InputError(
                f"advanced_lengths: {len(lengths)} numbers for {len(requests)} requests in "
                "advanced; send one for each"
            )
        offsets = np.zeros(len(requests) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        if (lengths < 0).any() or offsets[-1] != len(step.token_ids):
            raise InputError(
                f"advanced_lengths: they add up to {int(offsets[-1])}, but token_ids holds "
                f"{len(step.token_ids)}"
            )
        tokens = as_token_array(step.token_ids, lease.space.model.vocab_size, field="token_ids")
        if requests:
            longest = int((lease.ledger.contexts(rows_of(requests)) + lengths).max())
            self._check_context(longest, "token_ids")
        return tokens, offsets

    def advance(
        self,
        lease: Lease,
        requests: Sequence[LiveRequest],
        tokens: Tokens,
        offsets: NDArray[np.int64],
    ) -> None:
        """Advance requests by checked tokens."""
        for proposer, rows in by_proposer(requests):
            if rows is None:
                proposer.advance_batch([r.handle for r in requests], tokens, offsets)
                continue
            lengths = np.diff(offsets)[rows]
            kept = np.concatenate([tokens[offsets[row] : offsets[row + 1]] for row in rows])
            bounds = np.concatenate([[0], np.cumsum(lengths)])
            proposer.advance_batch([requests[row].handle for row in rows], kept, bounds)
        lease.ledger.advanced(rows_of(requests), tokens, offsets)

    def propose(
        self, lease: Lease, requests: Sequence[LiveRequest], limits: NDArray[np.int64] | None
    ) -> DraftBatch:
        """Draft for requests."""
        started = time.perf_counter()
        groups = by_proposer(requests)
        if len(groups) == 1:
            batch = groups[0][0].propose_batch([r.handle for r in requests], limits)  # type: ignore[arg-type]
        else:
            batch = _merged(groups, requests, limits)
        if self._observe_propose is not None and requests:
            self._observe_propose(time.perf_counter() - started, len(requests))
        if lease.paths_only and not batch_is_paths(batch):
            batch = as_paths(batch)
        lease.ledger.drafted(rows_of(requests), batch)
        return batch

    # -- finishing -----------------------------------------------------------------------------

    def finish(self, lease: Lease, request: LiveRequest, *, keep: bool, status: str) -> Acceptance:
        """End a request and tell the monitor. Where there is no room for its output it ends all the
        same, and the output is not remembered."""
        counts = self._drop(lease, request, keep=keep)
        self._leases.release(lease.tenant, 1)
        key = lease.space.key
        self.totals.add(key, counts)
        if self._observe is not None:
            self._observe(record_of(key, lease.id, request, counts, status))
        return counts

    def forget(self, key: SessionKey) -> None:
        """Forget a session's own memory."""
        space, session = key
        self.sessions.end(key)
        for proposer in {space.proposer, space.predictive}:
            proposer.end_session(proposer_session(session))

    def _drop(self, lease: Lease, request: LiveRequest, *, keep: bool) -> Acceptance:
        try:
            request.proposer.finish(request.handle, keep=keep)
        except CapacityError:
            request.proposer.finish(request.handle, keep=False)
        del lease.requests[request.number]
        self.sessions.finish((lease.space, request.session), self._clock())
        return lease.ledger.close(request.row)


def check_context(tokens: int, most: int, field: str) -> None:
    """Raise :class:`TooLargeError` where a context has too many tokens."""
    if tokens > most:
        raise TooLargeError(
            f"{field}: a context of {tokens} tokens is longer than the {most} allowed"
        )


def limits_of(step: Step) -> NDArray[np.int64] | None:
    """The limits of a step, one per proposed request; ``None``: as configured."""
    limits = step.limits
    n = len(step.proposed)
    if not len(limits):
        return None
    if len(limits) == 1:
        limits = [limits[0]] * n
    return as_limits(limits, n)


def by_proposer(requests: Sequence[LiveRequest]) -> list[tuple[Proposer, list[int] | None]]:
    """Proposers with the positions of their requests; ``None``: all of them. Requests without a
    prediction, which are nearly all, have the same."""
    proposers = {request.proposer for request in requests}
    if len(proposers) == 1:
        return [(proposers.pop(), None)]
    groups: dict[Proposer, list[int]] = {}
    for row, request in enumerate(requests):
        groups.setdefault(request.proposer, []).append(row)
    return list(groups.items())


def batch_is_paths(batch: DraftBatch) -> bool:
    """Whether no draft branches. O(nodes), vectorised."""
    n = len(batch.token_ids)
    starts = np.repeat(batch.offsets[:-1], np.diff(batch.offsets))
    return bool((batch.parents == np.arange(n) - starts - 1).all())


def _base(lease: Lease, request: NewRequest) -> Tokens:
    """The tokens that a prompt goes on from."""
    index = lease.space.index
    known = index.session_context(proposer_session(request.session)) if index is not None else None
    held = 0 if known is None else len(known)
    if known is None or held < request.base:
        raise OutOfStepError(
            f"base: {request.base} tokens, but the service holds {held} of session "
            f"{request.session!r}; send the whole prompt"
        )
    base = known[: request.base]
    if request.base_crc32 is not None and zlib.crc32(base.tobytes()) != request.base_crc32:
        raise OutOfStepError(
            f"base_crc32: the service holds other tokens of session {request.session!r}; send the "
            "whole prompt"
        )
    return base


def _merged(
    groups: Sequence[tuple[Proposer, list[int] | None]],
    requests: Sequence[LiveRequest],
    limits: NDArray[np.int64] | None,
) -> DraftBatch:
    """Drafts of several proposers in the order of the requests."""
    drafts: dict[int, Draft] = {}
    for proposer, rows in groups:
        assert rows is not None
        handles = [requests[row].handle for row in rows]
        batch = proposer.propose_batch(handles, None if limits is None else limits[rows])  # type: ignore[arg-type]
        drafts.update(zip(rows, batch, strict=True))
    return DraftBatch.of([drafts[row] for row in range(len(requests))])
