"""The gRPC server: where it listens, what it offers, how it ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from suffixspec_index.errors import ConfigError
from suffixspec_service.config import ServiceConfig, TlsConfig
from suffixspec_service.drafting import DraftingCalls
from suffixspec_service.logs import get_logger
from suffixspec_service.rpc.drafting_servicer import DraftingServicer
from suffixspec_service.rpc.generated import (
    drafting_pb2,
    drafting_pb2_grpc,
    generation_pb2,
    generation_pb2_grpc,
)
from suffixspec_service.rpc.generation_servicer import GenerationServicer
from suffixspec_service.rpc.interceptors import Authentication, Calls
from suffixspec_service.rpc.metrics import CallMetrics

if TYPE_CHECKING:
    from suffixspec_service.runtime import Runtime

_log = get_logger(__name__)
_DRAFTING = drafting_pb2.DESCRIPTOR.services_by_name["Drafting"].full_name
_GENERATION = generation_pb2.DESCRIPTOR.services_by_name["Generation"].full_name


class GrpcServer:
    """A running server; :func:`serve_grpc` makes it.

    Attributes:
        addresses: what a client connects to: ``host:port`` and ``unix:PATH``.
        port: of TCP; ``None``: it does not listen there.
    """

    def __init__(
        self,
        server: grpc.aio.Server,
        addresses: Sequence[str],
        port: int | None,
        socket: Path | None,
        drafting: DraftingServicer,
        health_checks: health.aio.HealthServicer,
    ) -> None:
        self.addresses = tuple(addresses)
        self.port = port
        self._server = server
        self._socket = socket
        self._drafting = drafting
        self._health = health_checks

    async def drain(self) -> None:
        """Say that no more calls should come, and end streams that have nothing to answer. Calls
        that run go on."""
        await self._health.enter_graceful_shutdown()
        self._drafting.drain()

    async def stop(self, grace: float | None = None) -> None:
        """Refuse new calls, wait for running ones at most ``grace`` seconds, end."""
        await self.drain()
        await self._server.stop(grace)
        if self._socket is not None:
            with contextlib.suppress(FileNotFoundError):
                await asyncio.to_thread(self._socket.unlink)

    async def wait(self) -> None:
        """Wait until it is stopped."""
        await self._server.wait_for_termination()


async def serve_grpc(runtime: Runtime, config: ServiceConfig | None = None) -> GrpcServer:
    """Start a server over a runtime, which it neither starts nor closes.

    Args:
        runtime: the parts of the service.
        config: where to listen; ``None``: as the runtime's.

    Raises:
        ConfigError: it cannot listen there, or could be reached by everybody without keys.
    """
    config = config or runtime.config
    config.check_exposure()
    if config.grpc_port is None and config.grpc_socket is None:
        raise ConfigError("grpc_port: neither a port nor grpc_socket is given")
    metrics = CallMetrics.of(runtime.monitor.registry)
    server = grpc.aio.server(
        interceptors=(Authentication(runtime.callers), Calls(metrics)), options=_options(config)
    )
    calls = DraftingCalls(runtime.drafting, runtime.index_pool)
    drafting = DraftingServicer(calls, runtime.callers, metrics)
    drafting_pb2_grpc.add_DraftingServicer_to_server(drafting, server)
    names = [_DRAFTING]
    if runtime.engine is not None:
        generation_pb2_grpc.add_GenerationServicer_to_server(GenerationServicer(runtime), server)
        names.append(_GENERATION)
    checks = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    for name in ("", *names):
        await checks.set(name, health_pb2.HealthCheckResponse.SERVING)
    reflection.enable_server_reflection(
        (*names, health.SERVICE_NAME, reflection.SERVICE_NAME), server
    )
    addresses, port = _listen(server, config)
    await server.start()
    if config.grpc_socket is not None:
        await asyncio.to_thread(config.grpc_socket.chmod, 0o600)
    _log.info("gRPC listens", addresses=addresses, tls=config.tls is not None)
    return GrpcServer(server, addresses, port, config.grpc_socket, drafting, checks)


def _options(config: ServiceConfig) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", config.max_body_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", 16 << 10),
        ("grpc.so_reuseport", 0),  # a port that is taken is an error, not shared
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
    ]


def _listen(server: grpc.aio.Server, config: ServiceConfig) -> tuple[list[str], int | None]:
    """Bind; returns addresses and port. A Unix socket needs no TLS: it does not leave the
    machine, and only its owner can open it."""
    addresses: list[str] = []
    port: int | None = None
    if config.grpc_port is not None:
        host = f"[{config.host}]" if ":" in config.host else config.host
        wanted = f"{host}:{config.grpc_port}"
        try:
            if config.tls is None:
                port = server.add_insecure_port(wanted)
            else:
                port = server.add_secure_port(wanted, _credentials(config.tls))
        except RuntimeError:
            raise ConfigError(
                f"grpc_port: cannot listen on {wanted}; it is taken, or the address is not this "
                "machine's"
            ) from None
        addresses.append(f"{host}:{port}")
    if config.grpc_socket is not None:
        path = config.grpc_socket.absolute()
        try:
            server.add_insecure_port(f"unix:{path}")
        except RuntimeError:
            raise ConfigError(
                f"grpc_socket: cannot listen on {str(path)!r}; its folder must exist, and a path "
                "has at most 107 bytes"
            ) from None
        addresses.append(f"unix:{path}")
    return addresses, port


def _credentials(tls: TlsConfig) -> grpc.ServerCredentials:
    return grpc.ssl_server_credentials(
        [(tls.key.read_bytes(), tls.certificate.read_bytes())],
        root_certificates=tls.client_ca.read_bytes() if tls.client_ca else None,
        require_client_auth=tls.client_ca is not None,
    )
