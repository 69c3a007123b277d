from __future__ import annotations

import pytest

from suffixspec_index.errors import ConfigError, InputError
from suffixspec_traces.model import TokenSession
from suffixspec_traces.tuning.split import Parts, output_tokens
from tests.traces.tuning.talk import talk, talks


def ids(sessions: tuple[TokenSession, ...]) -> list[str]:
    return [s.id for s in sessions]


def test_the_parts_follow_each_other_and_hold_everything() -> None:
    parts = Parts.split(talks(10))
    assert ids(parts.history) == [f"s{i}" for i in range(7)]
    assert ids(parts.held_out) == ["s7", "s8", "s9"]
    assert parts.warm + parts.tuning == parts.history
    assert len(parts.warm) == 2


def test_times_decide_over_the_recorded_order() -> None:
    sessions = [talk(f"s{i}", start=100.0 - i) for i in range(8)]
    parts = Parts.split(sessions, held_out=0.25)
    assert ids(parts.held_out) == ["s1", "s0"]
    assert ids(parts.history) == [f"s{i}" for i in range(7, 1, -1)]


def test_one_session_without_a_time_keeps_the_recorded_order() -> None:
    sessions = [talk(f"s{i}", start=None if i == 3 else 100.0 - i) for i in range(8)]
    assert ids(Parts.split(sessions).history) == [f"s{i}" for i in range(6)]


def test_every_workload_is_in_every_part() -> None:
    sessions = [talk(f"a{i}", source="a") for i in range(10)]
    sessions += [talk(f"b{i}", source="b") for i in range(20)]
    parts = Parts.split(sessions)
    for part in (parts.warm, parts.tuning, parts.held_out):
        assert {s.source for s in part} == {"a", "b"}
    assert ids(parts.held_out).count("a9") == 1
    assert sorted(ids(parts.history + parts.held_out)) == sorted(s.id for s in sessions)


def test_small_workloads_are_pooled() -> None:
    alone = [talk(f"s{i}", source=str(i)) for i in range(6)]
    assert len(Parts.split(alone).held_out) == 2
    parts = Parts.split([*talks(8), talk("single", source="other")])
    assert "single" in ids(parts.history + parts.held_out)


def test_a_limit_keeps_the_latest_and_leaves_the_history() -> None:
    sessions = talks(10)
    parts = Parts.split(sessions, trial_tokens=3 * sessions[0].output_tokens)
    assert ids(parts.warm + parts.tuning) == ["s4", "s5", "s6"]
    assert len(parts.history) == 7
    assert len(Parts.split(sessions, trial_tokens=1).tuning) == 2  # never fewer than two


def test_sessions_without_output_do_not_count() -> None:
    silent = TokenSession("silent", ())
    assert output_tokens([silent]) == 0
    with pytest.raises(InputError, match="3 sessions"):
        Parts.split([silent, *talks(3)])


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, float("nan")])
def test_a_wrong_share_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match="held_out"):
        Parts.split(talks(5), held_out=share)


def test_a_wrong_limit_is_refused() -> None:
    with pytest.raises(ConfigError, match="trial_tokens"):
        Parts.split(talks(5), trial_tokens=0)
