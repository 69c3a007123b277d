"""Every format on a small file of its own: recognised by its reader alone, and read exactly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from suffixspec_index.errors import NoCompletionsError, TraceError
from suffixspec_traces.model import Session
from suffixspec_traces.readers import Source, readers
from suffixspec_traces.reading import read_traces

REFUSED = {
    "vllm_custom.jsonl": "vLLM bench custom",
    "timed_trace.jsonl": "Mooncake",
    "openai_batch_input.jsonl": "custom_id",
    "vllm_request_log.log": "vLLM request log",
    "litellm.empty.jsonl": "store_prompts_in_spend_logs",
}

EXPECTED: dict[str, list[list[str]]] = {
    "anthropic_messages.jsonl": [
        [
            "h None 0",
            "system: Short.",
            "user: Is the fern dry?",
            'assistant*: Let me see. +probe({"plant":"fern"})#t1 ?Measure first.',
            "tool: moisture 12 % @t1",
            "user: Hurry up.",
            "assistant*: Done.",
        ],
        [
            "s claude-x 1",
            "system: You water plants.",
            "user: Is the fern dry?",
            'assistant*: Let me see. +probe({"plant":"fern"})#t1 ?Measure first.',
            "tool: moisture 12 % @t1",
            "user: Hurry up.",
            "assistant*: Yes, the fern is dry.",
        ],
    ],
    "atif.json": [
        [
            "at-1 tiny-1 1",
            "system: You water plants.",
            "user: Old question",
            "assistant: Old answer",
            "user: Is the fern dry?",
            'assistant*: None +probe({"plant":"fern"})#c1 ?Measure.',
            "tool: moisture 12 % @c1",
            "assistant: routed",
            "assistant*: Yes, the fern is dry.",
            'tool: {"ok":true}',
        ],
        ["at-1/helper None 0", "assistant*: Helping."],
    ],
    "claude_code.jsonl": [
        [
            "sess-1 claude-x 0",
            "user: Check both plants.",
            'assistant*: Probing both. +probe({"plant":"fern"})#t1 '
            '+probe({"plant":"moss"})#t2 ?Two probes.',
            "tool: 12 % @t1",
            "tool: 80 % @t2",
            "assistant*: The fern is dry.",
            "user: And the ivy?",
            "assistant*: Fine.",
            "assistant: API Error",
        ],
        ["sess-1/a7 claude-x 0", "user: Find a watering can.", "assistant*: It is in the shed."],
        [
            "sess-1#2 claude-x 0",
            "user: Check both plants.",
            'assistant: Probing both. +probe({"plant":"fern"})#t1 '
            '+probe({"plant":"moss"})#t2 ?Two probes.',
            "tool: 12 % @t1",
            "tool: 80 % @t2",
            "assistant: The fern is dry.",
            "user: And the cactus?",
            "assistant*: Dry, as it likes.",
        ],
        [
            "sess-1#3 claude-x 0",
            "user: Summary: plants were checked.",
            "assistant*: Anything else?",
        ],
    ],
    "claude_code.stream.jsonl": [
        [
            "str-1 claude-x 0",
            'assistant*: Delegating. +Task({"prompt":"look"})#t1',
            "tool: Seen. @t1",
            "assistant*: All done.",
        ],
        ["str-1/t1 claude-x 0", "user: look", "assistant*: Seen."],
    ],
    "codex.jsonl": [
        [
            "roll-1 tiny-codex 0",
            "system: You water plants.",
            "user: Is the fern dry?",
            'assistant*: Let me see. +shell({"command": ["probe", "fern"]})#c1',
            "tool: moisture 12 % @c1",
            "assistant*: Yes, the fern is dry.",
        ],
        [
            "roll-1#2 tiny-codex 0",
            "system: You water plants.",
            "user: The fern was dry.",
            "user: Water it.",
            "assistant*: None +apply_patch(*** Begin)#c2",
            "tool: ok @c2",
        ],
    ],
    "langfuse.jsonl": [
        [
            "lf tiny-1 1",
            "system: You water plants.",
            "user: Is the fern dry?",
            'assistant*: None +probe({"plant": "fern"})#c1',
            "tool: moisture 12 % @c1",
            "assistant*: Yes, the fern is dry.",
        ],
        ["t3 None 0", "user: Say hi", "assistant*: Hi."],
    ],
    "langfuse.traces.json": [["lf-7 tiny-1 0", "user: Is the fern dry?", "assistant*: Yes."]],
    "langsmith.jsonl": [
        [
            "tr tiny-1 1",
            "system: You water plants.",
            "user: Is the fern dry?",
            'assistant*:  +probe({"plant": "fern"})#c1',
            "tool: moisture 12 % @c1",
            "assistant*: Yes, the fern is dry.",
        ],
        ["tr9 None 0", "user: Hi", "assistant*: Hello!"],
    ],
    "litellm.jsonl": [
        [
            "ls tiny-1 1",
            "system: You water plants.",
            "user: Is the fern dry?",
            'assistant*: None +probe({"plant": "fern"})#c1',
            "tool: moisture 12 % @c1",
            "assistant*: Yes, the fern is dry.",
        ]
    ],
    "mini_swe_agent.v1.traj.json": [
        [
            "plants-1 tiny-1 0",
            "system: You water plants.",
            "user: Is the fern dry?",
            "assistant*: THOUGHT: look\n```bash\nls\n```",
            "user: <returncode>0</returncode>",
            "assistant*: THOUGHT: done",
        ]
    ],
    "mini_swe_agent.v1_1.traj.json": [
        [
            "plants-2 tiny-2 0",
            "system: You water plants.",
            "user: Is the fern dry?",
            'assistant*: Look. +bash({"command": "ls"})#c1',
            "tool: a.py @c1",
            "assistant*: Done. +bash({})#c2",
            "tool: bye @c2",
        ]
    ],
    "openai_chat.jsonl": [
        [
            "fern tiny-1 1",
            "system: You water plants.",
            "assistant: Hello!",
            "user: Is the fern dry?",
            'assistant*: None +probe({"plant": "fern"})#c1',
            "tool: moisture 12 % @c1",
            "assistant*: Yes, the fern is dry. ?12 is low.",
        ],
        [
            "openai_chat-2 None 0",
            "system: Be brief.",
            "user: One\nTwo",
            "assistant*: Three +count({})#None",
            "tool: 3",
        ],
    ],
    "openai_requests.jsonl": [
        [
            "s tiny-1 1",
            "system: You water plants.",
            "user: Is the fern dry?",
            'assistant*: None +probe({"plant": "fern"})#c1',
            "tool: moisture 12 % @c1",
            "assistant*: Yes, the fern is dry.",
        ],
        ["other None 0", "user: Is the fern dry?", "assistant*: No idea."],
        ["other#2 None 0", "user: Is the fern dry?", "assistant*: Perhaps."],
    ],
    "openai_responses.jsonl": [
        [
            "resp_1 tiny-1 1",
            "system: You water plants.",
            "user: Is the fern dry?",
            'assistant*: Let me see. +probe({"plant": "fern"})#c1 ?Measure first.',
            "tool: moisture 12 % @c1",
            "assistant*: Yes, the fern is dry.",
        ]
    ],
    "openhands.events.json": [
        [
            "openhands.events None 0",
            "user: Check both plants.",
            'assistant*: Look. +run({"command":"ls","is_input":false})#None',
            "user: a.py",
            "assistant*: All fine.",
        ]
    ],
    "openhands.jsonl": [
        [
            "plants-3 openai/tiny-oh 1",
            "system: You water plants.",
            "user: Check both plants.",
            'assistant*: Probing both. +probe({"plant": "fern"})#c1 +probe({"plant": "moss"})#c2',
            "tool: 12 % @c1",
            "tool: 80 % @c2",
            'assistant*: Finished. +finish({"message": "dry"})#c3',
        ]
    ],
    "openhands_sdk.jsonl": [
        [
            "openhands_sdk None 1",
            "system: You water plants.",
            "user: Check both plants.",
            'assistant*: Probing both. +probe({"plant": "fern"})#c1 +probe({"plant": "moss"})#c2 '
            "?Two probes.",
            "tool: 12 % @c1",
            "tool: no moss @c2",
            "assistant*: The fern is dry.",
        ]
    ],
    "openhands_sdk.output.jsonl": [
        [
            "plants-4 None 0",
            "user: Check both plants.",
            'assistant*: None +finish({"message":"dry"})#None',
        ]
    ],
    "otel_genai.dialects.json": [
        ["tr2 tiny-oi 0", "user: Hi", "assistant*: Hello! +wave({})#None"],
        ["tr3 tiny-tl 0", "user: Hi", "assistant*: Hey."],
        ["tr4 None 0", "user: Is the fern dry?", "assistant*: Yes, the fern is dry."],
    ],
    "otel_genai.jsonl": [
        [
            "tr1 tiny-1 0",
            "system: You water plants.",
            "user: Is the fern dry?",
            'assistant*: None +probe({"plant":"fern"})#c1 ?Measure.',
            'tool: {"moisture":12} @c1',
            "assistant*: Yes, the fern is dry.",
        ]
    ],
    "sharegpt.json": [
        [
            "sg-1 None 0",
            "system: Be kind.",
            "user: Hi",
            "assistant*: Hello!",
            "user: Probe it",
            'assistant*: None +probe({"plant":"fern"})#None',
            "tool: 12 %",
            "assistant*: Dry.",
        ]
    ],
    "swe_agent.steps.traj": [
        [
            "swe_agent.steps None 0",
            "system: You water plants.",
            "user: Is the fern dry?",
            "assistant*: Look.\n```\nls\n```",
            "user: a.py",
            "assistant*: Done.",
        ]
    ],
    "swe_agent.traj": [
        [
            "swe_agent tiny-1 0",
            "system: You water plants.",
            "user: Here is a demonstration.",
            "assistant: demo step",
            "user: Is the fern dry?",
            'assistant*: Look. +bash({"command":"ls"})#c1 ?List.',
            "tool: a.py @c1",
        ]
    ],
    "tau2.json": [
        [
            "sim-1 tiny-1 0",
            "system: Water only dry plants.",
            "assistant: Hi! How can I help?",
            "user: Is the fern dry?",
            'assistant*: None +probe({"plant": "fern"})#c1',
            "tool: moisture 12 % @c1",
            "assistant*: Yes, the fern is dry.",
        ]
    ],
    "tau_bench.json": [
        [
            "4-1 None 0",
            "system: You water plants.",
            "user: Is the fern dry?",
            'assistant*: None +probe({"plant": "fern"})#c1',
            "tool: moisture 12 % @c1",
            "assistant*: Yes, the fern is dry.",
        ]
    ],
}


def _format(name: str) -> str:
    return name.partition(".")[0]


@pytest.mark.parametrize("name", [*EXPECTED, *REFUSED])
def test_each_file_is_recognised_by_its_reader_alone(name: str, fixtures: Path) -> None:
    with (fixtures / name).open("rb") as raw:
        sample = Source(raw, name).sample
    assert [reader.name for reader in readers() if reader.sniff(sample)] == [_format(name)]


def test_every_reader_has_a_file() -> None:
    assert {reader.name for reader in readers()} == set(map(_format, [*EXPECTED, *REFUSED]))


def test_every_reader_says_what_it_reads() -> None:
    for reader in readers():
        assert reader.description
        assert reader.empty_hint
        assert "\n" not in reader.description


@pytest.mark.parametrize("name", EXPECTED)
def test_sessions(name: str, fixtures: Path, outline: Callable[[Session], list[str]]) -> None:
    sessions = list(read_traces([fixtures / name]))
    assert [outline(session) for session in sessions] == EXPECTED[name]
    for session in sessions:
        assert session.format == _format(name)
        assert session.path == str(fixtures / name)


@pytest.mark.parametrize("name", EXPECTED)
def test_forcing_the_right_format_changes_nothing(
    name: str, fixtures: Path, outline: Callable[[Session], list[str]]
) -> None:
    sessions = read_traces([fixtures / name], format=_format(name))
    assert [outline(session) for session in sessions] == EXPECTED[name]


@pytest.mark.parametrize(("name", "says"), REFUSED.items())
def test_formats_without_completions_are_refused_with_what_to_do(
    name: str, says: str, fixtures: Path
) -> None:
    with pytest.raises(NoCompletionsError, match=says) as caught:
        list(read_traces([fixtures / name]))
    assert "record" in caught.value.reason
    assert caught.value.path == str(fixtures / name)


def test_openai_chat_keeps_token_ids_tools_times_and_source(fixtures: Path) -> None:
    fern, unnamed = read_traces([fixtures / "openai_chat.jsonl"])
    call = fern.messages[3]
    assert call.prompt_token_ids is not None
    assert call.token_ids is not None
    assert call.prompt_token_ids.dtype == call.token_ids.dtype == np.int32
    assert call.prompt_token_ids.tolist() == [1, 5, 6]
    assert call.token_ids.tolist() == [7, 8, 9]
    assert fern.messages[5].token_ids is None
    assert (fern.source, unnamed.source) == ("greenhouse", "openai_chat")
    assert (fern.line, unnamed.line) == (1, 2)
    assert fern.messages[0].timestamp == 1_700_000_000
    assert call.timestamp == 1_700_000_002.5
    assert fern.tools[0]["type"] == "function"


def test_atif_keeps_token_ids(fixtures: Path) -> None:
    session = next(read_traces([fixtures / "atif.json"]))
    generated = [message for message in session.messages if message.generated]
    assert generated[0].prompt_token_ids is not None
    assert generated[0].prompt_token_ids.tolist() == [1, 2, 3]
    assert generated[0].token_ids is not None
    assert generated[0].token_ids.tolist() == [4, 5]


def test_openhands_sdk_keeps_token_ids_of_the_right_generation(fixtures: Path) -> None:
    (session,) = read_traces([fixtures / "openhands_sdk.jsonl"])
    acted, said = (message for message in session.messages if message.generated)
    assert acted.prompt_token_ids is not None
    assert acted.prompt_token_ids.tolist() == [1, 2]
    assert acted.token_ids is not None
    assert acted.token_ids.tolist() == [3, 4, 5]
    assert said.token_ids is None


def test_a_single_openhands_event_says_what_to_do(fixtures: Path, tmp_path: Path) -> None:
    first = (fixtures / "openhands_sdk.jsonl").read_text().splitlines()[0]
    path = tmp_path / "event-00000.json"
    path.write_text(first)
    with pytest.raises(TraceError, match="events of a conversation into one file"):
        list(read_traces([path]))


def test_tool_definitions_of_anthropic_become_openai_ones(fixtures: Path) -> None:
    session = list(read_traces([fixtures / "anthropic_messages.jsonl"]))[-1]
    assert session.tools == (
        {
            "type": "function",
            "function": {
                "name": "probe",
                "description": "Measure.",
                "parameters": {"type": "object"},
            },
        },
    )


def test_calls_have_the_time_they_were_made(fixtures: Path) -> None:
    session = next(read_traces([fixtures / "otel_genai.jsonl"]))
    times = [message.timestamp for message in session.messages if message.generated]
    assert times == [1_700_000_000, 1_700_000_002]
