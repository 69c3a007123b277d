"""HTTPS, and where the server listens."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from suffixspec_index.errors import ConfigError
from suffixspec_service.config import ServiceConfig, TlsConfig
from suffixspec_service.server import listen
from tests.service.rpc.certificates import make_certificates
from tests.service.serving import CHATML, served

if TYPE_CHECKING:
    from suffixspec_engine.models import TargetModel


def test_a_port_that_is_taken() -> None:
    with listen(ServiceConfig(port=0)) as bound:
        port = bound.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            listen(ServiceConfig(port=port))


def test_https_and_client_certificates(tiny_target: TargetModel, tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    tls = TlsConfig(certificate=made.server, key=made.server_key, client_ca=made.authority)
    with served(tiny_target, chat_template=CHATML, tls=tls) as service:
        assert service.url.startswith("https://")
        trusted = ssl.create_default_context(cafile=str(made.authority))
        with (
            httpx.Client(base_url=service.url, verify=trusted) as stranger,
            pytest.raises(httpx.TransportError),
        ):
            stranger.get("/healthz")
        trusted.load_cert_chain(made.client, made.client_key)
        with httpx.Client(base_url=service.url, verify=trusted, timeout=60) as client:
            assert service.chat(client).status_code == 200
