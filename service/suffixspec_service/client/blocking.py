"""The blocking client."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, TypeVar

import grpc
from numpy.typing import ArrayLike

from suffixspec_index.draft import DraftBatch
from suffixspec_index.errors import InputError, SuffixSpecError
from suffixspec_service.client.calls import (
    IN_STREAM,
    ended,
    failure,
    late,
    reply_of,
    stream_message,
    stub_method,
)
from suffixspec_service.client.options import ClientOptions
from suffixspec_service.client.protocol import Call, Pause, Plan, Protocol, Resume
from suffixspec_service.client.requests import ClientRequest
from suffixspec_service.drafting.acceptance import Acceptance
from suffixspec_service.drafting.messages import DraftingStatistics, LeaseTerms
from suffixspec_service.rpc.generated import drafting_pb2 as pb
from suffixspec_service.rpc.generated import drafting_pb2_grpc as pb_grpc

T = TypeVar("T")


class DraftClient:
    """Drafts from a service in another process, for an engine that waits for them.

    ::

        with DraftClient("127.0.0.1:50051", model="m", tokenizer="t", vocab_size=32000) as client:
            request = client.begin("conversation-1", prompt)
            drafts = client.step([], propose=[request])
            ...
            drafts = client.step([(request, gained)], propose=[request])
            client.finish([request])

    Thread-safe: calls of several threads are served one at a time. Every call may raise what the
    service answers (the errors are those of :mod:`suffixspec_index.errors`, and name the field),
    ``UnavailableError`` where it cannot be reached for longer than ``resume_seconds``, and
    ``DeadlineError`` where it does not answer within ``timeout``.

    Args:
        address: ``HOST:PORT``, or ``unix:PATH``.
        options: the fields of :class:`~.options.ClientOptions`.

    Raises:
        ConfigError: an option is wrong. UnavailableError, AuthenticationError, InputError, ...: no
            lease could be opened.
    """

    def __init__(self, address: str, **options: Any) -> None:
        self.options = ClientOptions(address=address, **options)
        self._protocol = Protocol(self.options)
        self._transport = _Transport(self.options)
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._used_at = time.monotonic()
        try:
            terms = self._run(self._protocol.connect())
        except BaseException:
            self._transport.close()
            raise
        self._keeper = threading.Thread(
            target=self._keep_alive, args=(terms.ttl_seconds / 3,), daemon=True
        )
        self._keeper.start()

    @property
    def terms(self) -> LeaseTerms:
        """What the service granted."""
        terms = self._protocol.terms
        if terms is None:
            raise InputError("client: it is closed; make a new one")
        return terms

    @property
    def requests(self) -> list[ClientRequest]:
        """What is open."""
        return self._protocol.requests

    def request(self, number: int) -> ClientRequest:
        """An open request by its number. Raises ``UnknownRequestError``."""
        return self._protocol.find(number)

    def begin(
        self,
        session_id: str,
        prompt: ArrayLike,
        *,
        max_tokens: int | None = None,
        prediction: ArrayLike | None = None,
    ) -> ClientRequest:
        """Begin a request. Of a prompt that goes on from what the session said, only the new
        tokens are sent.

        Args:
            session_id: the conversation it belongs to.
            prompt: ``(n,)`` token ids of the whole prompt.
            max_tokens: output tokens at most; drafts never run past it.
            prediction: ``(m,)`` token ids expected as output.
        """
        return self._run(
            self._protocol.begin(session_id, prompt, max_tokens=max_tokens, prediction=prediction)
        )

    def step(
        self,
        gained: Iterable[tuple[ClientRequest, ArrayLike]] = (),
        propose: Sequence[ClientRequest] = (),
        limits: Sequence[int] = (),
    ) -> DraftBatch:
        """Tell what requests gained and draft for requests, in one round trip.

        Args:
            gained: requests (each once) with ``(n,)`` token ids.
            propose: what to draft for.
            limits: most tokens of each draft: one for all, or one per request in ``propose``.

        Returns:
            A row per request in ``propose``; read-only arrays.
        """
        return self._run(self._protocol.step(gained, propose, limits))

    def finish(
        self, requests: Sequence[ClientRequest], *, discard: bool = False
    ) -> list[Acceptance]:
        """End requests; returns what became of their drafts. Their outputs are remembered unless
        ``discard``."""
        return self._run(self._protocol.finish(requests, discard=discard))

    @contextmanager
    def session(self, session_id: str) -> Iterator[str]:
        """A session that is forgotten at the end of the block; gives its id."""
        try:
            yield session_id
        finally:
            self.end_session(session_id)

    def end_session(self, session_id: str) -> None:
        """Forget what is held for a session alone."""
        self._run(self._protocol.end_session(session_id))

    def ingest(self, sequences: Iterable[ArrayLike]) -> int:
        """Remember finished sequences from elsewhere; returns their tokens."""
        return self._run(self._protocol.ingest(sequences))

    def purge(self) -> None:
        """Forget everything of the namespace."""
        self._run(self._protocol.purge())

    def statistics(self) -> DraftingStatistics:
        """Sizes and counts."""
        return self._run(self._protocol.statistics())

    def close(self) -> None:
        """End the lease and what is open under it. May be called twice."""
        self._closing.set()
        with self._lock:
            with suppress(SuffixSpecError):
                self._run(self._protocol.close())
            self._transport.close()

    def __enter__(self) -> DraftClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, plan: Plan[T]) -> T:
        """Carry out a plan."""
        with self._lock:
            self._used_at = time.monotonic()
            reply: Any = None
            error: Exception | None = None
            try:
                while True:
                    step = plan.send(reply) if error is None else plan.throw(error)
                    reply, error = None, None
                    try:
                        reply = self._do(step)
                    except SuffixSpecError as raised:
                        error = raised
            except StopIteration as stop:
                result: T = stop.value
                return result

    def _do(self, step: Call | Pause | Resume) -> Any:
        if isinstance(step, Call):
            return self._transport.call(step)
        if isinstance(step, Pause):
            if self._closing.wait(step.seconds):
                raise InputError("client: it was closed")
            return None
        if step.epoch == self._protocol.epoch:
            self._transport.reset()
            self._run(self._protocol.resume())
        return None

    def _keep_alive(self, every: float) -> None:
        """Renew the lease while the engine has nothing to do."""
        while not self._closing.wait(every):
            if time.monotonic() - self._used_at < every or not self._lock.acquire(blocking=False):
                continue
            try:
                with suppress(SuffixSpecError):
                    self._run(self._protocol.keep_alive())
            finally:
                self._lock.release()


class _Transport:
    """Calls over one channel; not thread-safe."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._channel = self._connect()
        self._stub = pb_grpc.DraftingStub(self._channel)
        self._stream: _Stream | None = None

    def call(self, call: Call) -> Any:
        """Send and wait.

        Raises:
            SuffixSpecError: what the call ended with.
        """
        options = self._options
        if options.transport == "stream" and call.method in IN_STREAM:
            if self._stream is None:
                self._stream = _Stream(self._stub, options)
            try:
                return self._stream.call(call)
            finally:
                if self._stream.broken:
                    self._stream = None
        try:
            return stub_method(self._stub, call.method)(
                call.message, timeout=options.timeout, metadata=options.metadata
            )
        except grpc.RpcError as error:
            raise failure(error, options) from error

    def reset(self) -> None:
        """Begin a new stream with the next call."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def close(self) -> None:
        """Close the channel."""
        self.reset()
        self._channel.close()

    def _connect(self) -> grpc.Channel:
        options = self._options
        if options.tls:
            return grpc.secure_channel(
                options.address, options.credentials(), options.channel_options
            )
        return grpc.insecure_channel(options.address, options.channel_options)


class _Stream:
    """A drafting stream. Reading blocks without a limit, so a thread watches the clock."""

    def __init__(self, stub: pb_grpc.DraftingStub, options: ClientOptions) -> None:
        self._options = options
        self._outgoing: queue.SimpleQueue[pb.StreamRequest | None] = queue.SimpleQueue()
        self._replies = stub.Stream(iter(self._outgoing.get, None), metadata=options.metadata)
        self._number = 0
        self._deadline = float("inf")
        self._late = False
        self._over = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    @property
    def broken(self) -> bool:
        """Whether it cannot be used any more."""
        return self._over.is_set()

    def call(self, call: Call) -> Any:
        """Send a message and wait for its reply."""
        self._number += 1
        self._deadline = time.monotonic() + self._options.timeout
        self._outgoing.put(stream_message(self._number, call.method, call.message))
        try:
            reply = next(self._replies)
        except StopIteration:
            self.close()
            raise ended(self._options) from None
        except grpc.RpcError as error:
            self.close()
            if self._late:
                raise late(self._options) from None
            raise failure(error, self._options) from error
        except BaseException:  # interrupted: the next reply would be taken for another's
            self.close()
            raise
        self._deadline = float("inf")
        return reply_of(reply, self._number, call.method)

    def close(self) -> None:
        """End the stream."""
        self._over.set()
        self._outgoing.put(None)
        self._replies.cancel()

    def _watch(self) -> None:
        every = min(self._options.timeout / 5, 0.25)
        while not self._over.wait(every):
            if time.monotonic() > self._deadline:
                self._late = True
                self._replies.cancel()
                return
