"""Optuna, and where it keeps its trials: memory, a journal file, or Redis.

Optuna is imported when tuning starts; the rest of the package does without it.
"""

from __future__ import annotations

import importlib
import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suffixspec_index.errors import ConfigError, InputError, MissingDependencyError

if TYPE_CHECKING:
    import optuna

_REDIS = ("redis://", "rediss://", "unix://")


def import_optuna() -> Any:
    """The module, silenced: progress is shown by the caller.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        optuna = importlib.import_module("optuna")
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"tune: needs the package {error.name!r}, which is not installed; "
            "run: pip install 'suffixspec[tune]'"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def open_storage(where: str | None) -> optuna.storages.BaseStorage:
    """Where trials are kept.

    Args:
        where: ``None``: in memory, for this run alone. A Redis URL: there, for several machines.
            Else the path of a journal file, made if it does not exist; on a file system that
            several machines share, they can tune together.

    Raises:
        MissingDependencyError: Optuna or, for a URL, redis is not installed.
        ConfigError: the file's folder does not exist, or the kind of URL is unknown.
        InputError: the storage cannot be opened.
    """
    optuna = import_optuna()
    journal = importlib.import_module("optuna.storages.journal")
    if where is None:
        return optuna.storages.InMemoryStorage()  # type: ignore[no-any-return]
    try:
        backend = _redis(journal, where) if "://" in where else _file(journal, where)
        return optuna.storages.JournalStorage(backend)  # type: ignore[no-any-return]
    except (ConfigError, InputError, MissingDependencyError):
        raise
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"storage {where}: cannot be opened ({error}); name a journal file that this command "
            "wrote, or a new one"
        ) from error
    except Exception as error:  # redis raises its own tree, which may not be installed
        if type(error).__module__.split(".")[0] != "redis":
            raise
        raise InputError(f"storage {_without_password(where)}: {error}") from error


def _file(journal: Any, where: str) -> Any:
    path = Path(where).expanduser()
    if path.is_dir():
        raise ConfigError(f"storage {where}: is a folder; name a file")
    if not path.resolve().parent.is_dir():
        raise ConfigError(f"storage {where}: its folder does not exist; create it first")
    if path.is_file() and path.stat().st_size and not _is_journal(path):
        # Optuna would skip what it cannot read, and write behind it.
        raise InputError(f"storage {where}: is no journal of Optuna's; name a new file")
    return journal.JournalFileBackend(str(path))


def _is_journal(path: Path) -> bool:
    with path.open("rb") as file:
        first = file.readline(1 << 16)
    try:
        entry = json.loads(first)
    except ValueError:
        return False
    return isinstance(entry, dict) and "op_code" in entry


def _redis(journal: Any, where: str) -> Any:
    if not where.startswith(_REDIS):
        raise ConfigError(
            f"storage {_without_password(where)}: must be a file or a URL that begins with "
            + ", ".join(_REDIS)
        )
    try:
        importlib.import_module("redis")
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "storage: a Redis URL needs the package 'redis', which is not installed; "
            "run: pip install 'suffixspec[service]'"
        ) from error
    with warnings.catch_warnings():  # Optuna calls this backend experimental since 3.1
        warnings.simplefilter("ignore")
        return journal.JournalRedisBackend(where, prefix="suffixspec:tune")


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
