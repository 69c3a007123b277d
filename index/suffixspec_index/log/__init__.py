"""Sequence logs: one contract (:mod:`.base`), one file per implementation, this registry at the
door.

>>> log = open_log("memory:")
>>> log.namespaces()
[]
>>> log.close()
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import cast

from suffixspec_index.errors import ConfigError
from suffixspec_index.log.base import (
    START,
    Batch,
    LogStatistics,
    Record,
    RecordKind,
    SequenceLog,
    new_origin,
    purge_mark,
)

LogFactory = Callable[..., SequenceLog]
"""Called as ``factory(url, read_only=..., **options)``; options override those in the URL."""

_BUILT_IN: dict[str, tuple[str, str]] = {
    "memory": ("suffixspec_index.log.memory", "open_memory_log"),
    "journal": ("suffixspec_index.log.journal", "open_journal"),
    "redis": ("suffixspec_index.log.redis", "open_redis_log"),
    "rediss": ("suffixspec_index.log.redis", "open_redis_log"),
    "redis+cluster": ("suffixspec_index.log.redis", "open_redis_log"),
    "rediss+cluster": ("suffixspec_index.log.redis", "open_redis_log"),
}


def open_log(url: str, *, read_only: bool = False, **options: object) -> SequenceLog:
    """Open a log.

    Args:
        url: ``memory:`` or ``memory:NAME`` (shared within the process), ``journal:FOLDER``,
            ``redis://...``, ``rediss://...``, ``redis+cluster://...``. Settings may follow as
            ``?name=value&...``; each implementation documents its own.
        read_only: nothing will be written; a journal can then be read while another process
            writes to it.
        options: the implementation's settings; they override those of the URL.

    Raises:
        ConfigError: no such scheme, or a setting is unknown or out of range.
        LogError: it cannot be opened. MissingDependencyError: a package is needed.
    """
    scheme, colon, _ = url.partition(":") if isinstance(url, str) else ("", "", "")
    if not colon or scheme not in _BUILT_IN:
        raise ConfigError(
            f"log: {scheme!r} is none of {', '.join(f'{s}:' for s in _BUILT_IN)}; "
            "a journal in the folder NAME is journal:NAME"
        )
    module, name = _BUILT_IN[scheme]
    factory = cast(LogFactory, getattr(importlib.import_module(module), name))
    return factory(url, read_only=read_only, **options)


__all__ = [
    "START",
    "Batch",
    "LogFactory",
    "LogStatistics",
    "Record",
    "RecordKind",
    "SequenceLog",
    "new_origin",
    "open_log",
    "purge_mark",
]
