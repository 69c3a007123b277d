"""``/v1/responses`` as the ``openai`` package sees it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

openai = pytest.importorskip("openai")

if TYPE_CHECKING:
    from openai import OpenAI

    from tests.service.serving import Served

TOOLS: list[Any] = [
    {
        "type": "function",
        "name": "get_weather",
        "description": "The weather of a city.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    }
]


@pytest.fixture
def client(real: Served) -> Any:
    with openai.OpenAI(base_url=real.api, api_key="none", max_retries=0, timeout=120) as made:
        yield made
    real.settle()


def test_text(client: OpenAI) -> None:
    made = client.responses.create(
        model="smollm2", input="Say hello.", max_output_tokens=10, temperature=0
    )
    chat = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": "Say hello."}],
        max_tokens=10,
        temperature=0,
    )
    assert made.output_text == chat.choices[0].message.content
    assert made.status == "incomplete"
    assert made.incomplete_details is not None
    assert made.incomplete_details.reason == "max_output_tokens"
    assert made.usage is not None
    assert made.usage.output_tokens == 10


def test_text_streamed(client: OpenAI) -> None:
    stream = client.responses.create(
        model="smollm2",
        instructions="Be brief.",
        input="Say hello.",
        max_output_tokens=10,
        temperature=0,
        stream=True,
    )
    events = list(stream)
    assert [e.sequence_number for e in events] == list(range(len(events)))
    kinds = [e.type for e in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    last = events[-1]
    assert last.type == "response.incomplete"
    assert text == last.response.output_text != ""


def test_a_function_and_its_answer(client: OpenAI) -> None:
    items: list[Any] = [{"role": "user", "content": "What is the weather in Rome?"}]
    asked: dict[str, Any] = {"model": "smollm2", "tools": TOOLS, "temperature": 0}
    with client.responses.stream(
        input=items,
        tool_choice="required",
        parallel_tool_calls=False,
        max_output_tokens=60,
        **asked,
    ) as stream:
        deltas = [e.delta for e in stream if e.type == "response.function_call_arguments.delta"]
        made = stream.get_final_response()
    (call,) = made.output
    assert call.type == "function_call"
    assert "".join(deltas) == call.arguments
    assert json.loads(call.arguments) == {"city": "Rome"}
    items += [
        {
            "type": "function_call",
            "call_id": call.call_id,
            "name": call.name,
            "arguments": call.arguments,
        },
        {"type": "function_call_output", "call_id": call.call_id, "output": "sunny, 31 degrees"},
    ]
    answer = client.responses.create(input=items, tool_choice="none", max_output_tokens=40, **asked)
    assert "31" in answer.output_text


def test_a_schema(client: OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    made = client.responses.create(
        model="smollm2",
        input="Is 7 prime? Answer in JSON.",
        text={"format": {"type": "json_schema", "name": "answer", "schema": schema}},
        max_output_tokens=40,
        temperature=0,
    )
    assert set(json.loads(made.output_text)) == {"ok"}
    assert made.status == "completed"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"store": True}, "store"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"include": ["reasoning.encrypted_content"]}, "include.0"),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
            "input.0.call_id",
        ),
        ({"max_output_tokens": 0}, "max_output_tokens"),
    ],
)
def test_what_is_not_done_is_refused(tiny: Served, fields: dict[str, Any], param: str) -> None:
    with tiny.client() as client:
        answer = client.post("/v1/responses", json={"model": "tiny", "input": "x"} | fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param, answer.text
    assert tiny.left_behind() == {}
