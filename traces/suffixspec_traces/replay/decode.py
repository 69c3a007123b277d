"""Teacher-forced decoding: every recorded turn as a request against what the index knew then.

The recording plays the target model. At each step the proposer drafts without being told where the
output ends; the longest draft path that equals the recording is accepted, and one token more is
gained, as a verifying model would add it. A last step may end inside the draft and then gains only
what the recording still has. A turn's first step may draft too.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numba import njit
from numpy.typing import NDArray

from suffixspec_index.depth import DepthController, DepthRule, propose_for
from suffixspec_index.draft import Draft, DraftBatch
from suffixspec_index.proposers.base import Proposer, RequestHandle
from suffixspec_traces.replay.log import Row, StepLog
from suffixspec_traces.replay.plan import PlannedTurn, ReplayPlan

now = time.perf_counter_ns
Progress = Callable[[int, int], None]
"""Called with (sessions ended, output tokens decoded), after each turn."""


@dataclass(slots=True)
class ReplayResult:
    """What a replay of one method did.

    Attributes:
        label: how the report names the method.
        config: the method's settings, JSON-able.
        plan: what was replayed.
        log: one entry per step.
        begin_ns, finish_ns: ``(turns,)`` int64 nanoseconds in ``begin`` and ``finish``, by planned
            turn.
        wall_s: seconds of the replay itself.
        partial: it was stopped before the plan's end; the log holds what was done until then.
        load: requests that a step stood for while depths were chosen for all of them together;
            0: every draft was as long as its settings say.
    """

    label: str
    plan: ReplayPlan
    log: StepLog
    begin_ns: NDArray[np.int64]
    finish_ns: NDArray[np.int64]
    config: dict[str, object] = field(default_factory=dict)
    wall_s: float = 0.0
    partial: bool = False
    load: int = 0


def replay(
    plan: ReplayPlan,
    proposer: Proposer,
    *,
    label: str | None = None,
    config: dict[str, object] | None = None,
    depth: DepthRule | None = None,
    max_tokens: int | None = None,
    stop: threading.Event | None = None,
    progress: Progress | None = None,
) -> ReplayResult:
    """Decode every turn of ``plan``.

    Args:
        proposer: fresh, or as warm as the caller wants it; it is used by this call alone.
        label, config: for the report; the label defaults to the proposer's name.
        depth: chooses for all requests of a step together how much of their drafts is verified;
            ``None``: all of it.
        max_tokens: what a client would have asked for, handed to ``begin``; turns that are
            longer evidently had no such limit and get none.
        stop: set it to end the replay cleanly before its next step.
        progress: see :data:`Progress`.

    Returns:
        The result, ``partial`` if it was stopped, or interrupted from the keyboard.
    """
    n = len(plan.turns)
    result = ReplayResult(
        label=label or proposer.name,
        plan=plan,
        log=StepLog(),
        begin_ns=np.zeros(n, np.int64),
        finish_ns=np.zeros(n, np.int64),
        config=config or {},
        load=depth.settings.load if isinstance(depth, DepthController) else 0,
    )
    run = _Replay(proposer, result, depth, max_tokens, stop or threading.Event(), progress)
    began = time.perf_counter()
    try:
        if plan.concurrency == 1 and depth is None:
            run.sequentially()
        else:
            run.concurrently()
    except KeyboardInterrupt:
        result.partial = True
    result.wall_s = time.perf_counter() - began
    return result


def warm_up(plan: ReplayPlan, make_proposer: Callable[[], Proposer]) -> None:
    """Replay a few turns with a proposer that is thrown away.

    Compiled kernels are loaded at their first call; without this, that time would be charged to
    the first proposals.
    """
    few = ReplayPlan.build(
        plan.sessions[: max(2, min(plan.concurrency, 8))],
        concurrency=plan.concurrency,
        limit_tokens=200,
    )
    replay(few, make_proposer())


class _Replay:
    """One pass of a proposer over a plan."""

    def __init__(
        self,
        proposer: Proposer,
        result: ReplayResult,
        depth: DepthRule | None,
        max_tokens: int | None,
        stop: threading.Event,
        progress: Progress | None,
    ) -> None:
        self.proposer = proposer
        self.result = result
        self.plan = result.plan
        self.depth = depth
        self._prompts = np.array([len(p.turn.prompt) for p in result.plan.turns], np.int64)
        self.max_tokens = max_tokens
        self.stop = stop
        self.progress = progress
        self.sessions_done = 0
        self.tokens_done = 0

    def sequentially(self) -> None:
        """Turn after turn."""
        for index in range(len(self.plan.turns)):
            request = self._begin(index)
            ended = self._decode(request, self._row(index))
            self._finish(index, request, ended=ended)
            if not ended:
                return

    def concurrently(self) -> None:
        """``concurrency`` sessions in flight, a step of each in turn; a session that ends makes
        room for the next."""
        waiting = _turns_by_session(self.plan)
        live: list[deque[int]] = []
        requests: list[RequestHandle] = []
        rows = np.empty((0, len(Row)), np.int64)
        while True:
            while waiting and len(live) < self.plan.concurrency:
                live.append(waiting.popleft())
                requests.append(self._begin(live[-1][0]))
                rows = np.concatenate([rows, self._row(live[-1][0])])
            if not live:
                return
            if self.stop.is_set():
                for turns, request in zip(live, requests, strict=True):
                    self._finish(turns[0], request, ended=False)
                return
            if self._step(requests, rows):
                rows = self._next_turns(live, requests, rows)

    def _next_turns(
        self,
        live: list[deque[int]],
        requests: list[RequestHandle],
        rows: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Finish the rows that ended; each goes on with its session's next turn or drops out."""
        ended = np.flatnonzero(rows[:, Row.CURSOR] >= rows[:, Row.END]).tolist()
        gone: list[int] = []
        for r in ended:
            self._finish(live[r].popleft(), requests[r], ended=True)
            if live[r]:
                requests[r] = self._begin(live[r][0])
                rows[r] = self._row(live[r][0])[0]
            else:
                gone.append(r)
        for r in reversed(gone):
            del live[r], requests[r]
        return np.delete(rows, gone, axis=0) if gone else rows

    def _decode(self, request: RequestHandle, row: NDArray[np.int64]) -> bool:
        """Decode one turn alone; false if it was stopped on the way.

        Single calls: for one row they cost a proposer less than a batch does.
        """
        proposer, log, outputs = self.proposer, self.result.log, self.plan.outputs
        offsets = np.zeros(2, np.int64)
        match_lens = np.zeros(1, np.int32)
        cursor, end = int(row[0, Row.CURSOR]), int(row[0, Row.END])
        stopped = self.stop.is_set
        while cursor < end:
            if stopped():
                return False
            began = now()
            draft = proposer.propose(request)
            proposed = now()
            log.record(_as_batch(draft, offsets, match_lens), outputs, row)
            following = int(row[0, Row.CURSOR])
            verified = now()
            proposer.advance(request, outputs[cursor:following])
            log.set_times(1, proposed - began, now() - verified)
            cursor = following
        return True

    def _step(self, requests: list[RequestHandle], rows: NDArray[np.int64]) -> int:
        """One step of every row; how many ended."""
        began = now()
        drafts = self._drafts(requests, rows)
        proposed = now()
        before = rows[:, Row.CURSOR].copy()
        claims = None if self.depth is None else self.depth.claims(drafts)
        ended, gained = self.result.log.record(drafts, self.plan.outputs, rows, claims)
        tokens = _gather(self.plan.outputs, before, gained)
        verified = now()
        self.proposer.advance_batch(requests, tokens, gained)
        if self.depth is not None:
            self.depth.learn(tokens, gained)
        self.result.log.set_times(len(rows), proposed - began, now() - verified)
        return ended

    def _drafts(self, requests: list[RequestHandle], rows: NDArray[np.int64]) -> DraftBatch:
        """What is to be verified of every row."""
        if self.depth is None:
            return self.proposer.propose_batch(requests)
        context = self._prompts[rows[:, Row.TURN]] + rows[:, Row.CURSOR] - rows[:, Row.START]
        plan = self.depth.plan(requests, context_tokens=float(context.sum()))
        return self.depth.choose(propose_for(self.proposer, requests, plan))

    def _row(self, index: int) -> NDArray[np.int64]:
        planned = self.plan.turns[index]
        return np.array([[index, planned.start, planned.start, planned.end]], np.int64)

    def _begin(self, index: int) -> RequestHandle:
        planned = self.plan.turns[index]
        cap = self.max_tokens
        if cap is not None and cap < planned.output_tokens:
            cap = None  # the recording had more; its length must not leak into the draft
        began = now()
        request = self.proposer.begin(
            self._session_id(planned), planned.turn.prompt, max_tokens=cap
        )
        self.result.begin_ns[index] = now() - began
        return request

    def _finish(self, index: int, request: RequestHandle, *, ended: bool) -> None:
        planned = self.plan.turns[index]
        began = now()
        self.proposer.finish(request, keep=ended)
        if self.depth is not None:
            self.depth.forget(request)
        if planned.last and ended:
            self.proposer.end_session(self._session_id(planned))
            self.sessions_done += 1
        self.result.finish_ns[index] = now() - began
        if not ended:
            self.result.partial = True
            return
        self.tokens_done += planned.output_tokens
        if self.progress is not None:
            self.progress(self.sessions_done, self.tokens_done)

    def _session_id(self, planned: PlannedTurn) -> str:
        # Files may reuse ids, so the session's place in the plan makes it unique.
        return f"{planned.session}:{self.plan.sessions[planned.session].id}"


def _turns_by_session(plan: ReplayPlan) -> deque[deque[int]]:
    """Indices of each session's turns, sessions in order."""
    by_session: list[deque[int]] = [deque() for _ in plan.sessions]
    for index, planned in enumerate(plan.turns):
        by_session[planned.session].append(index)
    return deque(by_session)


def _as_batch(
    draft: Draft, offsets: NDArray[np.int64], match_lens: NDArray[np.int32]
) -> DraftBatch:
    """A batch of one draft without copying; ``offsets`` and ``match_lens`` are scratch."""
    offsets[1] = len(draft.token_ids)
    match_lens[0] = draft.match_len
    return DraftBatch(
        offsets, draft.token_ids, draft.parents, draft.probs, draft.sources, match_lens
    )


@njit(cache=True, nogil=True)
def _gather(
    outputs: NDArray[np.int32], starts: NDArray[np.int64], offsets: NDArray[np.int64]
) -> NDArray[np.int32]:
    """``outputs[starts[r]:]`` of every row, as many as ``offsets`` says, one after the other."""
    tokens = np.empty(offsets[-1], np.int32)
    for r in range(len(starts)):
        for i in range(offsets[r], offsets[r + 1]):
            tokens[i] = outputs[starts[r] + i - offsets[r]]
    return tokens
