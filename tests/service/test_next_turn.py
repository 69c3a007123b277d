"""The next turn comes as soon as the last byte of an answer, before its session was remembered."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from suffixspec_service.endings import Endings
from tests.service.serving import CHATML, Served, served
from tests.threads import ended

KEYS = ("one:key-of-one-which-is-long-enough", "two:key-of-two-which-is-long-enough")
FIRST = [{"role": "user", "content": "one two three four five six seven eight nine ten"}]


@pytest.fixture(scope="module")
def service(tiny_target: Any) -> Iterator[Served]:
    with served(tiny_target, chat_template=CHATML, api_keys=KEYS) as service:
        yield service


@pytest.fixture
def slow(service: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Remembering a session waits until the event that this gives is set."""
    may, remember = threading.Event(), service.runtime.sessions.remember

    def slowly(*args: Any) -> None:
        assert may.wait(30)
        remember(*args)

    monkeypatch.setattr(service.runtime.sessions, "remember", slowly)
    yield may
    may.set()


def client_of(service: Served, key: str) -> httpx.Client:
    return service.client(headers={"Authorization": f"Bearer {key.partition(':')[2]}"})


def ask(client: httpx.Client, messages: list[dict[str, str]], **fields: Any) -> httpx.Response:
    body = {"model": "tiny", "messages": messages, "max_tokens": 12, "temperature": 0}
    return client.post("/v1/chat/completions", json=body | {"ignore_eos": True} | fields)


def said(answer: httpx.Response) -> str:
    """The text of a whole or streamed answer."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return str(answer.json()["choices"][0]["message"]["content"])
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def follow_up(answer: httpx.Response) -> list[dict[str, str]]:
    turn = {"role": "assistant", "content": said(answer)}
    return [*FIRST, turn, {"role": "user", "content": "go on"}]


@pytest.mark.parametrize("streamed", [False, True])
def test_the_next_turn_waits_for_the_last_one(
    service: Served, slow: threading.Event, streamed: bool
) -> None:
    with client_of(service, KEYS[0]) as client:
        first = ask(client, FIRST, stream=streamed)  # answered, though nothing is remembered yet
        assert first.status_code == 200
        assert len(service.runtime.endings) == 1
        threading.Timer(0.3, slow.set).start()
        began = time.monotonic()
        second = ask(client, follow_up(first))
        assert time.monotonic() - began > 0.25
    assert second.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 20
    service.settle()
    assert len(service.runtime.endings) == 0


def test_nobody_else_waits(service: Served, slow: threading.Event) -> None:
    """Other tenants, and whoever names a session."""
    with client_of(service, KEYS[0]) as client, client_of(service, KEYS[1]) as other:
        assert ask(client, FIRST).status_code == 200
        assert len(service.runtime.endings) == 1
        named = {"session_id": "mine"}
        assert ask(client, FIRST, max_tokens=1, metadata=named).status_code == 200
        assert ask(other, FIRST, max_tokens=1).status_code == 200
        assert not slow.is_set()
        slow.set()
    service.settle()


def test_without_delay_every_turn_is_recognised(service: Served) -> None:
    """As quickly as a client can, many conversations at once."""
    failures: list[tuple[int, int]] = []

    def talk(number: int) -> None:
        with client_of(service, KEYS[0]) as client:
            words = f"conversation {number} about several things, told at length"
            messages = [{"role": "user", "content": words}]
            for turn in range(12):
                answer = ask(client, messages, max_tokens=4)
                known = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
                if turn and not known:
                    failures.append((number, turn))
                messages.append({"role": "assistant", "content": said(answer)})
                messages.append({"role": "user", "content": f"turn {turn}"})

    threads = [threading.Thread(daemon=True, target=talk, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    ended(threads)
    assert failures == []
    service.settle()


async def test_only_what_was_told_before_is_waited_for() -> None:
    endings = Endings()
    await endings.wait("one")
    first, other = endings.begin("one"), endings.begin("two")
    first.remembered()
    first.remembered()
    await endings.wait("one")
    assert len(endings) == 1
    other.remembered()
    await endings.wait("two")
    assert len(endings) == 0
