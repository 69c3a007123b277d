"""The ``openai`` package against the real service on the real model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

openai = pytest.importorskip("openai")

if TYPE_CHECKING:
    from openai import OpenAI

    from tests.service.serving import Served

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
TOOLS: list[Any] = [WEATHER]
ASK: list[Any] = [{"role": "user", "content": "What is the weather in Rome?"}]
COUNT: list[Any] = [{"role": "user", "content": "Count from 1 to 10 in digits."}]


@pytest.fixture
def client(real: Served) -> Any:
    with openai.OpenAI(base_url=real.api, api_key="none", max_retries=0, timeout=120) as made:
        yield made
    real.settle()


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["smollm2"]
    assert client.models.retrieve("smollm2").id == "smollm2"


def test_chat_says_what_the_engine_says(client: OpenAI, real: Served) -> None:
    made = client.chat.completions.create(
        model="smollm2", messages=COUNT, max_tokens=12, temperature=0
    )
    from suffixspec_engine.sampling import SamplingParams

    assert real.runtime.prompts is not None
    prompt = real.runtime.prompts.chat(COUNT)
    alone = real.engine.generate(
        [prompt], SamplingParams(temperature=0, max_tokens=12), max_draft=0
    )[0]
    assert made.choices[0].message.content == alone.text
    assert made.usage is not None
    assert made.usage.prompt_tokens == len(prompt)
    assert made.usage.completion_tokens == len(alone.token_ids)
    assert made.choices[0].finish_reason == "length"
    assert made.system_fingerprint


def test_stream_gives_the_same_text(client: OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "smollm2",
        "messages": COUNT,
        "max_tokens": 12,
        "temperature": 0,
    }
    whole = client.chat.completions.create(**asked)
    stream = client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert len({c.id for c in chunks}) == 1


def test_choices_with_a_seed_are_reproducible_and_differ(client: OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "Name an animal."}],
        "max_tokens": 8,
        "temperature": 1.5,
        "seed": 5,
        "n": 3,
    }
    first = client.chat.completions.create(**asked)
    again = client.chat.completions.create(**asked)
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in again.choices]
    assert len(set(texts)) > 1
    assert [choice.index for choice in first.choices] == [0, 1, 2]


def test_stop_and_logprobs(client: OpenAI) -> None:
    made = client.chat.completions.create(
        model="smollm2",
        messages=COUNT,
        max_tokens=30,
        temperature=0,
        stop=["3"],
        logprobs=True,
        top_logprobs=3,
    )
    choice = made.choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.content is not None
    assert "3" not in choice.message.content
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    said = b"".join(bytes(token.bytes or ()) for token in choice.logprobs.content)
    assert said.decode().startswith(choice.message.content)
    for token in choice.logprobs.content:
        assert len(token.top_logprobs) == 3
        assert token.logprob <= 0
        assert token.token == token.top_logprobs[0].token  # greedy


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}]
)
def test_forced_tool_call(client: OpenAI, choice: Any) -> None:
    made = client.chat.completions.create(
        model="smollm2",
        messages=ASK,
        tools=TOOLS,
        tool_choice=choice,
        parallel_tool_calls=False,
        max_tokens=60,
        temperature=0,
    )
    message = made.choices[0].message
    assert message.tool_calls is not None
    assert message.content is None
    (call,) = message.tool_calls
    assert call.type == "function"
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Rome"}
    assert made.choices[0].finish_reason == ("tool_calls" if choice == "required" else "stop")


def test_tool_call_streamed(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model="smollm2",
        messages=ASK,
        tools=TOOLS,
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=60,
        temperature=0,
        stream=True,
    )
    arguments, names, ids = "", [], []
    reason = None
    for chunk in stream:
        for part in chunk.choices[0].delta.tool_calls or ():
            assert part.index == 0
            assert part.function is not None
            arguments += part.function.arguments or ""
            names += [part.function.name] if part.function.name else []
            ids += [part.id] if part.id else []
        reason = chunk.choices[0].finish_reason or reason
    assert json.loads(arguments) == {"city": "Rome"}
    assert (names, len(ids), reason) == (["get_weather"], 1, "tool_calls")


def test_the_answer_of_a_tool_comes_back(client: OpenAI) -> None:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
    }
    turns = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny, 31 degrees"},
    ]
    made = client.chat.completions.create(
        model="smollm2", messages=turns, tools=TOOLS, max_tokens=40, temperature=0
    )
    assert made.choices[0].message.content
    assert "31" in made.choices[0].message.content


def test_no_tools_no_calls(client: OpenAI) -> None:
    made = client.chat.completions.create(
        model="smollm2", messages=ASK, tools=TOOLS, tool_choice="none", max_tokens=8
    )
    assert made.choices[0].message.tool_calls is None


def test_structured_output(client: OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "maximum": 9}},
        "required": ["ok", "n"],
        "additionalProperties": False,
    }
    made = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": "Answer in JSON: is 7 prime?"}],
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema, "strict": True},
        },
        max_tokens=60,
        temperature=0,
    )
    assert made.choices[0].finish_reason == "stop"
    answer = json.loads(made.choices[0].message.content or "")
    assert set(answer) == {"ok", "n"}


def test_parsed_into_a_model(client: OpenAI) -> None:
    from typing import Literal

    from pydantic import BaseModel

    class Verdict(BaseModel):
        colour: Literal["red", "green"]

    made = client.chat.completions.parse(
        model="smollm2",
        messages=[{"role": "user", "content": "What colour is grass?"}],
        response_format=Verdict,
        max_tokens=40,
        temperature=0,
    )
    assert isinstance(made.choices[0].message.parsed, Verdict)


def test_prediction_is_counted(client: OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "Write a long sentence about rivers."}],
        "max_tokens": 24,
        "temperature": 0,
    }
    plain = client.chat.completions.create(**asked)
    text = plain.choices[0].message.content
    assert text
    predicted = client.chat.completions.create(
        **asked, prediction={"type": "content", "content": text}
    )
    assert predicted.choices[0].message.content == text
    assert predicted.usage is not None
    details = predicted.usage.completion_tokens_details
    assert details is not None
    assert (details.accepted_prediction_tokens or 0) > 10
    assert plain.usage is not None
    assert plain.usage.completion_tokens_details is not None
    assert plain.usage.completion_tokens_details.accepted_prediction_tokens == 0


def test_a_session_is_recognised_and_its_prompt_is_cached(client: OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "Tell me one word about the sea."}]
    raw = client.chat.completions.with_raw_response.create(
        model="smollm2", messages=messages, max_tokens=8, temperature=0
    )
    answer = raw.parse().choices[0].message.content
    messages += [
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "Another one."},
    ]
    second = client.chat.completions.with_raw_response.create(
        model="smollm2", messages=messages, max_tokens=8, temperature=0
    )
    assert second.headers["x-session-id"] == raw.headers["x-session-id"]
    usage = second.parse().usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert (usage.prompt_tokens_details.cached_tokens or 0) > 30
    other = client.chat.completions.with_raw_response.create(
        model="smollm2",
        messages=[{"role": "user", "content": "Something else."}],
        max_tokens=2,
        extra_headers={"X-Session-Id": "mine"},
    )
    assert other.headers["x-session-id"] == "mine"


def test_speculation_metrics_on_request(client: OpenAI) -> None:
    text = "alpha beta gamma delta epsilon zeta eta theta iota kappa"
    made = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": f"Repeat exactly: {text}"}],
        max_tokens=24,
        temperature=0,
        extra_body={"include_metrics": True},
    )
    assert made.model_extra is not None
    found = made.model_extra["metrics"]["speculative_decoding"]
    assert made.usage is not None
    assert found["num_accepted_draft_tokens"] <= found["num_draft_tokens"]
    assert sum(found["acceptance_histogram"]) == found["num_spec_steps"]
    assert found["tokens_per_step"] * found["num_steps"] == made.usage.completion_tokens
    off = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": f"Repeat exactly: {text}"}],
        max_tokens=24,
        temperature=0,
        extra_body={"include_metrics": True, "speculative": {"num_speculative_tokens": 0}},
    )
    assert off.choices[0].message.content == made.choices[0].message.content
    assert off.model_extra is not None
    assert off.model_extra["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0


def test_completions(client: OpenAI) -> None:
    made = client.completions.create(
        model="smollm2", prompt="1 2 3 4 5", max_tokens=6, temperature=0, logprobs=2, echo=True
    )
    choice = made.choices[0]
    assert choice.text.startswith("1 2 3 4 5 6")
    assert choice.logprobs is not None
    assert choice.logprobs.tokens is not None
    assert len(choice.logprobs.tokens) == 6
    assert choice.logprobs.text_offset is not None
    for token, at in zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True):
        assert choice.text[at : at + len(token)] == token
    streamed = client.completions.create(
        model="smollm2", prompt="1 2 3 4 5", max_tokens=6, temperature=0, stream=True
    )
    assert "1 2 3 4 5" + "".join(c.choices[0].text for c in streamed) == choice.text


def test_errors_are_the_sdks_own(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-9", messages=COUNT)
    assert missing.value.code == "model_not_found"
    assert missing.value.param == "model"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model="smollm2", messages=COUNT, temperature=9)
    assert wrong.value.param == "temperature"
