"""From an event loop to :class:`~.drafting.Drafting`: what is quick runs at once, the rest in a
thread, so that the loop is never held up by index work.

A step of a batch takes some hundred microseconds, less than the way to a thread and back when the
machine is busy. It goes to a thread only where it could wait or take long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from typing import TypeVar

from suffixspec_index.draft import DraftBatch
from suffixspec_index.errors import SuffixSpecError
from suffixspec_service.callers import Tenant
from suffixspec_service.drafting.acceptance import Acceptance
from suffixspec_service.drafting.drafting import Drafting
from suffixspec_service.drafting.messages import (
    DraftingStatistics,
    LeaseTerms,
    NewRequest,
    OpenLease,
    Step,
    Tokens,
)

_QUICK_TOKENS = 1024
"""Inserting so many tokens takes about half a millisecond."""

T = TypeVar("T")


class DraftingCalls:
    """The calls of :class:`~.drafting.Drafting`, which raise what those raise.

    Args:
        drafting: does the work.
        pool: threads for what takes longer.
    """

    def __init__(self, drafting: Drafting, pool: Executor) -> None:
        self.drafting = drafting
        self._pool = pool

    async def open(self, tenant: Tenant, wish: OpenLease) -> LeaseTerms:
        """Open a lease; where nobody waits for it any more, it is closed again."""
        return await self._in_thread(
            lambda: self.drafting.open(tenant, wish),
            undo=lambda terms: self.drafting.close(tenant, terms.lease),
        )

    def keep_alive(self, tenant: Tenant, lease: str) -> float:
        """Renew a lease."""
        return self.drafting.keep_alive(tenant, lease)

    async def close(self, tenant: Tenant, lease: str) -> int:
        """End a lease."""
        return await self._in_thread(lambda: self.drafting.close(tenant, lease))

    async def begin(self, tenant: Tenant, lease: str, requests: Sequence[NewRequest]) -> list[int]:
        """Begin requests; where nobody waits for it any more, they are ended again."""
        tokens = sum(len(request.prompt) + request.base for request in requests)
        if tokens <= _QUICK_TOKENS and not self.drafting.may_stall(tenant, lease, len(requests)):
            return self.drafting.begin(tenant, lease, requests)
        numbers = [request.request for request in requests]
        return await self._in_thread(
            lambda: self.drafting.begin(tenant, lease, requests),
            undo=lambda _: self.drafting.finish(tenant, lease, numbers, discard=True),
        )

    async def step(self, tenant: Tenant, lease: str, step: Step) -> DraftBatch:
        """Advance and draft."""
        rows = len(step.advanced)
        if len(step.token_ids) <= 4 * _QUICK_TOKENS and not self.drafting.may_stall(
            tenant, lease, rows
        ):
            return self.drafting.step(tenant, lease, step)
        return await self._in_thread(lambda: self.drafting.step(tenant, lease, step))

    async def finish(
        self, tenant: Tenant, lease: str, requests: Sequence[int], *, discard: bool = False
    ) -> list[Acceptance]:
        """End requests."""
        return await self._in_thread(
            lambda: self.drafting.finish(tenant, lease, requests, discard=discard)
        )

    async def end_sessions(self, tenant: Tenant, lease: str, sessions: Sequence[str]) -> None:
        """Forget sessions."""
        await self._in_thread(lambda: self.drafting.end_sessions(tenant, lease, sessions))

    async def ingest(self, tenant: Tenant, lease: str, sequences: Sequence[Tokens]) -> int:
        """Remember sequences."""
        return await self._in_thread(lambda: self.drafting.ingest(tenant, lease, sequences))

    async def purge(self, tenant: Tenant, lease: str) -> None:
        """Forget the namespace's contents."""
        await self._in_thread(lambda: self.drafting.purge(tenant, lease))

    async def statistics(self, tenant: Tenant, lease: str) -> DraftingStatistics:
        """Sizes and counts."""
        return await self._in_thread(lambda: self.drafting.statistics(tenant, lease))

    async def expire(self) -> int:
        """End what ran out."""
        return await self._in_thread(self.drafting.expire)

    async def close_all(self) -> None:
        """End everything."""
        await self._in_thread(self.drafting.close_all)

    async def _in_thread(
        self, call: Callable[[], T], *, undo: Callable[[T], object] | None = None
    ) -> T:
        """Make a call in a thread. One that runs cannot be stopped, so ``undo`` is called with its
        result, in a thread too, where whoever waits is cancelled."""
        future = self._pool.submit(call)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if undo is not None and not future.cancel():
                future.add_done_callback(partial(_undo, undo))
            raise


def _undo(undo: Callable[[T], object], done: Future[T]) -> None:
    if not done.cancelled() and done.exception() is None:
        with suppress(SuffixSpecError):  # the lease may have ended meanwhile
            undo(done.result())
