"""What a client is told, and the channel that follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import grpc

from suffixspec_index.config_values import as_choice, as_real, as_text
from suffixspec_service.drafting.messages import OpenLease

Transport = Literal["stream", "unary"]
_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),  # a restarted service is not met with old back-off
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """How a client talks to the service, and what for.

    Attributes:
        address: ``HOST:PORT``, or ``unix:PATH``.
        model: the target model's name.
        tokenizer: a fingerprint of its tokenizer.
        vocab_size: token ids are below it.
        adapter: the LoRA adapter or the like; empty: none.
        api_key: sent with every call; ``None``: none.
        tls: plain text if false.
        ca: who signs the service's certificate, in PEM; ``None``: the system's authorities.
        certificate, certificate_key: the client's own, in PEM, where the service asks for one.
        server_name: expected in the certificate, where it is not the address's.
        transport: ``stream`` keeps one stream open, which is two to three times quicker per step
            than ``unary`` calls.
        paths_only: the verifier takes paths only.
        ttl_seconds: of the lease; ``None``: the service's default.
        timeout: seconds that an answer may take.
        resume_seconds: how long to try to go on after the connection or the lease was lost; 0:
            such errors are raised.

    Raises:
        ConfigError: a value is out of range.
    """

    address: str
    model: str
    tokenizer: str
    vocab_size: int
    adapter: str = ""
    api_key: str | None = field(default=None, repr=False)
    tls: bool = False
    ca: Path | None = None
    certificate: Path | None = None
    certificate_key: Path | None = None
    server_name: str | None = None
    transport: Transport = "stream"
    paths_only: bool = False
    ttl_seconds: float | None = None
    timeout: float = 10.0
    resume_seconds: float = 30.0

    def __post_init__(self) -> None:
        as_text(self.address, "address")
        as_choice(self.transport, "transport", ("stream", "unary"))
        as_real(self.timeout, "timeout", minimum=0.001)
        as_real(self.resume_seconds, "resume_seconds", minimum=0)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Sent with every call."""
        return () if self.api_key is None else (("authorization", f"Bearer {self.api_key}"),)

    @property
    def channel_options(self) -> list[tuple[str, int | str]]:
        """gRPC's options."""
        options: list[tuple[str, int | str]] = list(_OPTIONS)
        if self.server_name is not None:
            options.append(("grpc.ssl_target_name_override", self.server_name))
        return options

    def credentials(self) -> grpc.ChannelCredentials:
        """For TLS."""
        return grpc.ssl_channel_credentials(
            root_certificates=self.ca.read_bytes() if self.ca else None,
            private_key=self.certificate_key.read_bytes() if self.certificate_key else None,
            certificate_chain=self.certificate.read_bytes() if self.certificate else None,
        )

    def wish(self, replaces: str) -> OpenLease:
        """The lease to ask for."""
        return OpenLease(
            model=self.model,
            tokenizer=self.tokenizer,
            vocab_size=self.vocab_size,
            adapter=self.adapter,
            replaces=replaces,
            paths_only=self.paths_only,
            ttl_seconds=self.ttl_seconds,
        )
