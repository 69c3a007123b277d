"""The connection of a Redis log: an event loop in a thread of its own, behind blocking calls.

The client is redis-py's for asyncio. A call that finds its connection gone gets a new one at once;
if that fails too, calls fail quickly for a while, which grows with every failure (exponential
backoff with jitter: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015), so
that a Redis that comes back is not met by everybody at the same moment. What only a person can mend
(a wrong password, say) is tried again more slowly.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from suffixspec_index.errors import (
    LogClosedError,
    LogError,
    LogRefusedError,
    LogUnavailableError,
    MissingDependencyError,
)
from suffixspec_index.log.redis_url import RedisPlace

try:
    import redis.asyncio as aioredis
    import redis.exceptions as R
    from redis.asyncio.cluster import ClusterNode, RedisCluster
    from redis.asyncio.retry import Retry
    from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
    from redis.credentials import CredentialProvider
except ImportError:
    raise MissingDependencyError(
        "log: Redis needs the package 'redis', which is not installed; run: "
        "pip install 'suffixspec[sharing]'"
    ) from None

from suffixspec_index.log.redis_faults import OLDEST, is_connection_lost, too_old, translate

Client = Any
"""``redis.asyncio.Redis`` or ``RedisCluster``: only what both offer is used."""

T = TypeVar("T")

_TRIES = 3
_SHORTEST, _LONGEST, _LONGEST_REFUSED = 0.05, 2.0, 30.0  # seconds between attempts to connect
_CLUSTER_PATIENCE = 10.0  # seconds without any success after which a cluster is joined anew


class Backoff:
    """When to try again: twice as long after each failure, up to a cap, anywhere below that."""

    def __init__(self, shortest: float = _SHORTEST) -> None:
        self._shortest = shortest
        self._failures = 0
        self._until = 0.0
        self._error: LogError | None = None

    def failed(self, error: LogError) -> None:
        """Count a failure and set when the next attempt may be."""
        longest = _LONGEST_REFUSED if isinstance(error, LogRefusedError) else _LONGEST
        most = min(self._shortest * 2.0**self._failures, longest)
        self._failures = min(self._failures + 1, 30)
        self._until = time.monotonic() + random.uniform(most / 2, most)
        self._error = error

    def worked(self) -> None:
        """Forget the failures."""
        self._failures, self._error = 0, None

    def check(self) -> None:
        """Raise the last failure again while it is too early for another attempt."""
        if self._error is not None and time.monotonic() < self._until:
            raise type(self._error)(*self._error.args)


class _Login(CredentialProvider):
    """Asks for the credentials at every connection, so that a rotated secret is picked up."""

    def __init__(self, place: RedisPlace) -> None:
        self._place = place

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        user, password = self._place.credentials()
        return (user, password or "") if user else (password or "",)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        return self.get_credentials()


class RedisClient:
    """See the module docstring. Nothing is connected before the first call.

    Args:
        place: where it is.
    """

    def __init__(self, place: RedisPlace) -> None:
        self.place = place
        self.is_cluster = place.cluster
        self._client: Client | None = None
        self._connecting = asyncio.Lock()
        self._last_success = 0.0
        self._backoff = Backoff()
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    # --- from any thread -------------------------------------------------------------------------

    def run(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """Let the loop do ``work`` with a connected client, and wait for it.

        Raises:
            LogError: what Redis or the network made of it. LogClosedError: it is closed.
        """
        with self._starting:  # so that close() finds every task
            loop = self._running_loop()
            future = asyncio.run_coroutine_threadsafe(self._attempts(work), loop)
        try:
            return future.result()
        except CancelledError:
            raise self._closed_error() from None

    def close(self) -> None:
        """End the loop, its tasks and connections. Calling it twice is fine."""
        with self._starting:
            if self._closed:
                return
            self._closed = True
            loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._shut_down(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def check_open(self) -> None:
        """Raise LogClosedError once it is closed."""
        if self._closed:
            raise self._closed_error()

    def _closed_error(self) -> LogClosedError:
        return LogClosedError(f"{self.place.url}: is closed; open it again")

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        self.check_open()
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=self._loop.run_forever, name="suffixspec-redis", daemon=True
            )
            self._thread.start()
        return self._loop

    # --- on the loop -----------------------------------------------------------------------------

    async def _attempts(self, work: Callable[[Client], Awaitable[T]]) -> T:
        self._backoff.check()
        for attempt in range(_TRIES):
            client = None
            try:
                client = await self._greet()
                done = await self._use(client, work)
                self._worked()
                return done
            except (TimeoutError, R.RedisError, OSError, LogError) as error:
                again = attempt + 1 < _TRIES and is_connection_lost(error)
                problem = translate(error, self.place.url)
                await self._after_fault(client, error, problem, again)
                if not again:
                    raise problem from None
            await asyncio.sleep(random.uniform(0.0, _SHORTEST * 2**attempt))
        raise AssertionError("unreachable")

    async def _use(self, client: Client, work: Callable[[Client], Awaitable[T]]) -> T:
        """Do the work. A client that was dropped meanwhile may have connected once more for it."""
        try:
            return await work(client)
        finally:
            if client is not self._client:
                await _close(client)

    def _worked(self) -> None:
        self._backoff.worked()
        self._last_success = time.monotonic()

    async def _after_fault(
        self, client: Client | None, error: Exception, problem: LogError, again: bool
    ) -> None:
        """Drop what cannot be used any more, so that the next attempt begins afresh.

        A cluster's client finds its way by itself when one node is gone, and namespaces on the
        other nodes must not suffer: it is dropped only when nothing has worked for a while.
        """
        unreachable = isinstance(problem, LogUnavailableError)
        lost = unreachable or isinstance(error, R.ReadOnlyError)  # another master may be in charge
        if client is not None and self.is_cluster:
            quiet = time.monotonic() - self._last_success
            lost = lost and quiet > max(_CLUSTER_PATIENCE, 4 * self.place.timeout)
        if client is not None and lost:
            async with self._connecting:
                if self._client is client:
                    await self._drop_client()
        if not again and (client is None or (unreachable and lost)):
            self._backoff.failed(problem)

    async def _greet(self) -> Client:
        """The client; a new one asks the server who it is."""
        async with self._connecting:
            if self._client is None:
                self._client = await self._connect()
            return self._client

    async def _connect(self) -> Client:
        problem: Exception | None = None
        for host, port in self.place.nodes:
            single = aioredis.Redis(host=host, port=port, db=self.place.db, **self._settings())
            try:
                mode = await self._ask(single)
            except (TimeoutError, R.RedisError, OSError) as error:
                await single.aclose()
                problem = error
                continue
            except BaseException:
                await single.aclose()
                raise
            self.is_cluster = mode == "cluster" or self.place.cluster
            if not self.is_cluster:
                return single
            await single.aclose()
            return await self._join_cluster()
        assert problem is not None, "a place has at least one node"
        raise problem

    async def _ask(self, client: Client) -> str:
        """The server's mode: ``standalone``, ``cluster`` or ``sentinel``."""
        try:
            reply = await client.execute_command("HELLO")
        except (R.ConnectionError, R.BusyLoadingError):
            raise
        except R.ResponseError as error:
            if "unknown command" not in str(error).lower():
                raise
            raise too_old(self.place.url, "5 or older") from None
        facts = _facts(reply)
        version = facts.get("version", "0")
        numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
        if numbers < OLDEST:
            raise too_old(self.place.url, version)
        if facts.get("mode") == "sentinel":
            raise LogRefusedError(
                f"{self.place.url}: is a Sentinel, which stores nothing; name the Redis itself"
            )
        return facts.get("mode", "standalone")

    async def _join_cluster(self) -> Client:
        nodes = [ClusterNode(host, port) for host, port in self.place.nodes]
        retry = Retry(ExponentialWithJitterBackoff(cap=0.5, base=_SHORTEST), _TRIES)
        settings = self._settings() | {"retry": retry}
        client = RedisCluster(startup_nodes=nodes, require_full_coverage=False, **settings)
        try:
            await client.initialize()
        except BaseException:
            await _close(client)
            raise
        return client

    def _settings(self) -> dict[str, Any]:
        place = self.place
        found: dict[str, Any] = {
            "socket_timeout": place.timeout,
            "socket_connect_timeout": place.connect_timeout,
            "socket_keepalive": True,
            "socket_read_size": 1 << 16,
            "retry": Retry(NoBackoff(), 0),  # attempts are counted here
            "protocol": 2,
        }
        if place.user or place.password or place.password_file:
            found["credential_provider"] = _Login(place)
        if place.tls:
            found["ssl"] = True
            found["ssl_cert_reqs"] = place.ssl_cert_reqs
            found["ssl_check_hostname"] = place.ssl_cert_reqs == "required"
            for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"):
                if getattr(place, name) is not None:
                    found[name] = getattr(place, name)
        return found

    async def _drop_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await _close(client)

    async def _shut_down(self) -> None:
        me = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not me]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._drop_client()


class Script:
    """A Lua script, sent whole only where the server does not know it yet."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def __call__(
        self, client: Client, keys: Sequence[str], arguments: Sequence[Any]
    ) -> Coroutine[Any, Any, Any]:
        """Run it."""
        return self._run(client, (len(keys), *keys, *arguments))

    async def _run(self, client: Client, arguments: tuple[Any, ...]) -> Any:
        try:
            return await client.execute_command("EVALSHA", self._sha, *arguments)
        except R.NoScriptError:
            return await client.execute_command("EVAL", self._text, *arguments)


async def _close(client: Client) -> None:
    with contextlib.suppress(TimeoutError, R.RedisError, OSError):
        await client.aclose()
        if isinstance(client, RedisCluster):  # does nothing by itself after a fault
            await client.nodes_manager.aclose()
            await client.nodes_manager.aclose("startup_nodes")


def _facts(reply: Any) -> dict[str, str]:
    if isinstance(reply, dict):
        pairs = list(reply.items())
    else:
        pairs = list(zip(reply[::2], reply[1::2], strict=True))
    return {_text(name): _text(value) for name, value in pairs}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
