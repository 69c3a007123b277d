"""Keys, tenants and limits over HTTP."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from suffixspec_service.callers import KeyFile
from suffixspec_service.config import Limits
from tests.service.serving import CHATML, Served, served
from tests.threads import ended

if TYPE_CHECKING:
    from collections.abc import Iterator

    from suffixspec_engine.models import TargetModel

OTHER = "other:" + "k" * 32
REPEATED = "the quick brown fox jumps over the lazy dog and so on "


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    file = KeyFile.new()
    made: dict[str, Any] = {"path": path}
    for tenant, admin, limits in (
        ("acme", False, None),
        ("boss", True, None),
        ("small", False, Limits(concurrent_requests=1)),
        ("slow", False, Limits(tokens_per_second=1, burst_tokens=5)),
    ):
        file, record, key = file.with_new_key(tenant, admin=admin, limits=limits)
        made[tenant] = {"Authorization": f"Bearer {key}"}
        made[f"{tenant} id"] = record.key_id
    file.write(path)
    return made


@pytest.fixture(scope="module")
def service(tiny_target: TargetModel, keys: dict[str, Any]) -> Iterator[Served]:
    with served(
        tiny_target, chat_template=CHATML, keys_file=keys["path"], api_keys=(OTHER,)
    ) as running:
        yield running


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Basic YTpi"},
        {"X-API-Key": "wrong"},
    ],
)
def test_without_a_valid_key(service: Served, headers: dict[str, str]) -> None:
    with service.client(headers=headers) as client:
        for answer in (service.chat(client), client.get("/v1/models"), client.get("/metrics")):
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
            assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert client.get("/healthz").status_code == 200
        assert client.get("/readyz").status_code == 200


def test_with_a_key(service: Served, keys: dict[str, Any]) -> None:
    with service.client(headers=keys["acme"]) as client:
        assert service.chat(client).status_code == 200
        assert client.get("/metrics").status_code == 403
    with service.client(headers={"X-API-Key": "k" * 32}) as client:
        assert service.chat(client).status_code == 200
    with service.client(headers=keys["boss"]) as client:
        assert client.get("/metrics").status_code == 200


def test_tenants_share_nothing(service: Served, keys: dict[str, Any]) -> None:
    """The namespace comes from the key, whatever the body says, and so do sessions."""
    named = {"metadata": {"session_id": "one", "tenant": "acme"}, "user": "acme"}
    for tenant in ("acme", "boss"):
        with service.client(headers=keys[tenant]) as client:
            answer = service.chat(client, REPEATED * 4, max_tokens=40, **named)
            assert answer.status_code == 200
            assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    service.settle()
    spaces = {space.key.tenant: space for space in service.runtime.spaces.all()}
    assert spaces["acme"].index is not spaces["boss"].index
    assert service.runtime.sessions.names(spaces["acme"].key)[-1] == "one"


def test_concurrent_requests(service: Served, keys: dict[str, Any]) -> None:
    with service.client(headers=keys["small"]) as client:
        assert service.chat(client, n=2).status_code == 429
        first = threading.Thread(
            daemon=True,
            target=service.chat,
            args=(client,),
            kwargs={
                "max_tokens": 400,
                "ignore_eos": True,
                "speculative": {"num_speculative_tokens": 0},
            },
        )
        first.start()
        end = time.monotonic() + 10
        while not service.runtime.admission.running_of("small") and time.monotonic() < end:
            time.sleep(0.001)
        answer = service.chat(client)
        ended([first])
        assert answer.status_code == 429
        assert answer.json()["error"]["code"] == "rate_limit_exceeded"
        assert int(answer.headers["Retry-After"]) >= 1
    service.settle()


def test_tokens_per_second(service: Served, keys: dict[str, Any]) -> None:
    with service.client(headers=keys["slow"]) as client:
        assert service.chat(client, max_tokens=30, ignore_eos=True).status_code == 200
        service.settle()
        answer = service.chat(client)
        assert answer.status_code == 429
        assert int(answer.headers["Retry-After"]) > 20


def test_a_revoked_key_stops_working(service: Served, keys: dict[str, Any]) -> None:
    path: Path = keys["path"]
    with service.client(headers=keys["acme"]) as client:
        assert client.get("/v1/models").status_code == 200
        KeyFile.read(path).without(keys["acme id"]).write(path)
        end = time.monotonic() + 10
        while client.get("/v1/models").status_code != 401 and time.monotonic() < end:
            time.sleep(0.1)
        assert client.get("/v1/models").status_code == 401
