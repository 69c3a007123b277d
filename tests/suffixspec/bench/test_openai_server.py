from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")

from suffixspec.bench.backends import Sampling
from suffixspec.bench.backends.openai_server import SESSION_HEADER, OpenAIBackend
from suffixspec.bench.results import RequestResult
from suffixspec.bench.workload import BenchRequest
from suffixspec_index.errors import ConfigError, InputError
from tests.suffixspec.bench.fake_server import FakeServer, running


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with running() as fake:
        yield fake


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def request(tokens: int = 5, **fields: Any) -> BenchRequest:
    prompt = np.array([7, 8, 9], np.int32)
    return BenchRequest(0, "talk", prompt, tokens, **fields)


async def ask(url: str, *requests: BenchRequest, **options: Any) -> list[RequestResult]:
    backend = await OpenAIBackend.connect(url, **options)
    try:
        return [await backend.send(one) for one in requests]
    finally:
        await backend.aclose()


async def test_completions_are_given_token_ids(server: FakeServer) -> None:
    sampling = Sampling(top_p=0.5, seed=3, ignore_eos=True)
    (result,) = await ask(server.url + "/v1/", request(), sampling=sampling)
    assert result.error is None
    assert result.text == "3.0 3.1 3.2 3.3 3.4 "
    assert (result.output_tokens, result.prompt_tokens) == (5, 3)
    assert len(result.arrivals) == 3  # of two tokens each
    assert result.sent < result.arrivals[0] <= result.arrivals[2] <= result.ended
    (body,) = server.bodies
    assert body["prompt"] == [7, 8, 9]
    assert body["model"] == "fake-model"
    assert (body["temperature"], body["top_p"], body["seed"]) == (0.0, 0.5, 3)
    assert body["ignore_eos"] is True
    assert "top_k" not in body
    assert server.headers[0][SESSION_HEADER.lower()] == "talk"
    assert "authorization" not in server.headers[0]


async def test_chat_is_given_messages(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    asked = request(messages=({"role": "user", "content": "four"},))
    options: dict[str, Any] = {"endpoint": "/v1/chat/completions", "model": "named"}
    (result,) = await ask(server.url, asked, **options, extra_body={"x": 1})
    assert result.text == "4.0 4.1 4.2 4.3 4.4 "
    assert server.bodies[0]["messages"] == [{"role": "user", "content": "four"}]
    assert server.bodies[0]["max_completion_tokens"] == 5
    assert (server.bodies[0]["model"], server.bodies[0]["x"]) == ("named", 1)
    assert server.headers[0]["authorization"] == "Bearer secret"
    with pytest.raises(InputError, match="has no messages"):
        await ask(server.url, request(), **options)


async def test_chunks_are_counted_where_no_usage_is_told(server: FakeServer) -> None:
    server.usage = False
    (result,) = await ask(server.url, request(8))
    assert result.output_tokens == 4


async def test_failures_are_told_not_raised(server: FakeServer) -> None:
    server.fail_from = 1
    first, second = await ask(server.url, request(), request())
    assert first.error is None
    assert second.error is not None
    assert second.error.startswith("HTTP 503")
    assert "too busy" in second.error


async def test_counters_of_the_server(server: FakeServer) -> None:
    backend = await OpenAIBackend.connect(server.url)
    before = await backend.speculation()
    await backend.send(request(6))
    after = await backend.speculation()
    await backend.aclose()
    assert before is not None
    assert after is not None
    assert (after - before).accepted == 3
    assert (after - before).acceptance_rate == 0.5
    assert (after - before).per_position == (3,)


async def test_nobody_answers() -> None:
    with pytest.raises(ConfigError, match="does not answer as an OpenAI server"):
        await OpenAIBackend.connect("http://127.0.0.1:9", model="x")
