"""What a client does, without the doing: plans that yield calls and are sent their replies.

Blocking and asynchronous clients differ only in how they carry out a plan. A plan is a generator:
it yields a :class:`Call` (and is sent the reply, or thrown the error it ended with), a
:class:`Pause`, or a :class:`Resume`; what it returns is the result.

After the connection or the lease was lost, a client opens a new lease in the old one's place,
begins its requests again with their prompts and tells their outputs so far. Then the call that
failed goes on: the service knows what it knew before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from suffixspec_index.draft import DraftBatch
from suffixspec_index.errors import (
    DeadlineError,
    InputError,
    OutOfStepError,
    TokenError,
    UnavailableError,
    UnknownLeaseError,
    UnknownRequestError,
)
from suffixspec_index.proposers.requests import as_session_id
from suffixspec_index.tokens import as_token_array
from suffixspec_service.client.options import ClientOptions
from suffixspec_service.client.requests import ClientRequest, SessionContexts, whole
from suffixspec_service.drafting.acceptance import Acceptance
from suffixspec_service.drafting.messages import (
    NO_TOKENS,
    DraftingStatistics,
    LeaseTerms,
    Step,
    Tokens,
    as_wire,
)
from suffixspec_service.rpc import wire
from suffixspec_service.rpc.generated import drafting_pb2 as pb

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
_LOST = (UnavailableError, UnknownLeaseError)
_INT32 = np.dtype(np.int32)
_BYTES_AT_ONCE = 8 << 20  # of prompts in one message

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """A message to send. ``method`` is the field of ``StreamRequest``, or a unary method's name in
    the same style; the reply is what that method returns."""

    method: str
    message: Any


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Resume:
    """Carry out :meth:`Protocol.resume`, unless somebody has since epoch ``epoch``."""

    epoch: int


Plan = Generator[Call | Pause | Resume, Any, T]


class Protocol:
    """The state of a client and its plans. Not thread-safe; whoever carries out plans sees to it
    that none begins while another resumes.

    Attributes:
        terms: of the lease; ``None``: there is none.
        epoch: how often a lease was opened.
        lost: the state of the service is not known, so the next plan resumes first.
    """

    def __init__(self, options: ClientOptions) -> None:
        self.options = options
        self.terms: LeaseTerms | None = None
        self.epoch = 0
        self.lost = False
        self._numbers = count(1)
        self._requests: dict[int, ClientRequest] = {}
        self._sessions = SessionContexts()

    @property
    def lease(self) -> str:
        """To be named in calls; empty before one is open."""
        return self.terms.lease if self.terms is not None else ""

    @property
    def requests(self) -> list[ClientRequest]:
        """What is open."""
        return list(self._requests.values())

    def find(self, number: int) -> ClientRequest:
        """An open request by its number.

        Raises:
            UnknownRequestError: there is none.
        """
        try:
            return self._requests[number]
        except (KeyError, TypeError):
            raise UnknownRequestError(
                f"request: no request has the handle {number!r}; it never existed or is finished"
            ) from None

    # -- plans ---------------------------------------------------------------------------------

    def begin(
        self,
        session_id: str,
        prompt: ArrayLike,
        *,
        max_tokens: int | None = None,
        prediction: ArrayLike | None = None,
    ) -> Plan[ClientRequest]:
        """Begin a request."""
        vocab_size = self.options.vocab_size
        as_session_id(session_id)
        tokens = as_token_array(prompt, vocab_size, field="prompt").copy()
        expected = None
        if prediction is not None:
            expected = as_token_array(prediction, vocab_size, field="prediction").copy()
        request = ClientRequest(next(self._numbers), session_id, tokens, max_tokens, expected)
        self._requests[request.number] = request
        try:
            yield from self._begin(request)
        except BaseException as error:
            del self._requests[request.number]
            # Whether it was begun is not known where nobody waited for the answer.
            self.lost |= isinstance(error, DeadlineError) or not isinstance(error, Exception)
            raise
        self._sessions.remember(session_id, tokens)
        return request

    def step(
        self,
        gained: Iterable[tuple[ClientRequest, ArrayLike]],
        propose: Sequence[ClientRequest],
        limits: Sequence[int] = (),
    ) -> Plan[DraftBatch]:
        """Advance requests and draft."""
        pairs = list(gained)
        gaining = [self._open(request) for request, _ in pairs]
        tokens, lengths = self._joined([tokens for _, tokens in pairs])
        proposed = [self._open(request).number for request in propose]
        step = Step(
            advanced=[request.number for request in gaining],
            lengths=lengths,
            token_ids=tokens,
            proposed=proposed,
            limits=limits,
        )
        again = Step(proposed=proposed, limits=limits)  # resuming tells what was gained
        if self.lost:
            yield Resume(self.epoch)
        epoch = self.epoch
        end = 0
        for request, length in zip(gaining, lengths, strict=True):
            end += length
            request.gain(tokens[end - length : end])
        try:
            reply = yield Call("step", wire.write_step(self.lease, step))
        except _LOST as error:
            reply = yield from self._after(epoch, error, lambda: self._step_call(again))
        except DeadlineError:
            self.lost = True
            raise
        except Exception:
            for request, length in zip(
                gaining, lengths, strict=True
            ):  # refused, so nothing changed
                request.lose(length)
            raise
        return wire.read_drafts(reply)

    def finish(
        self, requests: Sequence[ClientRequest], *, discard: bool = False
    ) -> Plan[list[Acceptance]]:
        """End requests."""
        numbers = [self._open(request).number for request in requests]

        def call() -> Call:
            message = pb.FinishRequest(lease=self.lease, requests=numbers, discard=discard)
            return Call("finish", message)

        reply = yield from self._reliably(call)
        for request in requests:
            self._requests.pop(request.number, None)
            request.finished = True
            self._sessions.remember(request.session_id, request.context)
        return [wire.read_acceptance(counts) for counts in reply.requests]

    def end_session(self, session_id: str) -> Plan[None]:
        """Forget a session."""
        self._sessions.forget(session_id)
        yield from self._reliably(
            lambda: Call(
                "end_sessions", pb.EndSessionsRequest(lease=self.lease, sessions=[session_id])
            )
        )

    def ingest(self, sequences: Iterable[ArrayLike]) -> Plan[int]:
        """Remember sequences; returns their tokens."""
        taken = 0
        for rows in _in_messages([self._tokens(s, "sequences") for s in sequences]):
            data = [as_wire(tokens) for tokens in rows]
            reply = yield from self._reliably(
                lambda data=data: Call(  # type: ignore[misc]
                    "ingest", pb.IngestRequest(lease=self.lease, sequences=data)
                )
            )
            taken += reply.tokens
        return taken

    def purge(self) -> Plan[None]:
        """Forget what the namespace holds."""
        self._sessions.clear()
        yield from self._reliably(lambda: Call("purge", pb.PurgeRequest(lease=self.lease)))

    def statistics(self) -> Plan[DraftingStatistics]:
        """Sizes and counts."""
        reply = yield from self._reliably(
            lambda: Call("statistics", pb.StatisticsRequest(lease=self.lease))
        )
        return wire.read_statistics(reply)

    def keep_alive(self) -> Plan[None]:
        """Renew the lease. A lost one is left to the next plan: nobody waits for this one."""
        if self.terms is None or self.lost:
            return
        try:
            yield Call("keep_alive", pb.KeepAliveRequest(lease=self.lease))
        except _LOST:
            self.lost = True

    def close(self) -> Plan[None]:
        """End the lease; errors do not matter any more."""
        if self.terms is None:
            return
        lease, self.terms = self.lease, None
        self._requests.clear()
        try:
            yield Call("close", pb.CloseRequest(lease=lease))
        except (*_LOST, DeadlineError):
            return

    def connect(self) -> Plan[LeaseTerms]:
        """Open the first lease; once, so that a wrong address is noticed at once."""
        yield from self._reopen()
        assert self.terms is not None
        return self.terms

    def resume(self) -> Plan[None]:
        """Open a lease (in the place of the old one) and begin again what is open."""
        end = time.monotonic() + self.options.resume_seconds
        pause = _FIRST_PAUSE_S
        while True:
            try:
                yield from self._reopen()
            except (*_LOST, DeadlineError):
                if time.monotonic() + pause > end:
                    raise
            else:
                self.lost = False
                return
            yield Pause(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    # -- inside --------------------------------------------------------------------------------

    def _reopen(self) -> Plan[None]:
        reply = yield Call("open", wire.write_open(self.options.wish(self.lease)))
        self.terms = wire.read_terms(reply)
        self.epoch += 1
        self._sessions.clear()
        requests = self.requests
        for rows in _in_messages(requests, size=lambda request: len(request.prompt)):
            yield Call("begin", wire.write_begin(self.lease, [whole(r) for r in rows]))
            told = [r for r in rows if len(r.output)]
            step = Step(
                advanced=[r.number for r in told],
                lengths=[len(r.output) for r in told],
                token_ids=np.concatenate([r.output for r in told]) if told else NO_TOKENS,
            )
            if told:
                yield self._step_call(step)

    def _begin(self, request: ClientRequest) -> Plan[None]:
        if self.lost:
            yield Resume(self.epoch)
            return  # it was begun with the others
        epoch = self.epoch
        sent = self._sessions.shortened(request)
        try:
            try:
                yield Call("begin", wire.write_begin(self.lease, [sent]))
            except OutOfStepError:
                yield Call("begin", wire.write_begin(self.lease, [whole(request)]))
        except _LOST:
            if not self.options.resume_seconds:
                self.lost = True
                raise
            yield Resume(epoch)

    def _reliably(self, call: Callable[[], Call]) -> Plan[Any]:
        """Send a message, built anew with the new lease where the old one was lost."""
        if self.lost:
            yield Resume(self.epoch)
        epoch = self.epoch
        try:
            return (yield call())
        except _LOST as error:
            return (yield from self._after(epoch, error, call))
        except DeadlineError:
            self.lost = True
            raise

    def _after(self, epoch: int, error: Exception, call: Callable[[], Call]) -> Plan[Any]:
        """Resume after an error, then send."""
        if not self.options.resume_seconds:
            self.lost = True
            raise error
        yield Resume(epoch)
        return (yield call())

    def _step_call(self, step: Step) -> Call:
        return Call("step", wire.write_step(self.lease, step))

    def _open(self, request: ClientRequest) -> ClientRequest:
        if not isinstance(request, ClientRequest):
            raise InputError(f"request: must be what begin returned, got {request!r}")
        return self.find(request.number)

    def _tokens(self, tokens: ArrayLike, field: str = "token_ids") -> Tokens:
        return as_token_array(tokens, self.options.vocab_size, field=field)

    def _joined(self, rows: list[Any]) -> tuple[Tokens, list[int]]:
        """The tokens of many requests, checked, and how many each has. What engines usually hand
        over is checked at once: row by row, the checks of 64 rows cost more than sending them."""
        if not rows:
            return NO_TOKENS, []
        try:
            if all(type(row) is list for row in rows):
                flat = self._tokens(list(chain.from_iterable(rows)))
                return flat, [len(row) for row in rows]
            if all(_is_plain(row) for row in rows):
                flat = self._tokens(np.concatenate(rows))
                return flat, [len(row) for row in rows]
        except TokenError:
            pass  # below, the error names the place in its own row
        checked = [self._tokens(row) for row in rows]
        return np.concatenate(checked), [len(row) for row in checked]


def _is_plain(row: Any) -> bool:
    """Whether it is a flat int32 array."""
    return type(row) is np.ndarray and row.ndim == 1 and row.dtype == _INT32


def _in_messages(items: Sequence[Any], size: Any = len) -> list[list[Any]]:
    """Items in groups that fit in a message each, by number and by tokens."""
    groups: list[list[Any]] = []
    room, left = 0, 0
    for item in items:
        need = 4 * size(item)
        if not groups or need > room or not left:
            groups.append([])
            room, left = _BYTES_AT_ONCE, 256
        groups[-1].append(item)
        room -= need
        left -= 1
    return groups
