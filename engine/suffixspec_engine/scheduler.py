"""Who takes part in the next step, and with how many prompt tokens.

Requests join and leave at every step. Those that are generating always take part; prompts are
computed in chunks beside them. A request is admitted when the cache can hold it at its longest, in
the order of arrival: a long request at the head is not overtaken for ever by short ones.
"""

from __future__ import annotations

from collections import deque

from suffixspec_engine.cache import SHARE_AT_LEAST, KeyValueCache, common_length
from suffixspec_engine.engine_config import EngineConfig
from suffixspec_engine.request import Request
from suffixspec_index.errors import CapacityError


class Scheduler:
    """The waiting and the running requests of an engine.

    Attributes:
        waiting: in the order of arrival.
        running: in the order of admission.
    """

    def __init__(self, config: EngineConfig, cache: KeyValueCache) -> None:
        self._config, self._cache = config, cache
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def __len__(self) -> int:
        return len(self.waiting) + len(self.running)

    @property
    def full(self) -> bool:
        """Whether one more request would be refused."""
        free = max(self._config.max_running - len(self.running), 0)
        return len(self.waiting) >= self._config.max_waiting + free

    def add(self, request: Request) -> None:
        """Let a request wait for its turn. O(1).

        Raises:
            CapacityError: the queue is full, or the cache could never hold the request. Nothing
                was changed.
        """
        self._cache.check_fits(request.reserve)
        if self.full:
            raise CapacityError(
                f"engine: {len(self.running)} requests are running and {len(self.waiting)} are "
                "waiting, which is the most; try again later or raise max_waiting"
            )
        self.waiting.append(request)

    def admit(self) -> list[Request]:
        """Start waiting requests while there is room; they have their cache then."""
        admitted: list[Request] = []
        while self.waiting and len(self.running) < self._config.max_running:
            head = self.waiting[0]
            cache = self._cache.open(head.namespace, head.session_id, head.prompt, head.reserve)
            if cache is None:
                break
            head.cache = cache
            self.running.append(self.waiting.popleft())
            admitted.append(head)
        return admitted

    def plan(self) -> list[tuple[Request, int]]:
        """Who takes part in the next step, and with how many tokens of its own (drafts excluded).

        Generating requests come first, each with 1 token; the others share the prompt tokens of a
        step in the order of admission. O(running²) at worst, while many prompts begin.
        """
        generating = [(request, 1) for request in self.running if request.generating]
        budget = self._config.prefill_chunk if generating else self._config.max_prefill_tokens
        prompts: list[tuple[Request, int]] = []
        for request in self.running:
            if request.generating or budget <= 0:
                continue
            if not request.prefilling:
                if self._better_wait(request, prompts):
                    continue
                self._start_prompt(request)
            count = min(request.uncomputed, budget)
            prompts.append((request, count))
            budget -= count
        return generating + prompts

    def _better_wait(self, request: Request, computing: list[tuple[Request, int]]) -> bool:
        """Whether this very step computes what the request could copy in the next one."""
        assert request.cache is not None
        wanted = request.prompt[:-1]
        for other, count in computing:
            assert other.cache is not None
            if other.namespace == request.namespace:
                coming = other.prompt[: other.cache.length + count]
                if common_length(coming, wanted) - request.cache.length >= SHARE_AT_LEAST:
                    return True
        return False

    def _start_prompt(self, request: Request) -> None:
        assert request.cache is not None
        self._cache.share(request.cache, request.prompt)
        request.prefilling = True
        request.metrics.cached_tokens = request.cache.length

    def remove(self, request: Request) -> None:
        """A request has ended."""
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
