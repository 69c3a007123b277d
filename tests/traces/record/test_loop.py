from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from suffixspec_index.errors import ConfigError
from suffixspec_traces.model import Session
from suffixspec_traces.record import (
    WORKLOADS,
    Recorder,
    RecordingJournal,
    coding,
    make_tasks,
    session_record,
    write_sessions,
)
from suffixspec_traces.record.coding import Project
from suffixspec_traces.record.loop import choose_call, forced_start, split_calls
from suffixspec_traces.render import ChatRenderer
from suffixspec_traces.tokenizers import TraceTokenizer
from tests.traces.record.fake_model import FakeModel, Ids


def copy_arguments(prompt: str) -> str:
    """Complete a forced call with the arguments the user gave; answer anything else."""
    if prompt.endswith('"arguments":'):
        request = prompt.rsplit("Call ", 1)[1]
        return " " + request[request.index("{") : request.index("<|im_end|>")] + "}\n</tool_call>"
    return "Here it is."


def record(
    tokenizer: TraceTokenizer,
    workload: str,
    reply: Callable[[str], str] = copy_arguments,
    **limits: int,
) -> tuple[list[Session], FakeModel]:
    model = FakeModel(tokenizer, reply)
    recorder = Recorder(
        model,
        ChatRenderer(tokenizer),
        **{"max_context": 100_000, "max_new_tokens": 400, **limits},
        clock=lambda: 100.0,
    )
    return recorder.record(make_tasks(workload, 3, seed=1)), model


@pytest.mark.parametrize("workload", WORKLOADS)
class TestEveryWorkload:
    def test_replayed_prompts_are_what_the_model_saw(
        self, tiny: TraceTokenizer, workload: str
    ) -> None:
        sessions, model = record(tiny, workload)
        replayed = [ChatRenderer(tiny).render_session(s) for s in sessions]
        seen = sorted(p.tolist() for p in model.prompts)
        assert sorted(t.prompt.tolist() for s in replayed for t in s.turns) == seen
        assert all(len(s.turns) == 8 for s in replayed)

    def test_the_models_calls_are_really_run(self, tiny: TraceTokenizer, workload: str) -> None:
        sessions, _ = record(tiny, workload)
        for session in sessions:
            calls = [c for m in session.messages if m.generated for c in m.tool_calls]
            results = [m for m in session.messages if m.role == "tool" and m.timestamp == 100.0]
            assert len(calls) >= 3
            answered = {m.tool_call_id for m in results}
            assert {c.id for c in calls} <= answered
            assert not any("error" in (m.content or "") for m in results)

    def test_a_model_that_says_nothing_useful(self, tiny: TraceTokenizer, workload: str) -> None:
        sessions, _ = record(tiny, workload, lambda _: "hm")
        for session in sessions:
            assert session.generated_messages == 8
            results = [m for m in session.messages if m.role == "tool"][-4:]
            assert all(m.tool_call_id == f"script_{i}" for i, m in enumerate(results))

    def test_sessions_are_under_way_together(self, tiny: TraceTokenizer, workload: str) -> None:
        """No first message is written before all three have been asked for."""
        together = threading.Barrier(3)
        model = FakeModel(tiny, copy_arguments)
        generate, met = model.generate, threading.local()

        def waiting(prompt: Ids, *, key: str, max_new_tokens: int) -> Ids:
            if not hasattr(met, "once"):
                met.once = together.wait(timeout=30)
            return generate(prompt, key=key, max_new_tokens=max_new_tokens)

        model.generate = waiting  # type: ignore[method-assign]
        recorder = Recorder(model, ChatRenderer(tiny), max_context=100_000, clock=lambda: 100.0)
        ended: list[str] = []
        counts: list[tuple[int, int]] = []
        sessions = recorder.record(
            make_tasks(workload, 3, seed=1),
            concurrency=3,
            done=lambda session: ended.append(session.id),
            progress=lambda *told: counts.append(told),
        )
        assert sorted(model.released) == sorted(ended) == sorted(s.id for s in sessions)
        assert [s.id for s in sessions] == [t.id for t in make_tasks(workload, 3, seed=1)]
        written = [m.token_ids for s in sessions for m in s.messages if m.token_ids is not None]
        assert counts[-1] == (3, sum(map(len, written)))
        alone, _ = record(tiny, workload, max_new_tokens=192)
        assert [session_record(s) for s in sessions] == [session_record(s) for s in alone]

    def test_long_sessions_end_early(self, tiny: TraceTokenizer, workload: str) -> None:
        full, _ = record(tiny, workload)
        lengths = [
            len(m.prompt_token_ids)
            for s in full
            for m in s.messages
            if m.prompt_token_ids is not None
        ]
        limit = (min(lengths) + max(lengths)) // 2
        sessions, _ = record(tiny, workload, max_context=limit)
        for session in sessions:
            assert session.messages[-1].generated
            for message in session.messages:
                if message.prompt_token_ids is not None:
                    assert len(message.prompt_token_ids) + 400 <= limit

    def test_written_and_read_back(
        self, tiny: TraceTokenizer, workload: str, tmp_path: Path
    ) -> None:
        sessions, _ = record(tiny, workload)
        path = tmp_path / "out.jsonl"
        assert write_sessions(path, sessions, {"created": "2025-01-01"}) == 3
        for line, session in zip(path.read_text().splitlines(), sessions, strict=True):
            value = json.loads(line)
            assert value["source"] == workload
            assert value["created"] == "2025-01-01"
            spoken = [m for m in value["messages"] if "token_ids" in m]
            kept = [m for m in session.messages if m.generated]
            for written, message in zip(spoken, kept, strict=True):
                assert message.token_ids is not None
                assert written["token_ids"] == message.token_ids.tolist()
            canned = [m for m in value["messages"] if m.get("x_generated") is False]
            assert canned


class TestCalls:
    KNOWN = frozenset({"f"})

    def test_calls_are_taken_out_of_the_text(self) -> None:
        text = 'First.\n<tool_call>\n{"name": "f", "arguments": {"a": "é"}}\n</tool_call>'
        content, calls = split_calls(text, set(self.KNOWN))
        assert content == "First."
        assert [(c.name, c.arguments) for c in calls] == [("f", '{"a": "é"}')]

    def test_a_missing_end_is_forgiven(self) -> None:
        text = forced_start("f") + ' {"a": "b"}} and so on'
        assert split_calls(text, set(self.KNOWN))[1][0].arguments == '{"a": "b"}'

    @pytest.mark.parametrize(
        "text",
        [
            "no call",
            '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>',
            '<tool_call>\n{"name": "f", "arguments": "x"}\n</tool_call>',
            '<tool_call>\n{"name": "f", "argum',
            "<tool_call>\n[1]\n</tool_call>",
        ],
    )
    def test_anything_else_stays_text(self, text: str) -> None:
        assert split_calls(text, set(self.KNOWN)) == (text, ())

    def test_a_code_block_counts_where_the_step_takes_one(self) -> None:
        task = make_tasks("coding", 1, seed=3)[0]
        step = next(s for s in task.steps if s.block == "python")
        name, arguments = choose_call("So:\n```python\nx = 1\n```\nDone.", step, task)
        assert name == "write_file"
        assert arguments["content"] == "x = 1\n"
        assert choose_call("no block", step, task) == (step.tool, step.arguments)


def test_environments_are_closed_where_the_model_fails(
    tiny: TraceTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = make_tasks("coding", 2, seed=0)
    made: list[Project] = []

    def remembering(files: dict[str, str]) -> Project:
        made.append(Project(files))
        return made[-1]

    monkeypatch.setattr(coding, "Project", remembering)
    model = FakeModel(tiny, copy_arguments)

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(model, "generate", broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        Recorder(model, ChatRenderer(tiny), max_context=10_000).record(tasks, concurrency=2)
    assert model.closed
    assert made
    assert not any(project.root.exists() for project in made)


def test_wrong_limits(tiny: TraceTokenizer) -> None:
    model, renderer = FakeModel(tiny, copy_arguments), ChatRenderer(tiny)
    with pytest.raises(ConfigError, match="max_new_tokens is 0"):
        Recorder(model, renderer, max_new_tokens=0)
    with pytest.raises(ConfigError, match="max_context is 100"):
        Recorder(model, renderer, max_new_tokens=100, max_context=100)
    with pytest.raises(ConfigError, match="concurrency is 0"):
        Recorder(model, renderer).record(make_tasks("sql", 1), concurrency=0)
    with pytest.raises(ConfigError, match="workload 'chess' does not exist"):
        make_tasks("chess", 1)
    with pytest.raises(ConfigError, match="sessions is 0"):
        make_tasks("sql", 0)


class TestJournal:
    def test_a_killed_recording_goes_on(self, tmp_path: Path) -> None:
        path = tmp_path / "new" / "journal"
        first = RecordingJournal(path, {"seed": 1})
        assert not path.parent.exists()
        first.add({"id": "a", "messages": [1]})
        first.add({"id": "b", "messages": []})
        first.close()
        with path.open("ab") as file:
            file.write(b'{"id":"c","mess')  # killed while it wrote
        second = RecordingJournal(path, {"seed": 1})
        assert list(second.records) == ["a", "b"]
        second.add({"id": "c", "messages": [3]})
        second.close()
        third = RecordingJournal(path, {"seed": 1})
        assert [r["messages"] for r in third.records.values()] == [[1], [], [3]]
        third.remove()
        assert not path.exists()

    @pytest.mark.parametrize("text", [b"", b"something else\n", b'{"recording":{"seed":2}}\n'])
    def test_another_recording_is_refused(self, tmp_path: Path, text: bytes) -> None:
        path = tmp_path / "journal"
        path.write_bytes(text)
        with pytest.raises(ConfigError, match="made with other settings"):
            RecordingJournal(path, {"seed": 1})
        assert path.read_bytes() == text
