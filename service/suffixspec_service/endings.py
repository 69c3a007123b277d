"""Answers that were given, and whose sessions are not remembered yet.

A context is hashed in a thread while the end of its answer is on its way already. Who answers at
once, as a program does, may come back before that is done; so a prompt waits for what its tenant
was told before, a fraction of a millisecond, and never the answer.
"""

from __future__ import annotations

import asyncio


class Ending:
    """One answer's. ``remembered`` may be called from any thread, more than once."""

    def __init__(self, endings: Endings, tenant: str) -> None:
        self._endings, self._tenant = endings, tenant
        self._loop = asyncio.get_running_loop()
        self._done = asyncio.Event()

    def remembered(self) -> None:
        """A prompt that continues this session finds it from now on."""
        if not self._done.is_set():
            self._loop.call_soon_threadsafe(self._end)

    async def wait(self) -> None:
        """Until it is remembered."""
        await self._done.wait()

    def _end(self) -> None:
        self._done.set()
        self._endings.ended(self, self._tenant)


class Endings:
    """Of all tenants. Belongs to one event loop."""

    def __init__(self) -> None:
        self._open: dict[str, set[Ending]] = {}

    def begin(self, tenant: str) -> Ending:
        """To be called before the end of an answer is handed on."""
        ending = Ending(self, tenant)
        self._open.setdefault(tenant, set()).add(ending)
        return ending

    def ended(self, ending: Ending, tenant: str) -> None:
        """Unknown ones are ignored."""
        held = self._open.get(tenant, set())
        held.discard(ending)
        if not held:
            self._open.pop(tenant, None)

    async def wait(self, tenant: str) -> None:
        """Until what a tenant has been told by now is remembered; later answers are not waited
        for."""
        for ending in list(self._open.get(tenant, ())):
            await ending.wait()

    def __len__(self) -> int:
        return sum(len(held) for held in self._open.values())
