"""Every kind of bad input, the status it gets, the field it names, and that nothing is left."""

from __future__ import annotations

import json
import socket
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.service.serving import CHATML, served

if TYPE_CHECKING:
    from suffixspec_engine.models import TargetModel
    from tests.service.serving import Served

USER: dict[str, Any] = {"role": "user", "content": "hello"}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f"}}

CHAT: dict[str, tuple[dict[str, Any], int, str | None]] = {
    "no messages": ({"messages": []}, 400, "messages"),
    "messages of a wrong type": ({"messages": "hello"}, 400, "messages"),
    "a message without a role": ({"messages": [{"content": "x"}]}, 400, "messages.0.role"),
    "an unknown role": ({"messages": [{"role": "king", "content": "x"}]}, 400, "messages.0.role"),
    "no content": ({"messages": [{"role": "user"}]}, 400, "messages.0.content"),
    "an image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        400,
        "messages.0.content.0.type",
    ),
    "a tool's answer to nothing": (
        {"messages": [USER, {"role": "tool", "content": "x"}]},
        400,
        "messages.1.tool_call_id",
    ),
    "no model": ({"model": None}, 400, "model"),
    "unknown model": ({"model": "gpt-9"}, 404, "model"),
    "too long": ({"messages": [{"role": "user", "content": "x" * 600}]}, 400, "messages"),
    "an unknown field": ({"tempretature": 1}, 400, "tempretature"),
    "temperature as text": ({"temperature": "0"}, 400, "temperature"),
    "temperature too high": ({"temperature": 2.1}, 400, "temperature"),
    "top_p of 0": ({"top_p": 0}, 400, "top_p"),
    "n of 0": ({"n": 0}, 400, "n"),
    "huge n": ({"n": 10**6}, 400, "n"),
    "n true": ({"n": True}, 400, "n"),
    "max_tokens of 0": ({"max_tokens": 0}, 400, "max_tokens"),
    "max_tokens negative": ({"max_completion_tokens": -1}, 400, "max_completion_tokens"),
    "min_tokens above max_tokens": ({"min_tokens": 99}, 400, "min_tokens"),
    "a stop string that is empty": ({"stop": [""]}, 400, "stop"),
    "many stop strings": ({"stop": ["a"] * 17}, 400, "stop"),
    "a bias for no token": ({"logit_bias": {"9999": 1}}, 400, "logit_bias"),
    "a bias too large": ({"logit_bias": {"5": 101}}, 400, "logit_bias[5]"),
    "a bias of a word": ({"logit_bias": {"no": 1}}, 400, "logit_bias"),
    "a stop token that does not exist": ({"stop_token_ids": [9999]}, 400, "stop_token_ids"),
    "top_logprobs alone": ({"top_logprobs": 2}, 400, "top_logprobs"),
    "too many top_logprobs": ({"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs"),
    "stream_options alone": (
        {"stream": False, "stream_options": {"include_usage": True}},
        400,
        "stream_options",
    ),
    "a choice without tools": ({"tool_choice": "required"}, 400, "tool_choice"),
    "a choice of no tool": (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        400,
        "tool_choice",
    ),
    "two tools of one name": ({"tools": [TOOL, TOOL]}, 400, "tools"),
    "a tool's name with blanks": (
        {"tools": [{"type": "function", "function": {"name": "a b"}}]},
        400,
        "tools.0.function.name",
    ),
    "a schema that is none": (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "strange"}},
            }
        },
        400,
        "json",
    ),
    "json_schema without one": (
        {"response_format": {"type": "json_schema"}},
        400,
        "response_format.json_schema",
    ),
    "two structures": (
        {"guided_regex": "a", "guided_choice": ["b"]},
        400,
        "guided_regex",
    ),
    "a broken regular expression": ({"guided_regex": "("}, 400, "regex"),
    "functions": ({"functions": [{"name": "f"}]}, 400, "functions"),
    "store": ({"store": True}, 400, "store"),
    "audio": ({"modalities": ["audio"]}, 400, "modalities.0"),
    "metadata that is no text": ({"metadata": {"a": 1}}, 400, "metadata.a"),
    "negative drafts": (
        {"speculative": {"num_speculative_tokens": -1}},
        400,
        "speculative.num_speculative_tokens",
    ),
    "a seed too large": ({"seed": 2**70}, 400, "seed"),
}

COMPLETION: dict[str, tuple[dict[str, Any], int, str | None]] = {
    "empty prompt": ({"prompt": ""}, 400, "prompt"),
    "no tokens": ({"prompt": []}, 400, "prompt"),
    "several prompts": ({"prompt": ["a", "b"]}, 400, "prompt"),
    "a token that does not exist": ({"prompt": [1, 99999]}, 400, "prompt"),
    "a negative token": ({"prompt": [-1]}, 400, "prompt"),
    "too long": ({"prompt": "x" * 600}, 400, "prompt"),
    "best_of": ({"best_of": 4}, 400, "best_of"),
    "suffix": ({"suffix": "x"}, 400, "suffix"),
}


def check(answer: httpx.Response, status: int, param: str | None) -> None:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param, error
    assert error["message"]


@pytest.mark.parametrize("name", CHAT)
@pytest.mark.parametrize("stream", [False, True])
def test_chat(tiny: Served, name: str, stream: bool) -> None:
    fields, status, param = CHAT[name]
    before = tiny.engine.cache_used_bytes
    with tiny.client() as client:
        check(tiny.chat(client, **({"stream": stream} | fields)), status, param)
    assert tiny.left_behind() == {}
    assert tiny.engine.cache_used_bytes == before


@pytest.mark.parametrize("name", COMPLETION)
def test_completions(tiny: Served, name: str) -> None:
    fields, status, param = COMPLETION[name]
    with tiny.client() as client:
        answer = client.post("/v1/completions", json={"model": "tiny", "prompt": "x"} | fields)
    check(answer, status, param)
    assert tiny.left_behind() == {}


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[1, 2]", 400),
        (b"null", 400),
        (b'"text"', 400),
        (b"\xff\xfe", 400),
        (b'{"model": "tiny", "messages": ' + b"[" * 100_000, 400),
    ],
)
def test_bad_json(tiny: Served, content: bytes, status: int) -> None:
    with tiny.client() as client:
        answer = client.post(
            "/v1/chat/completions", content=content, headers={"Content-Type": "application/json"}
        )
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_unknown_paths_and_methods(tiny: Served) -> None:
    with tiny.client() as client:
        assert client.get("/v1/nothing").json()["error"]["code"] == "not_found"
        answer = client.get("/v1/chat/completions")
        assert answer.status_code == 405
        assert answer.json()["error"]["code"] == "method_not_allowed"
        assert client.get("/v1/models/gpt-9").status_code == 404


def test_a_body_that_is_too_large(tiny_target: TargetModel) -> None:
    with (
        served(tiny_target, chat_template=CHATML, max_body_bytes=2000) as service,
        service.client() as client,
    ):
        answer = service.chat(client, "x" * 3000)
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "request_too_large"

        def pieces() -> Any:  # of no declared length
            for _ in range(10):
                yield b" " * 1000

        answer = client.post(
            "/v1/chat/completions",
            content=pieces(),
            headers={"Content-Type": "application/json"},
        )
        assert answer.status_code == 413
        assert service.chat(client).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_vanishes(tiny: Served, stream: bool) -> None:
    """Mid-answer: the generation is cancelled, and everything it held is free again."""
    body = json.dumps(
        {
            "model": "tiny",
            "messages": [USER],
            "max_tokens": 450,
            "ignore_eos": True,
            "stream": stream,
            "speculative": {"num_speculative_tokens": 0},
        }
    ).encode()
    host, port = tiny.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
            b"Content-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        end = time.monotonic() + 10
        while not tiny.engine.num_running and time.monotonic() < end:
            time.sleep(0.001)
        assert tiny.engine.num_running == 1
        if stream:
            assert connection.recv(100)
    tiny.settle()
    assert tiny.engine.metrics.requests.get("cancelled", 0) > 0
    tiny.engine.check_integrity()


def test_refused_choices_leave_nothing(tiny_target: TargetModel) -> None:
    """Three choices where the queue has room for fewer: none of them goes on."""
    from suffixspec_engine.engine import Engine
    from suffixspec_engine.engine_config import EngineConfig

    engine = Engine(tiny_target, config=EngineConfig(max_running=1, max_waiting=1))
    with served(tiny_target, chat_template=CHATML) as service:
        service.runtime.engine, replaced = engine, service.engine
        service.engine = engine
        try:
            with service.client() as client:
                answer = service.chat(client, n=4, max_tokens=400, ignore_eos=True)
                assert answer.status_code == 503
                assert "Retry-After" in answer.headers
            service.settle()
        finally:
            replaced.close()
