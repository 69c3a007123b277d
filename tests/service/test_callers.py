"""Keys on disk and tenants."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from suffixspec_index.errors import AuthenticationError, ConfigError, ForbiddenError
from suffixspec_service.callers import Callers, KeyFile, require_admin
from suffixspec_service.config import Limits, ServiceConfig, TlsConfig, is_loopback


def test_a_key_is_found_and_never_stored(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "keys.json"
    file, record, key = KeyFile.new().with_new_key("acme", note="mine", limits=Limits())
    file.write(path)
    assert key not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]
    assert KeyFile.read(path) == file
    tenant = Callers(path).authenticate(key)
    assert (tenant.name, tenant.admin) == ("acme", False)
    assert record.key_id in path.read_text()


@pytest.mark.parametrize("key", [None, "", "x", "sk-suffixspec-" + "A" * 43, "\ud800", "é" * 40])
def test_other_keys_are_refused_alike(tmp_path: Path, key: str | None) -> None:
    file, _, _ = KeyFile.new().with_new_key("acme")
    file.write(tmp_path / "keys.json")
    with pytest.raises(AuthenticationError):
        Callers(tmp_path / "keys.json", ["other:" + "k" * 40]).authenticate(key)


def test_without_keys_everybody_is_local() -> None:
    tenant = Callers(limits=Limits(concurrent_requests=3)).authenticate(None)
    assert (tenant.name, tenant.admin, tenant.limits.concurrent_requests) == ("local", True, 3)


def test_limits_come_from_the_file_or_the_defaults(tmp_path: Path) -> None:
    file, _, one = KeyFile.new().with_new_key("one", limits=Limits(index_bytes=1 << 21))
    file, _, two = file.with_new_key("two", admin=True)
    file.write(tmp_path / "keys.json")
    callers = Callers(tmp_path / "keys.json", limits=Limits(concurrent_requests=7))
    assert callers.authenticate(one).limits == Limits(index_bytes=1 << 21)
    assert callers.authenticate(two).limits.concurrent_requests == 7
    require_admin(callers.authenticate(two), "x")
    with pytest.raises(ForbiddenError):
        require_admin(callers.authenticate(one), "x")


def test_a_file_that_becomes_unreadable_lets_nobody_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("suffixspec_service.callers._LOOK_AGAIN_S", 0.0)
    path = tmp_path / "keys.json"
    file, record, key = KeyFile.new().with_new_key("acme")
    file.write(path)
    callers = Callers(path)
    callers.authenticate(key)
    path.write_text("{")
    with pytest.raises(AuthenticationError):
        callers.authenticate(key)
    file.write(path)
    callers.authenticate(key)
    file.without(record.key_id).write(path)
    with pytest.raises(AuthenticationError):
        callers.authenticate(key)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 2}', '{"version": 1, "salt": "x", "keys": []}']
)
def test_files_that_are_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="keys_file"):
        Callers(path)


def test_unknown_fields_and_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    KeyFile.new().write(path)
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {"tenants": {"a": {"speed": 1}}}))
    with pytest.raises(ConfigError, match="speed"):
        KeyFile.read(path)
    with pytest.raises(ConfigError, match="no 'key-1'"):
        KeyFile.new().without("key-1")


@pytest.mark.parametrize("entry", ["key", "acme:short", ":" + "k" * 30, "a b:" + "k" * 30])
def test_keys_in_the_settings(entry: str) -> None:
    with pytest.raises(ConfigError) as error:
        Callers(api_keys=[entry])
    assert "k" * 30 not in str(error.value)


@pytest.mark.parametrize("tenant", ["", ".", "a/b", "a b", "é", "x" * 64])
def test_names_of_tenants(tenant: str) -> None:
    with pytest.raises(ConfigError, match="tenant"):
        KeyFile.new().with_new_key(tenant)


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.4", False),
        ("example.org", False),
        ("", False),
    ],
)
def test_who_can_reach_an_address(host: str, local: bool) -> None:
    assert is_loopback(host) is local
    config = ServiceConfig(host=host)
    if local:
        config.check_exposure()
    else:
        with pytest.raises(ConfigError, match="suffixspec keys add"):
            config.check_exposure()
        ServiceConfig(host=host, api_keys=("a:" + "k" * 30,)).check_exposure()
        ServiceConfig(host=host, allow_public_without_keys=True).check_exposure()


def test_certificates_must_be_there(tmp_path: Path) -> None:
    path = tmp_path / "x.pem"
    with pytest.raises(ConfigError, match="there is no file"):
        TlsConfig(certificate=path, key=path)
    path.write_text("no certificate")
    with pytest.raises(ConfigError, match="not a PEM certificate"):
        TlsConfig(certificate=path, key=path)
