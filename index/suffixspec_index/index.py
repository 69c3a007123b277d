"""The index of one namespace: the global tree, the sessions' own memories, live requests.

Thread safety: any number of threads may propose at the same time; everything that writes (begin,
advance, finish, ...) is alone, but what takes long is done beside the lock: a long prompt is
inserted, the oldest is forgotten while other requests go on. One request belongs to one caller at a
time. Kernels release the GIL, so other namespaces and the caller's other threads go on meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from suffixspec_index.acceptance import AcceptanceModel
from suffixspec_index.beginning import begin_request
from suffixspec_index.budget import Budget
from suffixspec_index.draft import Draft, DraftBatch
from suffixspec_index.draft_settings import DraftSettings, forbidden_mask
from suffixspec_index.errors import InputError
from suffixspec_index.forest import Forest
from suffixspec_index.global_tree import GlobalTree
from suffixspec_index.index_config import IndexConfig
from suffixspec_index.integrity import check_index
from suffixspec_index.kernels import step as S
from suffixspec_index.live_requests import LiveRequest, LiveRequests
from suffixspec_index.locks import ReadWriteLock
from suffixspec_index.rebuilding import discard_aside, evict_aside, purge_aside
from suffixspec_index.sessions import Sessions
from suffixspec_index.statistics import IndexStatistics
from suffixspec_index.tokens import as_forbidden_array, as_token_array, as_vocab_size
from suffixspec_index.tree import SuffixTree

__all__ = ["IndexStatistics", "SuffixIndex"]


class SuffixIndex:
    """See the module docstring.

    Args:
        config: its settings.
        vocab_size: ids must be below it; ``None``: unknown.
        forbidden: token ids that drafts never hold.
        model: a learned acceptance to go on from.

    Raises:
        ConfigError, TokenError: an argument is wrong.
    """

    def __init__(
        self,
        config: IndexConfig | None = None,
        *,
        vocab_size: int | None = None,
        forbidden: ArrayLike = (),
        model: AcceptanceModel | None = None,
    ) -> None:
        self.config = config or IndexConfig()
        self.vocab_size = as_vocab_size(vocab_size)
        self.model = model or AcceptanceModel.new()
        self._lock = ReadWriteLock()
        self._rebuild_turn = threading.Lock()
        self._forest = Forest()
        self.world = SuffixTree(
            self.config.depth,
            vocab_size=vocab_size,
            live_chunk=max(self.config.live_chunk, 1),
            forest=self._forest,
        )
        self.spoken = GlobalTree(self.world)
        self._sessions = Sessions(self._forest, self.config.session_depth)
        self._requests = LiveRequests(self._forest, self.spoken)
        self._budget = Budget(
            self.config, self._forest, self.world, self._sessions, self._requests, self.model
        )
        self._blocked = forbidden_mask(as_forbidden_array(forbidden, field="forbidden"))
        self._settings = DraftSettings(self.config)
        self._context = np.zeros(S.CONTEXT, np.int64)
        self._update_context()

    # --- the life of a request -------------------------------------------------------------------

    def begin(self, session_id: str, prompt: ArrayLike, *, max_tokens: int | None = None) -> int:
        """Start a request; returns its handle.

        Costs O(new tokens): what the session said already is only compared. A session that has a
        live request already (or one that is about to begin) gets a private branch for this one,
        built from the whole prompt and dropped when it ends. Other requests go on while a long
        prompt is inserted.

        Raises:
            TokenError: an id is wrong; nothing is changed then. CapacityError: too much text; the
                session's own memory may be forgotten then, so that its next prompt starts anew.
        """
        tokens = as_token_array(prompt, self.vocab_size, field="prompt")
        handle, due = begin_request(self, session_id, tokens, max_tokens)
        if due:
            evict_aside(self)
        return handle

    def advance_batch(
        self, handles: Sequence[int], token_ids: NDArray[np.int32], offsets: NDArray[np.int64]
    ) -> None:
        """Give requests the tokens they gained. Arrays are checked by the caller.

        Raises:
            UnknownRequestError, InputError: no such request, or one is named twice. Nothing is
            changed then.
        """
        with self._lock.writing():
            requests = self._requests.lookup(handles)
            if len(set(handles)) < len(requests):  # room is reckoned row by row
                raise InputError(
                    f"requests: {list(handles)} names one twice; join its tokens in one row"
                )
            due = self._advance(requests, token_ids, offsets)
        if due:
            evict_aside(self)

    def advance(self, handle: int, token_ids: NDArray[np.int32]) -> None:
        """Give one request the tokens it gained. The array is checked by the caller.

        Raises:
            UnknownRequestError: no such request.
        """
        with self._lock.writing():
            requests = self._requests.lookup((handle,))
            due = self._advance(requests, token_ids, np.array((0, len(token_ids))))
        if due:
            evict_aside(self)

    def propose(
        self, handle: int, limit: int | None = None, *, min_prob: float | None = None
    ) -> Draft:
        """Draft for one request; half the overhead of a batch of one.

        Args:
            min_prob: as for :meth:`propose_batch`.

        Raises:
            UnknownRequestError: no such request.
        """
        most = self.config.num_speculative_tokens
        if limit is not None and limit < most:
            most = int(limit)
        floor = -1.0 if min_prob is None else float(min_prob)  # negative: as the settings say
        tokens = np.empty(most, np.int32)
        parents = np.empty(most, np.int32)
        probs = np.empty(most, np.float32)
        sources = np.empty(most, np.uint8)
        with self._lock.reading():
            (request,) = self._requests.lookup((handle,))
            n, match = S.propose_one(
                self._context, request.row, most, floor, tokens, parents, probs, sources
            )
        return Draft(tokens[:n], parents[:n], probs[:n], sources[:n], match)

    def propose_batch(
        self,
        handles: Sequence[int],
        limits: NDArray[np.int64] | None = None,
        *,
        min_prob: float | None = None,
    ) -> DraftBatch:
        """Draft for requests, at most ``limits`` tokens each.

        Args:
            min_prob: least probability of a draft token in this call, instead of what the settings
                (``min_token_prob`` or step costs) say; ``None``: as they say.

        Raises:
            UnknownRequestError: no such request.
        """
        most = self.config.num_speculative_tokens
        n = len(handles)
        if limits is None:
            limits, room = np.full(n, most, np.int64), n * most
        else:
            limits = np.minimum(limits, most, dtype=np.int64)  # kernels know no other type
            room = int(limits.sum())
        floor = -1.0 if min_prob is None else float(min_prob)
        tokens = np.empty(room, np.int32)
        parents = np.empty(room, np.int32)
        probs = np.empty(room, np.float32)
        sources = np.empty(room, np.uint8)
        offsets = np.empty(n + 1, np.int64)
        matches = np.empty(n, np.int32)
        with self._lock.reading():
            rows = np.array([r.row for r in self._requests.lookup(handles)], np.int64)
            S.propose_batch(
                self._context,
                rows,
                limits,
                floor,
                offsets,
                tokens,
                parents,
                probs,
                sources,
                matches,
            )
        end = int(offsets[n])
        return DraftBatch(offsets, tokens[:end], parents[:end], probs[:end], sources[:end], matches)

    def finish(self, handle: int, *, keep: bool = True) -> None:
        """End a request; its output enters the global tree unless ``keep`` is false.

        What is not kept leaves the session's memory too, with its next prompt, unless that prompt
        holds all of it: so a request that was preempted goes on where it was.

        Raises:
            UnknownRequestError: no such request.
        """
        with self._lock.writing():
            (request,) = self._requests.lookup([handle])
            session, discarded = request.session, None
            if self.config.max_cached_requests:
                discarded = self._requests.remember(request, keep=keep)
            self._requests.close(handle)  # last, so that it is still there if the text is full
            session.unwanted = not keep
            if session.id is None:
                session.drop()
            due = self._budget.enforce()
        if discarded is not None:
            discard_aside(self, discarded)
        if due:
            evict_aside(self)

    def end_session(self, session_id: str) -> None:
        """Forget a session's own memory. Live requests of it go on with a private one."""
        with self._lock.writing():
            self._sessions.end(session_id)

    # --- the namespace ---------------------------------------------------------------------------

    def ingest(self, token_ids: ArrayLike) -> None:
        """Remember a finished sequence from elsewhere.

        Raises:
            TokenError: an id is wrong.
        """
        tokens = as_token_array(token_ids, self.vocab_size, field="token_ids")
        if not self.config.max_cached_requests:
            return
        with self._lock.writing():
            self.spoken.insert(tokens)
            self._update_context()
            due = self._budget.enforce()
        if due:
            evict_aside(self)

    def set_step_costs(self, costs: ArrayLike | None) -> None:
        """Let the size of drafts follow from what verifying them costs (*dynamic* drafts).

        A draft gets the size at which its expected accepted tokens exceed the most what the same
        time would yield at the going rate, which is learned; ``min_token_prob`` then does not
        apply. With such a rule the quotient of tokens and time is maximised (W. Dinkelbach, "On
        nonlinear fractional programming", Management Science 13, 1967).

        Args:
            costs: ``(n,)`` time of a step (any unit) by the number of draft tokens, from 0 on;
                the last difference goes on beyond ``n``. ``None``: back to ``min_token_prob``.

        Raises:
            InputError: fewer than two costs, or they are not positive and rising.
        """
        with self._lock.writing():
            self._settings.set_step_costs(costs)

    def purge(self, *, before: float | None = None) -> None:
        """Forget every sequence, every idle session and everything learned.

        What running requests say from now on is remembered as usual. A listener is told, so that
        all replicas of a shared index forget.

        Args:
            before: forget only the sequences that were said before this time (seconds since the
                epoch), and leave sessions and what was learned.
        """
        if before is not None:
            moment = round(before, 6)  # as logs keep it
            purge_aside(self, moment, lambda: self.spoken.purged(moment))
            return
        with self._lock.writing():
            self._forget_all()
            self.spoken.purged(None)

    def statistics(self) -> IndexStatistics:
        """Sizes. O(sequences)."""
        with self._lock.reading():
            tree = self.world.statistics()
            return IndexStatistics(
                sequences=tree.sequences,
                tokens=tree.tokens,
                sessions=len(self._sessions),
                requests=len(self._requests),
                nodes=tree.nodes,
                bytes=self.nbytes,
                global_bytes=tree.bytes,
                session_bytes=self._forest.nbytes_total - tree.bytes,
                evicted_sequences=self._budget.evicted_sequences,
                evicted_sessions=self._budget.evicted_sessions,
            )

    @property
    def nbytes(self) -> int:
        """Allocated bytes: trees, request table, learned tables."""
        return self._budget.nbytes

    def context(self, handle: int) -> NDArray[np.int32]:
        """The context of a request, ``(n,)`` int32, a copy.

        Raises:
            UnknownRequestError: no such request.
        """
        with self._lock.reading():
            (request,) = self._requests.lookup([handle])
            return request.session.context().copy()

    def session_context(self, session_id: str) -> NDArray[np.int32] | None:
        """What a session last held: its last prompt and output, ``(n,)`` int32, a copy; ``None``:
        the session is not known (any more). O(n)."""
        with self._lock.reading():
            session = self._sessions.get(session_id)
            return None if session is None or session.row < 0 else session.context().copy()

    def may_stall(self, requests: int = 1) -> bool:
        """Whether a step of so many requests could take milliseconds: somebody writes just now, or
        the budget is so nearly used up that the oldest might have to be forgotten, or what they
        share might make the global tree's arrays grow. For callers that must not wait, such as an
        event loop. O(1), without a lock, so only a good guess."""
        if self._lock.busy or self._budget.is_near(requests):
            return True
        pieces = 1 + requests // 8  # that a step shares; more would be a rare chance
        shared = max(pieces * (self.config.live_chunk + self.config.depth), 1024)
        return self._forest.may_grow(self.world.row, shared)

    def check_integrity(self) -> None:
        """Verify every tree, every session and the request table; what a prompt is entering just
        now beside the lock is left out.

        Raises:
            IntegrityError: names the first fault found.
        """
        with self._lock.writing():
            check_index(self)

    # --- inside; the write lock is held ----------------------------------------------------------

    def _advance(
        self,
        requests: Sequence[LiveRequest],
        token_ids: NDArray[np.int32],
        offsets: NDArray[np.int64],
    ) -> bool:
        """Append, grow what is full, share what is long enough; returns whether to evict."""
        rows = np.array([r.row for r in requests], np.int64)
        grown = False
        while True:
            row = S.advance_batch(self._context, rows, token_ids, offsets)
            if row < 0:
                break  # what it means stands in the kernel
            grown = True
            gained = int(offsets[row + 1] - offsets[row])
            self._forest.make_room(requests[row].session.row, gained + gained // 2 + 64)
        if row == S.SHARE_DUE:
            least = self.config.live_chunk + self.config.depth
            for request in requests:
                grown |= self._requests.share(request, least)
        return grown and self._budget.enforce()

    def _forget_all(self) -> None:
        """As :meth:`purge`, telling nobody but those who wait for a live sequence's next piece."""
        self._requests.leave(None)
        self.world.clear()
        self._sessions.end_idle()
        self.model.reset()
        self._requests.restart_cursors()

    def _update_context(self) -> None:
        """Tell the kernels where everything is. Called after anything may have moved."""
        context = self._context
        context[S.X_TABLE] = self._forest.table.ctypes.data
        context[S.X_TREES] = len(self._forest.table)
        context[S.X_REQUESTS] = self._requests.table.ctypes.data
        context[S.X_ROWS] = len(self._requests.table)
        context[S.X_CELLS] = self.model.cells.ctypes.data
        context[S.X_ODDS] = self.model.odds.ctypes.data
        context[S.X_WEIGHTS] = self.model.weights.ctypes.data
        context[S.X_SETTINGS] = self._settings.values.ctypes.data
        context[S.X_BLOCKED] = self._blocked.ctypes.data
        context[S.X_N_BLOCKED] = len(self._blocked)
