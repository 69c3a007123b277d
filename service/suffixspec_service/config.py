"""What the service is told when it starts: plain values, checked once.

:mod:`suffixspec.settings` is where they come from; nothing here reads files or the environment.
"""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from suffixspec_index.config_values import as_integer, as_real
from suffixspec_index.errors import ConfigError

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one tenant may use. ``None``: no limit.

    Attributes:
        concurrent_requests: generations at once, HTTP and gRPC together.
        tokens_per_second: tokens computed for the tenant (prompt tokens that were not cached, and
            output), as a sustained rate.
        burst_tokens: how much may be used at once after a pause; ``None``: ten seconds' worth.
        index_bytes: of each of the tenant's namespaces; the oldest is forgotten first.

    Raises:
        ConfigError: a value is out of range.
    """

    concurrent_requests: int | None = None
    tokens_per_second: float | None = None
    burst_tokens: float | None = None
    index_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.concurrent_requests is not None:
            as_integer(self.concurrent_requests, "concurrent_requests", minimum=1)
        for name in ("tokens_per_second", "burst_tokens"):
            if getattr(self, name) is not None:
                as_real(getattr(self, name), name, minimum=0.001)
        if self.index_bytes is not None:
            as_integer(self.index_bytes, "index_bytes", minimum=_MIB)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """A certificate for HTTP and gRPC alike.

    Attributes:
        certificate: the chain, in PEM.
        key: its private key, in PEM, not encrypted.
        client_ca: who signs the certificates that callers must show; ``None``: none is asked for.

    Raises:
        ConfigError: a file does not exist, or certificate and key do not belong together.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def __post_init__(self) -> None:
        for name in ("certificate", "key", "client_ca"):
            path = getattr(self, name)
            if path is not None and not path.is_file():
                raise ConfigError(f"tls.{name}: there is no file {str(path)!r}")
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key)
        except (ssl.SSLError, OSError) as error:
            raise ConfigError(
                f"tls.certificate: {str(self.certificate)!r} and {str(self.key)!r} are not a PEM "
                f"certificate with its unencrypted key ({error})"
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """How the service runs.

    Attributes:
        host: the address to listen on. Any but a loopback address needs keys.
        port: of HTTP; 0: a free one.
        grpc_port: of gRPC; 0: a free one, ``None``: no TCP.
        grpc_socket: a Unix socket for gRPC; ``None``: none.
        tls: the certificate; ``None``: plain text.
        keys_file: API keys, as ``suffixspec keys`` writes them; ``None``: no file.
        api_keys: further keys, ``tenant:key`` each.
        allow_public_without_keys: listen on any address though there are no keys.
        limits: of every tenant that the keys file says nothing else about.
        max_body_bytes: of one HTTP request or gRPC message.
        max_choices: the largest ``n``.
        max_namespaces: of one tenant: models (and adapters) that it drafts for.
        max_sessions: of one tenant; the one used longest ago ends first.
        session_idle_seconds: a session nobody used for so long ends.
        stream_cadence_ms: 0: streams send what is there as soon as it is there; else one chunk of
            constant size per so many milliseconds.
        drain_seconds: how long running requests may go on after SIGTERM.
        data_dir: where the service keeps what must outlive it; ``None``: nothing is kept.

    Raises:
        ConfigError: a value is out of range.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int | None = 50051
    grpc_socket: Path | None = None
    tls: TlsConfig | None = None
    keys_file: Path | None = None
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    allow_public_without_keys: bool = False
    limits: Limits = field(default_factory=Limits)
    max_body_bytes: int = 16 * _MIB
    max_choices: int = 16
    max_namespaces: int = 16
    max_sessions: int = 1024
    session_idle_seconds: float = 3600.0
    stream_cadence_ms: int = 0
    drain_seconds: float = 30.0
    data_dir: Path | None = None

    def __post_init__(self) -> None:
        as_integer(self.port, "port", minimum=0, maximum=65535)
        if self.grpc_port is not None:
            as_integer(self.grpc_port, "grpc_port", minimum=0, maximum=65535)
        for name in ("max_body_bytes", "max_choices", "max_namespaces", "max_sessions"):
            as_integer(getattr(self, name), name, minimum=1)
        as_real(self.session_idle_seconds, "session_idle_seconds", minimum=0.001)
        as_integer(self.stream_cadence_ms, "stream_cadence_ms", minimum=0, maximum=10_000)
        as_real(self.drain_seconds, "drain_seconds", minimum=0)

    @property
    def has_keys(self) -> bool:
        """Whether callers must show a key."""
        return self.keys_file is not None or bool(self.api_keys)

    def check_exposure(self) -> None:
        """Refuse to be reachable by everybody without keys.

        Raises:
            ConfigError: ``host`` is not a loopback address, there are no keys, and nobody has said
                that this is meant.
        """
        if self.has_keys or self.allow_public_without_keys or is_loopback(self.host):
            return
        raise ConfigError(
            f"host: {self.host!r} can be reached from other machines, and there are no API keys; "
            "make some with 'suffixspec keys add TENANT', listen on 127.0.0.1, or, if whoever can "
            "connect may use everything, give --allow-public-without-keys"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address. Names but ``localhost`` count as public."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
