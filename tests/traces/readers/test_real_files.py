"""The readers on real files, where a checkout has them beside it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from suffixspec_traces.model import Message, ReadReport, Session
from suffixspec_traces.reading import read_traces

SHARED = Path(__file__).parents[4] / "shared"
FORMATS, TRACES = SHARED / "formats", SHARED / "traces"

pytestmark = pytest.mark.skipif(
    not FORMATS.is_dir() or not TRACES.is_dir(), reason="no real traces beside this checkout"
)

# file: format, sessions, generated messages, all messages
FILES = {
    "formats/atif.openagents.trajectory.json": ("atif", 1, 1, 8),
    "formats/atif.terminal_bench.trajectory.json": ("atif", 1, 3, 9),
    "formats/claude_code.stream.jsonl": ("claude_code", 1, 14, 27),
    "formats/mini_swe_agent.v1.traj.json": ("mini_swe_agent", 1, 5, 12),
    "formats/mini_swe_agent.v1_1.traj.json": ("mini_swe_agent", 1, 5, 12),
    "formats/openhands.output.jsonl": ("openhands", 2, 10, 24),
    "formats/swe_agent.function_calling.traj": ("swe_agent", 1, 4, 10),
    "formats/swe_agent.text_action.traj": ("swe_agent", 1, 4, 10),
    "formats/tau2.results.json": ("tau2", 2, 16, 38),
    "formats/tau_bench.json": ("tau_bench", 2, 20, 44),
    "traces/intercode-gpt-4.jsonl": ("openai_chat", 372, 2162, 4696),
    "traces/mini-swe-agent-gemini3pro.jsonl": ("openai_chat", 34, 1447, 2962),
    "traces/openagents-claude-code.jsonl": ("openai_chat", 5, 552, 1105),
    "traces/openhands-codeact.jsonl": ("openai_chat", 9, 290, 595),
    "traces/tau-bench-gpt-4o.jsonl": ("openai_chat", 125, 1541, 3332),
    "traces/tau2-gpt-4.1.jsonl": ("openai_chat", 65, 857, 1997),
}


def read(name: str) -> list[Session]:
    return list(read_traces([SHARED / name]))


@pytest.mark.parametrize("name", FILES)
def test_counts(name: str) -> None:
    report = ReadReport()
    sessions = list(read_traces([SHARED / name], report=report))
    found = (
        next(iter(report.formats)),
        len(sessions),
        sum(s.generated_messages for s in sessions),
        sum(len(s.messages) for s in sessions),
    )
    assert found == FILES[name]
    assert report.skipped == []
    assert len({s.id for s in sessions}) == len(sessions)


def test_everything_at_once() -> None:
    names = {p.suffix for p in FORMATS.iterdir()}
    assert ".md" in names  # left out by name
    report = ReadReport()
    sessions = list(read_traces([FORMATS, TRACES / "*.jsonl"], report=report))
    assert report.files == len(FILES)
    assert sum(s.generated_messages for s in sessions) == sum(f[2] for f in FILES.values())
    assert len({s.id for s in sessions}) == len(sessions)


@pytest.mark.parametrize("name", [n for n in FILES if n.startswith("traces/")])
def test_openai_chat_is_kept_to_the_letter(name: str) -> None:
    lines = (SHARED / name).read_text().splitlines()
    for session, line in zip(read(name), lines, strict=True):
        record = json.loads(line)
        assert (session.id, session.source, session.model) == (
            record["id"],
            record["source"],
            record["model"],
        )
        for message, raw in zip(session.messages, record["messages"], strict=True):
            assert message.role == raw["role"]
            assert message.content == raw.get("content")
            assert message.tool_call_id == raw.get("tool_call_id")
            calls = [(c.id, c.name, c.arguments) for c in message.tool_calls]
            functions = [(c["id"], c["function"]) for c in raw.get("tool_calls") or []]
            assert calls == [(i, f["name"], f["arguments"]) for i, f in functions]
            written = raw["role"] == "assistant" and raw.get("x_generated", True)
            assert message.generated == written


def test_claude_code_lines_of_one_message_are_one_generation() -> None:
    texts: dict[str, str] = {}
    calls: dict[str, list[str]] = {}
    for line in (FORMATS / "claude_code.stream.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["type"] != "assistant":
            continue
        name = record["message"]["id"]
        for block in record["message"]["content"]:
            texts[name] = texts.get(name, "") + block.get("text", "")
            calls.setdefault(name, []).extend([block["id"]] if block["type"] == "tool_use" else [])
    (session,) = read("formats/claude_code.stream.jsonl")
    generated = [m for m in session.messages if m.generated]
    assert [m.content or "" for m in generated] == list(texts.values())
    assert [[c.id for c in m.tool_calls] for m in generated] == list(calls.values())
    answered = [m.tool_call_id for m in session.messages if m.role == "tool"]
    assert answered == [call for ids in calls.values() for call in ids]


def _text(message: Message) -> tuple[object, ...]:
    calls = [(c.name, c.arguments) for c in message.tool_calls]
    return (message.role, (message.content or "").strip(), calls)


def test_openhands_events_give_the_published_conversation() -> None:
    """The same run, converted independently (the file of the format is cut short)."""
    (converted,) = (
        s for s in read("traces/openhands-codeact.jsonl") if s.id.startswith("ponylang__ponyc-4595")
    )
    cut = next(s for s in read("formats/openhands.output.jsonl") if s.id == "ponylang__ponyc-4595")
    ours = [_text(m) for m in cut.messages if m.generated]
    theirs = [_text(m) for m in converted.messages if m.generated]
    assert ours == theirs[: len(ours)]
    assert [m.role for m in cut.messages] == [
        m.role for m in converted.messages[: len(cut.messages)]
    ]


def test_tau2_greetings_are_not_generated_and_arguments_are_exact() -> None:
    document = json.loads((FORMATS / "tau2.results.json").read_text())
    exact: Counter[str] = Counter()
    for simulation in document["simulations"]:
        for message in simulation["messages"]:
            if message["role"] == "assistant" and message["tool_calls"]:
                raw = message["raw_data"]["message"]["tool_calls"]
                exact.update(call["function"]["arguments"] for call in raw)
    found: Counter[str] = Counter()
    for session in read("formats/tau2.results.json"):
        greeting = next(m for m in session.messages if m.role == "assistant")
        assert not greeting.generated
        assert session.messages[0].role == "system"
        found.update(c.arguments for m in session.messages for c in m.tool_calls)
    assert found == exact


def test_swe_agent_demonstrations_are_not_generated() -> None:
    (session,) = read("formats/swe_agent.text_action.traj")
    assert "demonstration" in (session.messages[1].content or "")
    steps = json.loads((FORMATS / "swe_agent.text_action.traj").read_text())["trajectory"]
    generated = [m.content for m in session.messages if m.generated]
    assert generated == [step["response"] for step in steps][: len(generated)]


def test_mini_swe_agent_has_times_and_calls() -> None:
    (one,) = read("formats/mini_swe_agent.v1.traj.json")
    (two,) = read("formats/mini_swe_agent.v1_1.traj.json")
    for session in (one, two):
        assert all(m.timestamp is not None for m in session.messages if m.generated)
    assert all(m.tool_calls for m in two.messages if m.generated)
    assert not any(m.tool_calls for m in one.messages)
    answered = [m.tool_call_id for m in two.messages if m.role == "tool"]
    assert answered == [c.id for m in two.messages for c in m.tool_calls]
