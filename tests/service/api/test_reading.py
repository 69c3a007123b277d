"""Where bodies are read: not the time it takes, the thread it happens in."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from suffixspec_index.errors import InputError
from suffixspec_service.api import reading
from suffixspec_service.api.reading import Reading


class Pool:
    """What a runtime has for it."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(2)

    async def in_pool(self, call: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


@pytest.fixture
def decide() -> Reading:
    return Reading(Pool())  # type: ignore[arg-type]


def body(length: str | None) -> Any:
    return SimpleNamespace(headers={} if length is None else {"content-length": length})


async def in_the_loop(decide: Reading, length: str | None) -> bool:
    return await decide(body(length), threading.current_thread) is threading.main_thread()


@pytest.mark.parametrize(
    ("length", "expected"),
    [("1", True), ("2048", True), ("2049", False), (None, False), ("-5", False), ("²", False)],
)
async def test_short_bodies_only(decide: Reading, length: str | None, expected: bool) -> None:
    assert await in_the_loop(decide, length) is expected


async def test_of_many_at_once_only_one(decide: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_PAUSE_S", 60.0)
    places = await asyncio.gather(*(in_the_loop(decide, "100") for _ in range(64)))
    assert sum(places) == 1


async def test_again_after_a_pause(decide: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_PAUSE_S", 0.0)
    assert await in_the_loop(decide, "100")
    assert await in_the_loop(decide, "100")


async def test_errors_come_through(decide: Reading) -> None:
    def refuse() -> None:
        raise InputError("messages: wrong")

    for length in ("10", "9999"):
        with pytest.raises(InputError, match="messages: wrong"):
            await decide(body(length), refuse)
