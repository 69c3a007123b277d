from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from suffixspec_index.errors import ConfigError, InputError, MissingDependencyError
from suffixspec_traces.tuning.storage import import_optuna, open_storage


def test_memory_and_journal(tmp_path: Path) -> None:
    optuna = import_optuna()
    assert isinstance(open_storage(None), optuna.storages.InMemoryStorage)
    file = tmp_path / "trials.journal"
    optuna.create_study(storage=open_storage(str(file)), study_name="a")
    again = optuna.load_study(storage=open_storage(str(file)), study_name="a")
    assert again.study_name == "a"


def test_wrong_places_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder"):
        open_storage(str(tmp_path))
    with pytest.raises(ConfigError, match="does not exist"):
        open_storage(str(tmp_path / "none" / "trials"))
    with pytest.raises(ConfigError, match="redis://") as error:
        open_storage("mysql://me:secret@host/db")
    assert "secret" not in str(error.value)


def test_a_foreign_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("not a journal\n")
    with pytest.raises(InputError, match=r"notes\.txt"):
        open_storage(str(file))
    assert file.read_text() == "not a journal\n"


def test_missing_packages_name_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(MissingDependencyError, match=r"suffixspec\[service\]"):
        open_storage("redis://localhost")
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingDependencyError, match=r"suffixspec\[tune\]"):
        import_optuna()


def test_a_redis_url_reaches_the_redis_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def backend(url: str, prefix: str) -> object:
        asked.update(url=url, prefix=prefix)
        return object()

    class RefusedError(Exception):
        __module__ = "redis.exceptions"

    def refuse(backend: object) -> None:
        raise RefusedError("connection refused")

    monkeypatch.setitem(sys.modules, "redis", SimpleNamespace())
    journal = importlib.import_module("optuna.storages.journal")
    monkeypatch.setattr(journal, "JournalRedisBackend", backend)
    monkeypatch.setattr(import_optuna().storages, "JournalStorage", refuse)
    with pytest.raises(InputError, match="connection refused") as error:
        open_storage("redis://:secret@host:6379/0")
    assert "secret" not in str(error.value)
    assert asked == {"url": "redis://:secret@host:6379/0", "prefix": "suffixspec:tune"}
