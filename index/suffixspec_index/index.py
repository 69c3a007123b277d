"""The index of one namespace: the global tree, the sessions' own memories, live requests.

Thread safety: any number of threads may propose at the same time; everything that writes (begin,
advance, finish, ...) is alone. One request belongs to one caller at a time. Kernels release the
GIL, so other namespaces and the caller's other threads go on meanwhile.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from suffixspec_index.acceptance import AcceptanceModel
from suffixspec_index.draft import Draft, DraftBatch
from suffixspec_index.draft_settings import DraftSettings
from suffixspec_index.errors import InputError, IntegrityError, UnknownRequestError
from suffixspec_index.forest import Forest
from suffixspec_index.global_tree import GlobalTree
from suffixspec_index.index_config import IndexConfig
from suffixspec_index.kernels import draft as D
from suffixspec_index.kernels import layout as L
from suffixspec_index.kernels import step as S
from suffixspec_index.kernels.cursor import CURSOR
from suffixspec_index.locks import ReadWriteLock
from suffixspec_index.sessions import SessionMemory, common_prefix
from suffixspec_index.tokens import as_forbidden_array, as_token_array, as_vocab_size
from suffixspec_index.tree import SuffixTree, check_row

_UNBOUNDED = 1 << 30


@dataclass(slots=True)
class _Request:
    """What Python keeps of a live request; the rest is a row of the request table."""

    row: int
    session: SessionMemory
    start: int  # text position of its output
    shared: int  # text position up to which the output is in the global tree
    sequence: int | None = None  # the open sequence it is shared as


@dataclass(frozen=True, slots=True)
class IndexStatistics:
    """Sizes of a namespace's index. Tokens are those of the global tree."""

    sequences: int
    tokens: int
    sessions: int
    requests: int
    nodes: int
    bytes: int
    global_bytes: int
    session_bytes: int
    evicted_sequences: int
    evicted_sessions: int


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
        self._forest = Forest()
        self.world = SuffixTree(
            self.config.depth,
            vocab_size=vocab_size,
            live_chunk=max(self.config.live_chunk, 1),
            forest=self._forest,
        )
        self.spoken = GlobalTree(self.world)
        self._sessions: OrderedDict[str, SessionMemory] = OrderedDict()  # least recent first
        self._requests: dict[int, _Request] = {}
        self._table = np.zeros((8, D.REQUEST), np.int32)
        self._free = list(range(7, -1, -1))
        self._next_handle = 1
        self._rebuilding = 0  # threads that build the global tree anew beside it
        self._evicted_sequences = 0
        self._evicted_sessions = 0
        self._blocked = _mask(as_forbidden_array(forbidden, field="forbidden"))
        self._settings = DraftSettings(self.config)
        self._context = np.zeros(S.CONTEXT, np.int64)
        self._update_context()

    # --- the life of a request -------------------------------------------------------------------

    def begin(self, session_id: str, prompt: ArrayLike, *, max_tokens: int | None = None) -> int:
        """Start a request; returns its handle.

        Costs O(new tokens): what the session said already is only compared. A session that has a
        live request already gets a private branch for this one, built from the whole prompt and
        dropped when it ends.

        Raises:
            TokenError: an id is wrong. CapacityError: too much text. Nothing is changed then.
        """
        tokens = as_token_array(prompt, self.vocab_size, field="prompt")
        with self._lock.writing():
            session = self._session_for(session_id)
            known = session.set_prompt(tokens)
            if self.config.index_prompts and self.config.max_cached_requests:
                if session.id is None:  # a branch: the session itself has brought most of it
                    known = common_prefix(self._sessions[session_id].context(), tokens)
                fresh = tokens[known:]
                if len(fresh) > 1:
                    self.spoken.insert(fresh)
            row = self._free_row()
            start = int(self._forest.table[session.row, L.H_N_TEXT])
            request = self._table[row]
            request[: D.R_TOKENS] = 0
            request[D.R_SESSION] = session.row
            request[D.R_LEFT] = _UNBOUNDED if max_tokens is None else min(max_tokens, _UNBOUNDED)
            request[D.R_START] = start
            self._update_context()
            self._warm(row, session)
            session.request = row
            handle = self._next_handle
            self._next_handle += 1
            self._requests[handle] = _Request(row, session, start, start)
            self._enforce_budget()
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
            requests = self._lookup(handles)
            if len(set(handles)) < len(requests):  # room is reckoned row by row
                raise InputError(
                    f"requests: {list(handles)} names one twice; join its tokens in one row"
                )
            self._advance(requests, token_ids, offsets)

    def advance(self, handle: int, token_ids: NDArray[np.int32]) -> None:
        """Give one request the tokens it gained. The array is checked by the caller.

        Raises:
            UnknownRequestError: no such request.
        """
        with self._lock.writing():
            self._advance(self._lookup((handle,)), token_ids, np.array((0, len(token_ids))))

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
        tokens = np.empty(most, np.int32)
        parents = np.empty(most, np.int32)
        probs = np.empty(most, np.float32)
        sources = np.empty(most, np.uint8)
        with self._lock.reading():
            (request,) = self._lookup((handle,))
            n, match = S.propose_one(
                self._context, request.row, most, _floor(min_prob), tokens, parents, probs, sources
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
        limits = np.full(n, most, np.int64) if limits is None else np.minimum(limits, most)
        limits = limits.astype(np.int64, copy=False)  # kernels are compiled for no other type
        room = int(limits.sum())
        tokens = np.empty(room, np.int32)
        parents = np.empty(room, np.int32)
        probs = np.empty(room, np.float32)
        sources = np.empty(room, np.uint8)
        offsets = np.empty(n + 1, np.int64)
        matches = np.empty(n, np.int32)
        with self._lock.reading():
            rows = np.array([r.row for r in self._lookup(handles)], np.int64)
            S.propose_batch(
                self._context,
                rows,
                limits,
                _floor(min_prob),
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
            (request,) = self._lookup([handle])
            session = request.session
            if self.config.max_cached_requests:
                self._remember(request, keep=keep)
            del self._requests[handle]  # last, so that it is still there if the text is full
            self._free.append(request.row)
            session.request = -1
            session.unwanted = not keep
            if session.id is None:
                session.drop()
            self._enforce_budget()

    def end_session(self, session_id: str) -> None:
        """Forget a session's own memory. Live requests of it go on with a private one."""
        with self._lock.writing():
            session = self._sessions.pop(session_id, None)
            if session is None:
                return
            if session.request >= 0:
                session.id = None  # dropped when its request ends
            else:
                session.drop()

    # --- the namespace ---------------------------------------------------------------------------

    def ingest(self, token_ids: ArrayLike) -> None:
        """Remember a finished sequence from elsewhere.

        Raises:
            TokenError: an id is wrong.
        """
        tokens = as_token_array(token_ids, self.vocab_size, field="token_ids")
        with self._lock.writing():
            if self.config.max_cached_requests:
                self.spoken.insert(tokens)
                self._update_context()
                self._enforce_budget()

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
            before = round(before, 6)  # as logs keep it
        with self._lock.writing():
            self._forget(before)
            if self.spoken.listener is not None:
                self.spoken.listener.purge(before)

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
                evicted_sequences=self._evicted_sequences,
                evicted_sessions=self._evicted_sessions,
            )

    @property
    def nbytes(self) -> int:
        """Allocated bytes: trees, request table, learned tables."""
        return int(self._forest.nbytes_total + self._table.nbytes + self.model.nbytes)

    def context(self, handle: int) -> NDArray[np.int32]:
        """The context of a request, ``(n,)`` int32, a copy.

        Raises:
            UnknownRequestError: no such request.
        """
        with self._lock.reading():
            (request,) = self._lookup([handle])
            return request.session.context().copy()

    def session_context(self, session_id: str) -> NDArray[np.int32] | None:
        """What a session last held: its last prompt and output, ``(n,)`` int32, a copy; ``None``:
        the session is not known (any more). O(n)."""
        with self._lock.reading():
            session = self._sessions.get(session_id)
            return None if session is None else session.context().copy()

    def may_stall(self, requests: int = 1) -> bool:
        """Whether a step of so many requests could take milliseconds: somebody writes just now, or
        the budget is so nearly used up that the oldest might have to be forgotten. For callers
        that must not wait, such as an event loop. O(1), without a lock, so only a good guess."""
        most = self.config.max_cached_requests
        return (
            self._lock.busy
            or self.nbytes > self.config.max_bytes - self.config.max_bytes // 8
            or bool(most and len(self.world) + requests > most)
        )

    def check_integrity(self) -> None:
        """Verify every tree, every session and the request table.

        Raises:
            IntegrityError: names the first fault found.
        """
        with self._lock.writing():
            self.world.check_integrity()
            sessions = {id(s): s for s in self._sessions.values()}
            sessions |= {id(r.session): r.session for r in self._requests.values()}
            for session in sessions.values():
                check_row(self._forest, session.row)
            rows = {s.row for s in sessions.values()} | {self.world.row}
            alive = {i for i, arrays in enumerate(self._forest.arrays) if arrays is not None}
            if rows != alive:
                raise IntegrityError(f"index: trees {sorted(alive ^ rows)} belong to nobody")
            used = [r.row for r in self._requests.values()]
            if sorted(used + self._free) != list(range(len(self._table))):
                raise IntegrityError("index: request rows are lost or used twice")
            counted = sum(a.nbytes for a in self._forest.arrays if a is not None)
            if counted != self._forest.nbytes_total:
                raise IntegrityError("index: the byte count is wrong")
            if not np.isfinite(self.model.weights).all():
                raise IntegrityError("index: a learned weight is not finite")

    # --- inside; the write lock is held ----------------------------------------------------------

    def _advance(
        self,
        requests: Sequence[_Request],
        token_ids: NDArray[np.int32],
        offsets: NDArray[np.int64],
    ) -> None:
        """Append tokens, grow what is full, share what is long enough."""
        rows = np.array([r.row for r in requests], np.int64)
        grown = False
        while True:
            row = S.advance_batch(self._context, rows, token_ids, offsets)
            if row < 0:
                break
            grown = True
            gained = int(offsets[row + 1] - offsets[row])
            self._forest.make_room(requests[row].session.row, gained + gained // 2 + 64)
        chunk = self.config.live_chunk
        if chunk and self.config.max_cached_requests:
            lengths = self._forest.table[:, L.H_N_TEXT]
            for request in requests:
                n = lengths[request.session.row]
                if n - request.shared >= chunk + self.config.depth:
                    self._share(request, int(n))
                    grown = True
        if grown:
            self._enforce_budget()

    def _forget(self, before: float | None) -> None:
        """As :meth:`purge`, telling nobody but those who wait for a live sequence's next piece."""
        self._leave_live(before)
        self.spoken.forget(before)
        if before is None:
            for name in [n for n, s in self._sessions.items() if s.request < 0]:
                self._sessions.pop(name).drop()
            self.model.reset()
        self._after_rebuild()

    def _leave_live(self, before: float | None) -> None:
        """What running requests shared is about to be forgotten: the rest goes by itself."""
        gone = set(self.world) if before is None else set(self.spoken.older(before))
        for request in self._requests.values():
            if request.sequence in gone:
                self.spoken.leave(request.sequence)
                request.sequence = None

    def _is_too_large(self) -> bool:
        """Whether the global tree should give something back."""
        return self.nbytes > self.config.max_bytes or len(self.world) > (
            self.config.max_cached_requests
        )

    def _lookup(self, handles: Sequence[int]) -> list[_Request]:
        try:
            return [self._requests[handle] for handle in handles]
        except (KeyError, TypeError):
            known = list(self._requests)  # compared, not hashed: a handle may be anything
            unknown = [h for h in handles if h not in known]
            raise UnknownRequestError(
                f"request: no request has the handle {unknown[0]!r}; it never existed or is "
                "finished"
            ) from None

    def _session_for(self, session_id: str) -> SessionMemory:
        """The session's memory, or a private one where it is in use."""
        session = self._sessions.get(session_id)
        if session is not None and session.request >= 0:
            return SessionMemory(None, self._forest, self.config.session_depth)
        if session is None:
            session = SessionMemory(session_id, self._forest, self.config.session_depth)
            self._sessions[session_id] = session
        self._sessions.move_to_end(session_id)
        return session

    def _free_row(self) -> int:
        if not self._free:
            n = len(self._table)
            self._table = np.vstack([self._table, np.zeros_like(self._table)])
            self._free = list(range(2 * n - 1, n - 1, -1))
        return self._free.pop()

    def _warm(self, row: int, session: SessionMemory) -> None:
        """Set both cursors of a request from the end of its context."""
        table = self._forest.table
        own, other = self._table[row, D.R_OWN :], self._table[row, D.R_WORLD :]
        S.warm_cursor(table, session.row, own[:CURSOR], session.tail(session.depth - 1))
        self._warm_world(other[:CURSOR], session)

    def _warm_world(self, cursor: NDArray[np.int32], session: SessionMemory) -> None:
        tail = session.tail(self.config.depth - 1)
        S.warm_cursor(self._forest.table, self.world.row, cursor, tail)

    def _share(self, request: _Request, n: int) -> None:
        """Put the output so far of a running request into the global tree."""
        tokens = self._output(request, request.shared, n)
        request.sequence = self.spoken.share(request.sequence, tokens)
        request.shared = n

    def _remember(self, request: _Request, *, keep: bool) -> None:
        """Put a finished output into the global tree, or take back what was shared of it."""
        n = int(self._forest.table[request.session.row, L.H_N_TEXT])
        rest = self._output(request, request.shared, n)
        if request.sequence is None:
            if keep and len(rest):
                self.spoken.insert(rest)
        elif keep:
            self.spoken.close(request.sequence, rest)
        else:
            self.spoken.discard(request.sequence)
            self._after_rebuild()

    def _output(self, request: _Request, first: int, last: int) -> NDArray[np.int32]:
        arrays = self._forest.arrays[request.session.row]
        assert arrays is not None
        return arrays.text[first:last]

    def _enforce_budget(self) -> None:
        """Forget the oldest until the namespace fits its bytes and its number of sequences."""
        if self._rebuilding:
            return  # whoever does that sees to it
        most = self.config.max_cached_requests
        if most and len(self.world) > most:
            self._evict_oldest(len(self.world) - most + most // 10)
        while self.nbytes > self.config.max_bytes:
            world_bytes = self._forest.nbytes(self.world.row)
            idle = next((s for s in self._sessions.values() if s.request < 0), None)
            own_bytes = self._forest.nbytes_total - world_bytes
            if idle is not None and own_bytes >= world_bytes:
                self._evict_session(idle)
            elif self._evict_oldest(max(len(self.world) // 4, 1)):
                continue
            elif idle is not None:
                self._evict_session(idle)
            else:
                break  # what is left is in use

    def _evict_session(self, session: SessionMemory) -> None:
        """Forget an idle session."""
        assert session.id is not None
        self._sessions.pop(session.id).drop()
        self._evicted_sessions += 1

    def _evict_oldest(self, n: int) -> int:
        """Evict the ``n`` oldest sequences that are closed; returns how many there were."""
        closed = [s.id for s in self.world.sequences.values() if not s.is_open]
        if not closed:
            return 0
        evicted = self.world.evict(closed[:n])
        self._evicted_sequences += evicted
        self._after_rebuild()
        return evicted

    def _after_rebuild(self) -> None:
        """The global tree is another one: cursors into it start anew."""
        for request in self._requests.values():
            cursor = self._table[request.row, D.R_WORLD : D.R_WORLD + CURSOR]
            self._warm_world(cursor, request.session)

    def _update_context(self) -> None:
        """Tell the kernels where everything is. Called after anything may have moved."""
        context = self._context
        context[S.X_TABLE] = self._forest.table.ctypes.data
        context[S.X_TREES] = len(self._forest.table)
        context[S.X_REQUESTS] = self._table.ctypes.data
        context[S.X_ROWS] = len(self._table)
        context[S.X_CELLS] = self.model.cells.ctypes.data
        context[S.X_ODDS] = self.model.odds.ctypes.data
        context[S.X_WEIGHTS] = self.model.weights.ctypes.data
        context[S.X_SETTINGS] = self._settings.values.ctypes.data
        context[S.X_BLOCKED] = self._blocked.ctypes.data
        context[S.X_N_BLOCKED] = len(self._blocked)


def _floor(min_prob: float | None) -> float:
    """What the kernels take: a negative number stands for "as the settings say"."""
    return -1.0 if min_prob is None else float(min_prob)


def _mask(forbidden: NDArray[np.int32]) -> NDArray[np.uint8]:
    """One byte per token id up to the largest forbidden one."""
    mask = np.zeros(int(forbidden[-1]) + 1 if len(forbidden) else 0, np.uint8)
    mask[forbidden] = 1
    return mask
