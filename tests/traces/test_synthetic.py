from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from suffixspec_index.errors import ConfigError
from suffixspec_traces.record import write_sessions
from suffixspec_traces.render import ChatRenderer
from suffixspec_traces.synthetic import SyntheticConfig, generate_sessions
from suffixspec_traces.tokenizers import TraceTokenizer


def test_equal_seeds_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        write_sessions(tmp_path / name, generate_sessions(SyntheticConfig(sessions=20, seed=3)))
    write_sessions(tmp_path / "c.jsonl.gz", generate_sessions(SyntheticConfig(sessions=20, seed=4)))
    a, b, c = ((tmp_path / f"{n}.jsonl.gz").read_bytes() for n in "abc")
    assert a == b
    assert a != c


def test_sessions_do_not_depend_on_how_many_there_are() -> None:
    few = list(generate_sessions(SyntheticConfig(sessions=3)))
    many = list(itertools.islice(generate_sessions(SyntheticConfig(sessions=10**6)), 3))
    assert few == many


def test_what_a_session_is() -> None:
    config = SyntheticConfig(sessions=100, min_turns=2, max_turns=9)
    sessions = list(generate_sessions(config))
    assert {s.source for s in sessions} == {"synthetic"}
    assert len({s.id for s in sessions}) == 100
    assert {s.generated_messages for s in sessions} == set(range(2, 10))
    stamps = [m.timestamp for s in sessions for m in s.messages]
    assert None not in stamps
    for session in sessions:
        times = [m.timestamp or 0.0 for m in session.messages]
        assert times == sorted(times)
    starts = [s.messages[0].timestamp or 0.0 for s in sessions]
    assert starts == sorted(starts)


def test_calls_are_answered() -> None:
    for session in generate_sessions(SyntheticConfig(sessions=30)):
        calls = [c.id for m in session.messages for c in m.tool_calls]
        answers = [m.tool_call_id for m in session.messages if m.role == "tool"]
        assert calls == answers


def test_the_change_rate_is_what_is_changed() -> None:
    def copied(rate: float) -> float:
        same = total = 0
        config = SyntheticConfig(sessions=60, change_rate=rate)
        for session in generate_sessions(config):
            for before, after in itertools.pairwise(
                m for m in session.messages if m.role != "user"
            ):
                if before.name == "read_file" and after.tool_calls:
                    lines = set((before.content or "").split("\n"))
                    written = after.tool_calls[0].arguments.split("\\n")
                    total += len(written)
                    same += sum(line in lines for line in written)
        return same / total

    assert copied(0.0) > 0.9
    assert copied(0.9) < copied(0.3) < copied(0.0)


def test_it_renders(tiny: TraceTokenizer) -> None:
    renderer = ChatRenderer(tiny)
    sessions = list(generate_sessions(SyntheticConfig(sessions=5)))
    rendered = [renderer.render_session(s) for s in sessions]
    assert [len(r.turns) for r in rendered] == [s.generated_messages for s in sessions]
    assert renderer.report.rerendered_turns == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sessions", 0),
        ("min_turns", 1),
        ("max_turns", 3),
        ("pool", 0),
        ("file_lines", 3),
        ("change_rate", 1.5),
        ("arrivals", 0.0),
    ],
)
def test_wrong_values_are_named(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{field} is {value}"):
        SyntheticConfig(**{field: value})  # type: ignore[arg-type]
