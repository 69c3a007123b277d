"""What a Redis error means for the log: try again later, or somebody must do something.

Redis names its errors by a first word (``OOM``, ``READONLY``, ``WRONGPASS``, ...); the client turns
some into classes and leaves the others as text. Here each becomes one of our errors with a remedy.
Messages never hold a password: Redis does not repeat it, and places are named without it.
"""

from __future__ import annotations

import ssl

import redis.exceptions as R

from suffixspec_index.errors import (
    LogError,
    LogFormatError,
    LogRefusedError,
    LogUnavailableError,
)

OLDEST = (6, 2)
"""The first version with ``XTRIM MINID``, which retention needs."""

_REMEDIES: tuple[tuple[str, type[LogError], str], ...] = (
    ("WRONGPASS", LogRefusedError, "the user or the password is wrong"),
    ("NOAUTH", LogRefusedError, "it asks for a password; put it into the URL or a password_file"),
    ("NOPERM", LogRefusedError, "the user may not do this; docs/deployment.md has the rule"),
    ("OOM", LogRefusedError, "its memory is full; raise maxmemory, or lower the log's max_bytes"),
    ("READONLY", LogRefusedError, "it is a replica that cannot be written to"),
    ("MISCONF", LogRefusedError, "it cannot save to its disk and refuses to write"),
    ("NOREPLICAS", LogRefusedError, "it has fewer replicas than its min-replicas-to-write"),
    ("LOADING", LogUnavailableError, "it is still loading its data"),
    ("BUSY", LogUnavailableError, "a script of somebody else keeps it busy"),
    ("CLUSTERDOWN", LogUnavailableError, "its cluster has no master for a slot"),
    ("UNBLOCKED", LogUnavailableError, "its role changed while it was waited for"),
    ("MASTERDOWN", LogUnavailableError, "its master cannot be reached"),
    ("TRYAGAIN", LogUnavailableError, "its cluster is moving a slot"),
    ("MOVED", LogUnavailableError, "its cluster has moved a slot"),
    ("ASK", LogUnavailableError, "its cluster is moving a slot"),
    ("WRONGTYPE", LogFormatError, "a key of the log holds something else; use another prefix"),
    ("NOPROTO", LogRefusedError, "it does not speak the protocol"),
)
_CODES: tuple[tuple[type[Exception], str], ...] = (
    (R.BusyLoadingError, "LOADING"),
    (R.OutOfMemoryError, "OOM"),
    (R.ReadOnlyError, "READONLY"),
    (R.NoPermissionError, "NOPERM"),
    (R.AuthorizationError, "NOPERM"),
    (R.MasterDownError, "MASTERDOWN"),
    (R.ClusterDownError, "CLUSTERDOWN"),
    (R.TryAgainError, "TRYAGAIN"),
    (R.MovedError, "MOVED"),
    (R.AskError, "ASK"),
)


def translate(error: BaseException, place: str) -> LogError:
    """Our error for one of the client's; ``place`` is the URL without secrets."""
    if isinstance(error, LogError):
        return error
    code = _code(error)
    for known, kind, remedy in _REMEDIES:
        if code == known:
            return kind(f"{place}: {remedy} ({known})")
    if _certificate_refused(error):
        return LogRefusedError(
            f"{place}: its certificate is not trusted; name the authority with ssl_ca_certs "
            f"({_reason(error)})"
        )
    if isinstance(error, R.TimeoutError | TimeoutError):
        return LogUnavailableError(f"{place}: does not answer in time")
    if isinstance(error, R.ConnectionError | OSError | R.ClusterError | R.RedisClusterException):
        return LogUnavailableError(f"{place}: cannot be reached ({_reason(error)})")
    return LogRefusedError(f"{place}: refuses ({_reason(error)})")


def too_old(place: str, version: str) -> LogRefusedError:
    """The server's version is below :data:`OLDEST`."""
    return LogRefusedError(
        f"{place}: is Redis {version}; the log needs {'.'.join(map(str, OLDEST))} or newer"
    )


def is_connection_lost(error: BaseException) -> bool:
    """Whether a new connection may help at once: the old one was closed or refused."""
    if isinstance(error, R.AuthenticationError | R.AuthorizationError | R.BusyLoadingError):
        return False
    if isinstance(error, R.TimeoutError | TimeoutError) or _certificate_refused(error):
        return False
    return isinstance(error, R.ConnectionError | OSError)


def _code(error: BaseException) -> str:
    """The word Redis names the error by."""
    told = getattr(error, "status_code", None)  # newer clients keep it
    if isinstance(told, str) and told.isupper() and told != "ERR":
        return told
    if isinstance(error, R.AuthenticationError):
        text = str(error).lower()
        return "NOAUTH" if "required" in text or "already authenticated" in text else "WRONGPASS"
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    word = str(error).partition(" ")[0]
    return word.rstrip(":") if word.isupper() else ""


def _certificate_refused(error: BaseException) -> bool:
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ssl.SSLCertVerificationError):
            return True
        seen = seen.__cause__ or seen.__context__
    return "CERTIFICATE_VERIFY_FAILED" in str(error)


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text[:200] or type(error).__name__
