"""The process: sockets, HTTP and gRPC side by side in one event loop, signals, the end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import uvicorn

from suffixspec_index.errors import ConfigError
from suffixspec_service.app import create_app
from suffixspec_service.config import ServiceConfig
from suffixspec_service.logs import get_logger
from suffixspec_service.runtime import Runtime

_log = get_logger(__name__)
_BACKLOG = 2048
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a running service is found.

    Attributes:
        http: its URL, without a slash at the end.
        grpc: what a client connects to; may be empty.
    """

    http: str
    grpc: tuple[str, ...]


class _HttpServer(uvicorn.Server):
    """uvicorn, which leaves signals to us: draining comes before it stops."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def listen(config: ServiceConfig) -> socket.socket:
    """Bind HTTP's address: what is taken is found out before a model is loaded.

    Raises:
        ConfigError: it cannot be bound, or could be reached by everybody without keys.
    """
    config.check_exposure()
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((config.host.strip("[]"), config.port))
    except OSError as error:
        bound.close()
        raise ConfigError(
            f"port: cannot listen on {config.host}:{config.port} ({error.strerror or error}); "
            "choose another with --port"
        ) from None
    bound.listen(_BACKLOG)
    return bound


async def serve(
    runtime: Runtime,
    bound: socket.socket,
    *,
    progress: Callable[[str], None] | None = None,
    ready: Callable[[Addresses], None] | None = None,
    stop: asyncio.Event | None = None,
) -> bool:
    """Run the service until a signal (or ``stop``), drain and close it.

    A second signal ends the draining at once. HTTP answers ``/healthz`` and ``/readyz`` from the
    beginning, everything else once the runtime is ready.

    Args:
        runtime: not started yet; it is closed at the end.
        bound: from :func:`listen`.
        progress: told what is being done until it is ready.
        ready: told where it is found.
        stop: ends the service as a signal does; for programs that embed it. Signals and the
            garbage collector are then left alone.

    Returns:
        Whether all requests ended by themselves.
    """
    config = runtime.config
    http = _HttpServer(_uvicorn_config(runtime))
    serving = asyncio.create_task(http.serve(sockets=[bound]))
    ended, hurry = stop or asyncio.Event(), asyncio.Event()
    remove_handlers = _handle_signals(ended, hurry) if stop is None else lambda: None
    grpc = None
    try:
        starting = asyncio.create_task(runtime.start(progress))
        if not await _unless(ended, starting):
            starting.cancel()
            return True
        if config.grpc_port is not None or config.grpc_socket is not None:
            from suffixspec_service.rpc.server import serve_grpc

            grpc = await serve_grpc(runtime)
        if stop is None:
            _settle_memory()
        if ready is not None:
            ready(Addresses(_url(config, bound), grpc.addresses if grpc is not None else ()))
        await _unless(ended, serving)
        if grpc is not None:
            await grpc.drain()
        draining = asyncio.create_task(runtime.drain())
        finished = await _unless(hurry, draining) and draining.result()
        _log.info("drained", finished=finished)
        return finished
    finally:
        await runtime.close()
        if grpc is not None:
            await grpc.stop(1.0)
        http.should_exit = True
        await asyncio.gather(serving, return_exceptions=True)
        remove_handlers()


def _settle_memory() -> None:
    """Take what is loaded by now (modules, kernels, the model's parts: it stays to the end) out of
    the garbage collector's sight: looking through it takes tens of milliseconds, in whatever thread
    a collection falls due, with the event loop at a standstill."""
    gc.collect()
    gc.freeze()


def _uvicorn_config(runtime: Runtime) -> uvicorn.Config:
    tls = runtime.config.tls
    return uvicorn.Config(
        create_app(runtime),
        loop="none",  # it runs in ours
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
        ssl_certfile=str(tls.certificate) if tls else None,
        ssl_keyfile=str(tls.key) if tls else None,
        ssl_ca_certs=str(tls.client_ca) if tls and tls.client_ca else None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if tls and tls.client_ca else ssl.CERT_NONE,
    )


def _handle_signals(ended: asyncio.Event, hurry: asyncio.Event) -> Callable[[], None]:
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if ended.is_set():
            hurry.set()
        ended.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal)

    def remove() -> None:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)

    return remove


async def _unless(event: asyncio.Event, work: asyncio.Task[object] | asyncio.Task[None]) -> bool:
    """Wait for ``work``, or for ``event``, whichever comes first; whether it was ``work``."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait({work, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    if not work.done():
        return False
    work.result()
    return True


def _url(config: ServiceConfig, bound: socket.socket) -> str:
    scheme = "https" if config.tls is not None else "http"
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"{scheme}://{host}:{bound.getsockname()[1]}"
