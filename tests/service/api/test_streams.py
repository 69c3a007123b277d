"""Packets of a fixed cadence, and errors after a stream has begun."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from suffixspec_service.api.streams import FRAME_BYTES, padded
from tests.service.serving import CHATML, Served, served

if TYPE_CHECKING:
    from suffixspec_engine.models import TargetModel


@pytest.mark.parametrize("size", [0, 1, 500, FRAME_BYTES - 2, FRAME_BYTES - 1, FRAME_BYTES])
def test_padded_frames_have_one_size(size: int) -> None:
    frame = padded(b"x" * size)
    assert len(frame) == FRAME_BYTES
    rest = frame[size:].decode()
    assert all(not line or line.startswith(":") for line in rest.split("\n"))


@pytest.fixture(scope="module")
def paced(tiny_target: TargetModel) -> Iterator[Served]:
    with served(tiny_target, chat_template=CHATML, stream_cadence_ms=20) as service:
        yield service


def events(raw: bytes) -> list[Any]:
    """The values of server-sent events, comments left out."""
    values = []
    for block in raw.decode().split("\n\n"):
        lines = [line[6:] for line in block.split("\n") if line.startswith("data: ")]
        if lines and lines[0] != "[DONE]":
            values.append(json.loads(lines[0]))
    return values


def test_packets_have_one_size_and_a_fixed_cadence(paced: Served) -> None:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 60,
        "temperature": 0,
        "ignore_eos": True,
    }
    with paced.client() as client:
        whole = client.post("/v1/chat/completions", json=body).json()
        with client.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as answer:
            chunks = list(answer.iter_raw())
    raw = b"".join(chunks)
    assert len(raw) % FRAME_BYTES == 0
    text = "".join(
        e["choices"][0]["delta"].get("content") or "" for e in events(raw) if e["choices"]
    )
    assert text == whole["choices"][0]["message"]["content"]
    assert b"[DONE]" in raw
    paced.settle()


def test_frames_come_at_the_cadence_whatever_there_is_to_say(paced: Served) -> None:
    """Also while nothing is said yet: the number of packets follows from the time alone."""
    body = {
        "model": "tiny",
        "prompt": "hello",
        "max_tokens": 200,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
    }
    began = time.monotonic()
    with paced.client() as client, client.stream("POST", "/v1/completions", json=body) as answer:
        size = sum(len(chunk) for chunk in answer.iter_raw())
    frames = size // FRAME_BYTES
    assert frames <= (time.monotonic() - began) / 0.020 + 2
    paced.settle()


def test_a_stream_that_fails_says_so(tiny: Served) -> None:
    """The engine's own failure, in the middle of a stream: an event in the errors' shape."""
    step = tiny.engine._core.step
    calls = 0

    def failing() -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise RuntimeError("made up")
        step()

    tiny.engine._core.step = failing  # type: ignore[method-assign]
    try:
        with tiny.client() as client:
            answer = tiny.chat(client, max_tokens=40, ignore_eos=True, stream=True)
            assert answer.status_code == 200
            last = events(answer.content)[-1]
            assert last["error"]["code"] == "generation_failed"
            assert "made up" in last["error"]["message"]
            assert "[DONE]" not in answer.text
            calls = 2
            broken = tiny.chat(client, max_tokens=40, ignore_eos=True)
            assert broken.status_code == 500
            assert broken.json()["error"]["type"] == "server_error"
    finally:
        tiny.engine._core.step = step  # type: ignore[method-assign]
    tiny.settle()


def test_a_stream_is_plain_server_sent_events(tiny: Served) -> None:
    with tiny.client() as client:
        answer = tiny.chat(client, stream=True, stream_options={"include_usage": True})
    assert isinstance(answer, httpx.Response)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.text.endswith("data: [DONE]\n\n")
    found = events(answer.content)
    assert found[-1]["usage"]["completion_tokens"] == 8
    assert all(e["usage"] is None for e in found[:-1])
