"""Who calls: API keys, each belonging to a tenant. Keys are kept as hashes only.

A key is 256 random bits, so one round of a keyed hash is as good as many: there is nothing to
guess. The hash is keyed by a salt of the file's own and compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from suffixspec_index.errors import AuthenticationError, ConfigError, ForbiddenError
from suffixspec_index.replacing import replacing
from suffixspec_service.config import Limits, ServiceConfig

KEY_PREFIX = "sk-suffixspec-"
LOCAL_TENANT = "local"
"""Who everybody is where there are no keys."""

_LEAST_KEY_LENGTH = 20
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_LOOK_AGAIN_S = 1.0
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Tenant:
    """On whose behalf a request is made.

    Attributes:
        name: the first part of every namespace of theirs.
        limits: what they may use.
        admin: may see all tenants.
    """

    name: str
    limits: Limits = field(default_factory=Limits)
    admin: bool = False


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A key as it is stored.

    Attributes:
        key_id: names the key in lists; says nothing about it.
        tenant: whose it is.
        digest: the key's hash, in hex.
        admin: see :class:`Tenant`.
        created: seconds since 1970.
        note: what the operator wrote beside it.
    """

    key_id: str
    tenant: str
    digest: str
    admin: bool = False
    created: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class KeyFile:
    """The contents of a keys file: salt, keys, and limits by tenant."""

    salt: str
    keys: tuple[KeyRecord, ...] = ()
    limits: Mapping[str, Limits] = field(default_factory=dict)

    @classmethod
    def new(cls) -> KeyFile:
        """No keys yet."""
        return cls(salt=secrets.token_hex(16))

    @classmethod
    def read(cls, path: Path) -> KeyFile:
        """Read a file.

        Raises:
            ConfigError: it cannot be read, or is not a keys file.
        """
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"keys_file: {str(path)!r} cannot be read ({error})") from None
        try:
            if values["version"] != _VERSION:
                raise ValueError(f"version {values['version']!r} is not {_VERSION}")
            bytes.fromhex(values["salt"])
            return cls(
                salt=values["salt"],
                keys=tuple(KeyRecord(**record) for record in values["keys"]),
                limits={name: Limits(**given) for name, given in values["tenants"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"keys_file: {str(path)!r} is not a keys file ({error!r}); "
                "'suffixspec keys add' makes one"
            ) from None

    def write(self, path: Path) -> None:
        """Replace the file in one step, readable by its owner alone: whoever reads it meanwhile
        sees the old one or the new one, also after a crash."""
        values = {
            "version": _VERSION,
            "salt": self.salt,
            "keys": [_fields(record) for record in self.keys],
            "tenants": {name: _fields(limits) for name, limits in self.limits.items()},
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(json.dumps(values, indent=2).encode())

    def with_new_key(
        self, tenant: str, *, admin: bool = False, note: str = "", limits: Limits | None = None
    ) -> tuple[KeyFile, KeyRecord, str]:
        """A file with one more key: the file, its record, and the key, which is kept nowhere.

        Raises:
            ConfigError: the tenant's name is not one.
        """
        check_tenant_name(tenant)
        key = KEY_PREFIX + secrets.token_urlsafe(32)
        record = KeyRecord(
            key_id=f"key-{secrets.token_hex(4)}",
            tenant=tenant,
            digest=digest(key, self.salt),
            admin=admin,
            created=int(time.time()),
            note=note,
        )
        by_tenant = dict(self.limits)
        if limits is not None:
            by_tenant[tenant] = limits
        return replace(self, keys=(*self.keys, record), limits=by_tenant), record, key

    def without(self, key_id: str) -> KeyFile:
        """A file without one key.

        Raises:
            ConfigError: there is no such key.
        """
        kept = tuple(record for record in self.keys if record.key_id != key_id)
        if len(kept) == len(self.keys):
            known = ", ".join(record.key_id for record in self.keys) or "none"
            raise ConfigError(f"key: there is no {key_id!r}; known are: {known}")
        return replace(self, keys=kept)


class Callers:
    """From a key to a tenant. Thread-safe.

    A keys file is read again when it has changed, at most once a second, so that a revoked key
    stops working without a restart. Where it then cannot be read, nobody gets in by it.

    Args:
        keys_file: see :class:`~.config.ServiceConfig`.
        api_keys: ``tenant:key`` each.
        limits: of tenants that the file says nothing about.

    Raises:
        ConfigError: the file cannot be read, or a key of ``api_keys`` is not one.
    """

    def __init__(
        self,
        keys_file: Path | None = None,
        api_keys: Iterable[str] = (),
        *,
        limits: Limits | None = None,
    ) -> None:
        self._path = keys_file
        self._limits = limits or Limits()
        self._own = _own_keys(api_keys)
        self._lock = threading.Lock()
        self._file = KeyFile.read(keys_file) if keys_file is not None else None
        self._stamp = _stamp(keys_file)
        self._looked = time.monotonic()

    @classmethod
    def of(cls, config: ServiceConfig) -> Callers:
        """The callers of a service."""
        return cls(config.keys_file, config.api_keys, limits=config.limits)

    @property
    def needs_key(self) -> bool:
        """Whether there are keys at all; without any, everybody is the tenant ``local``."""
        return self._path is not None or bool(self._own.keys)

    def authenticate(self, key: str | None) -> Tenant:
        """Whose key it is. O(keys), about a microsecond each.

        Args:
            key: as sent; ``None``: none was.

        Raises:
            AuthenticationError: no key, or nobody's. The message does not tell why a key is
                refused.
        """
        if not self.needs_key:
            return Tenant(LOCAL_TENANT, self._limits, admin=True)
        if not key:
            raise AuthenticationError(
                "authorization: no API key was given; send 'Authorization: Bearer KEY'"
            )
        found: tuple[KeyRecord, KeyFile] | None = None
        for file in filter(None, (self._own, self._current())):
            wanted = digest(key, file.salt)
            for record in file.keys:  # all of them, so that time tells nothing
                if hmac.compare_digest(record.digest, wanted):
                    found = (record, file)
        if found is None:
            raise AuthenticationError("authorization: the API key is not valid")
        record, file = found
        return Tenant(record.tenant, file.limits.get(record.tenant, self._limits), record.admin)

    def _current(self) -> KeyFile | None:
        if self._path is None:
            return None
        with self._lock:
            now = time.monotonic()
            if now - self._looked >= _LOOK_AGAIN_S:
                self._looked = now
                stamp = _stamp(self._path)
                if stamp != self._stamp:
                    self._stamp = stamp
                    try:
                        self._file = KeyFile.read(self._path)
                    except ConfigError:
                        self._file = None
            return self._file


def require_admin(tenant: Tenant, what: str) -> None:
    """Raise :class:`ForbiddenError` unless the tenant is an administrator."""
    if not tenant.admin:
        raise ForbiddenError(f"{what}: needs a key made with 'suffixspec keys add --admin'")


def check_tenant_name(name: str) -> None:
    """Raise :class:`ConfigError` unless ``name`` can be a tenant's."""
    if not _TENANT.fullmatch(name):
        raise ConfigError(
            f"tenant: {name!r} is not a name; use 1 to 63 letters, digits, '.', '_' or '-'"
        )


def digest(key: str, salt: str) -> str:
    """The hash of a key, in hex."""
    sent = key.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(
        sent, key=bytes.fromhex(salt), digest_size=32, person=b"suffixspec-key"
    ).hexdigest()


def _own_keys(api_keys: Iterable[str]) -> KeyFile:
    file = KeyFile.new()
    records = []
    for number, given in enumerate(api_keys, start=1):
        tenant, colon, key = given.partition(":")
        if not colon or len(key) < _LEAST_KEY_LENGTH:
            raise ConfigError(
                f"api_keys: entry {number} is not TENANT:KEY with a key of at least "
                f"{_LEAST_KEY_LENGTH} characters; make long random ones"
            )
        check_tenant_name(tenant)
        records.append(KeyRecord(f"setting-{number}", tenant, digest(key, file.salt)))
    return replace(file, keys=tuple(records))


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    """What changes when a file is replaced."""
    try:
        found = path.stat() if path is not None else None
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino) if found else None


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}
