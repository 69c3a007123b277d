"""Where a Redis log is: ``redis://user:password@host:port/db?name=value``, read and checked once.

Schemes: ``redis``, ``rediss`` (TLS), and both with ``+cluster`` appended, where several hosts may
stand separated by commas. A plain URL that turns out to name a node of a cluster works as well.
Whatever is special in a user's name or a password is percent-encoded, as everywhere in URLs.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from suffixspec_index.errors import ConfigError, LogRefusedError
from suffixspec_index.log.codec import COMPRESSIONS
from suffixspec_index.log.options import Option, choice, read_options, size, span

DEFAULT_PORT = 6379
SCHEMES = ("redis", "rediss", "redis+cluster", "rediss+cluster")
_VERIFY = {"required": ssl.CERT_REQUIRED, "none": ssl.CERT_NONE}


def _path(name: str) -> Option:
    def read(value: object) -> str:
        text = str(value)
        if not text:
            raise ConfigError(f"{name}: must be the path of a file, got {value!r}")
        return text

    return read


def _prefix(value: object) -> str:
    text = str(value)
    if not text or any(c in "{}" or c.isspace() for c in text):
        raise ConfigError(f"prefix: must be a text without braces and spaces, got {value!r}")
    return text


def _count(name: str, most: int) -> Option:
    def read(value: object) -> int:
        text = str(value)
        if not text.isdecimal() or int(text) > most:
            raise ConfigError(f"{name}: must be an integer from 0 to {most}, got {value!r}")
        return int(text)

    return read


OPTIONS: Mapping[str, Option] = {
    "max_bytes": size("max_bytes", least=1 << 10),
    "max_age": span("max_age", least=1.0),
    "prefix": _prefix,
    "compression": choice("compression", tuple(COMPRESSIONS)),
    "timeout": span("timeout", least=0.05),
    "connect_timeout": span("connect_timeout", least=0.05),
    "read_pause": span("read_pause"),
    "replicas": _count("replicas", 16),
    "password_file": _path("password_file"),
    "ssl_ca_certs": _path("ssl_ca_certs"),
    "ssl_certfile": _path("ssl_certfile"),
    "ssl_keyfile": _path("ssl_keyfile"),
    "ssl_cert_reqs": choice("ssl_cert_reqs", tuple(_VERIFY)),
}
"""The settings that may follow in a URL; see :class:`RedisPlace`."""


@dataclass(frozen=True, slots=True, repr=False)
class RedisPlace:
    """A Redis and how to use it.

    Attributes:
        nodes: hosts and ports to begin with; of a cluster any few.
        cluster: the URL says that it is one.
        tls: encrypted.
        user: an ACL user; ``None``: the default one.
        password: ``None``: none, or the one in ``password_file``.
        password_file: read anew for every connection, so a rotated secret needs no restart.
        db: number of the database; 0 in a cluster.
        prefix: what all keys begin with.
        max_bytes: of compressed records of each namespace; the oldest go first.
        max_age: seconds after which records go; ``None``: never.
        compression: a name of the codec's; ``None``: the best that is installed.
        timeout: seconds to wait for a reply.
        connect_timeout: seconds to wait for a connection.
        read_pause: seconds between two waiting reads that found something: with many followers
            Redis is asked less often, for more at once.
        replicas: Redis replicas that must have a record before it counts as written.
        ssl_ca_certs, ssl_certfile, ssl_keyfile: PEM files; without the first the system's
            authorities are trusted.
        ssl_cert_reqs: ``required``, or ``none`` to trust anybody.
    """

    nodes: tuple[tuple[str, int], ...]
    cluster: bool = False
    tls: bool = False
    user: str | None = None
    password: str | None = None
    password_file: str | None = None
    db: int = 0
    prefix: str = "suffixspec"
    max_bytes: int | None = 256 << 20
    max_age: float | None = None
    compression: str | None = None
    timeout: float = 5.0
    connect_timeout: float = 3.0
    read_pause: float = 0.01
    replicas: int = 0
    ssl_ca_certs: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_cert_reqs: str = "required"

    @property
    def url(self) -> str:
        """Without the password and the settings: for messages."""
        scheme = ("rediss" if self.tls else "redis") + ("+cluster" if self.cluster else "")
        login = ""
        if self.user or self.password or self.password_file:
            login = f"{self.user or ''}:***@"
        return f"{scheme}://{login}{','.join(_host(*n) for n in self.nodes)}/{self.db}"

    def __repr__(self) -> str:
        return f"RedisPlace({self.url!r})"

    def credentials(self) -> tuple[str | None, str | None]:
        """User and password of the next connection.

        Raises:
            LogRefusedError: the password file cannot be read.
        """
        if self.password_file is None:
            return self.user, self.password
        try:
            return self.user, Path(self.password_file).read_text().strip()
        except OSError as error:
            raise LogRefusedError(
                f"{self.url}: password_file: {self.password_file} cannot be read "
                f"({error.strerror or error})"
            ) from None


def _host(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read_place(url: str, options: Mapping[str, object]) -> RedisPlace:
    """The place that a URL names, with settings that override those of the URL.

    Raises:
        ConfigError: a part of it is wrong. Messages never hold the password.
    """
    scheme, _, _ = url.partition(":")
    if scheme not in SCHEMES:
        raise ConfigError(f"log: {scheme!r} is none of {', '.join(SCHEMES)}")
    if "@" in url.partition("?")[2]:
        raise ConfigError(
            f"{scheme}: something like a login stands behind '?'; write %3F for a '?' in a password"
        )
    place, values = read_options(url, f"{scheme}:", OPTIONS, options)
    if not place.startswith("//"):
        raise ConfigError(f"{scheme}: write {scheme}://HOST:PORT/DB")
    login, at, rest = place[2:].rpartition("@")
    hosts, _, path = rest.partition("/")
    user, colon, password = login.partition(":")
    if at and not colon:
        raise ConfigError(f"{scheme}: a login is USER:PASSWORD@, or :PASSWORD@ without a user")
    cluster = scheme.endswith("+cluster")
    nodes = tuple(_node(scheme, part) for part in hosts.split(","))
    if len(nodes) > 1 and not cluster:
        raise ConfigError(f"{scheme}: several hosts are a cluster; write {scheme}+cluster://")
    if password and "password_file" in values:
        raise ConfigError("password_file: the URL has a password already; leave one out")
    return RedisPlace(
        nodes=nodes,
        cluster=cluster,
        tls=scheme.startswith("rediss"),
        user=unquote(user) or None,
        password=unquote(password) or None,
        db=_database(scheme, path, cluster),
        **values,  # type: ignore[arg-type]
    )


def _node(scheme: str, text: str) -> tuple[str, int]:
    host, colon, digits = text.rpartition(":")
    if not colon or text.endswith("]"):  # an IPv6 address without a port ends so
        host, digits = text, str(DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not digits.isdecimal() or not 0 < int(digits) < 1 << 16:
        raise ConfigError(f"{scheme}: the port must be an integer below 65536, got {digits!r}")
    return host or "localhost", int(digits)


def _database(scheme: str, path: str, cluster: bool) -> int:
    if not path.strip("/"):
        return 0
    if not path.isdecimal():
        raise ConfigError(f"{scheme}: the database must be a number, got {path!r}")
    if cluster and int(path):
        raise ConfigError(f"{scheme}: a cluster has only database 0, got {path}")
    return int(path)
