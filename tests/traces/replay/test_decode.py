"""Decoding on cases small enough to count by hand, and its invariants on random ones."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suffixspec_index.draft import Draft, Source
from suffixspec_traces.replay import ReplayPlan, ReplayResult, Step, replay
from tests.traces.fake_proposer import FakeProposer, counting, session, turn


def columns(result: ReplayResult) -> list[tuple[int, ...]]:
    """(turn, position, gained, drafted, accepted, reached) of every step."""
    chosen = (Step.TURN, Step.POSITION, Step.GAINED, Step.DRAFTED, Step.ACCEPTED, Step.REACHED)
    rows = np.stack([result.log.column(c) for c in chosen], axis=1)
    return [tuple(row) for row in rows.tolist()]


def test_a_path_is_accepted_as_far_as_it_equals_the_recording() -> None:
    plan = ReplayPlan.build([session("a", turn([1], [2, 3, 9, 10, 20]))])
    proposer = FakeProposer(counting(3))
    result = replay(plan, proposer)
    # context 1: drafts 2 3 4, accepts 2 3, gains 9; context 9: drafts 10 11 12, accepts 10,
    # gains 20, which ends the turn
    assert columns(result) == [(0, 0, 3, 3, 2, 3), (0, 3, 2, 3, 1, 2)]
    assert [c for c in proposer.calls if c[0] == "advance"] == [
        ("advance", 0, (2, 3, 9)),
        ("advance", 0, (10, 20)),
    ]
    assert not result.partial
    assert result.log.node_accepted.tolist() == [True, True, False, True, False, False]
    assert result.log.node_depths.tolist() == [1, 2, 3, 1, 2, 3]
    assert result.log.column(Step.MATCH_LEN).tolist() == [2, 2]
    assert result.log.column(Step.SOURCE).tolist() == [Source.SESSION] * 2


def test_a_turn_that_ends_inside_the_draft_gains_what_the_recording_has() -> None:
    plan = ReplayPlan.build([session("a", turn([1], [2, 3]))])
    result = replay(plan, FakeProposer(counting(5)))
    # all that is recorded is accepted, nothing decides on the third token: not reached
    assert columns(result) == [(0, 0, 2, 5, 2, 2)]


def test_steps_without_a_draft_gain_one_token() -> None:
    plan = ReplayPlan.build([session("a", turn([1], [7, 7, 7]))])
    result = replay(plan, FakeProposer())
    assert columns(result) == [(0, 0, 1, 0, 0, 0), (0, 1, 1, 0, 0, 0), (0, 2, 1, 0, 0, 0)]
    assert result.log.column(Step.SOURCE).tolist() == [Source.NONE] * 3


def tree(context: list[int], prompt: int) -> Draft:
    """8 -> (9 -> 1, 2), 3 -> 4: two branches below the first token, and a second root."""
    ids, parents = [8, 3, 9, 4, 1, 2], [-1, -1, 0, 1, 2, 2]
    return Draft(
        np.array(ids, np.int32),
        np.array(parents, np.int32),
        np.array([0.6, 0.4, 0.5, 0.3, 0.2, 0.2], np.float32),
        np.array([1, 2, 1, 2, 1, 1], np.uint8),
        match_len=4,
    )


@pytest.mark.parametrize(
    ("output", "accepted", "reached", "marks"),
    [
        ([8, 9, 2, 5], 3, 3, [0, 2, 5]),
        ([8, 9, 7, 5], 2, 3, [0, 2]),
        ([3, 4, 5, 5], 2, 2, [1, 3]),  # 4 is a leaf: nothing was drafted at depth 3
        ([5, 5, 5, 5], 0, 1, []),
    ],
)
def test_the_longest_branch_of_a_tree_is_accepted(
    output: list[int], accepted: int, reached: int, marks: list[int]
) -> None:
    plan = ReplayPlan.build([session("a", turn([1], output))])
    result = replay(plan, FakeProposer(tree))
    assert columns(result)[0] == (0, 0, accepted + 1, 6, accepted, reached)
    assert np.flatnonzero(result.log.node_accepted[:6]).tolist() == marks
    assert tree([], 0).accepted_by(output) == marks
    assert result.log.node_depths[:6].tolist() == [1, 1, 2, 2, 3, 3]


def test_turns_and_sessions_follow_the_life_of_a_request() -> None:
    sessions = [session("a", turn([1], [2]), turn([1, 2, 3], [4])), session("b", turn([5], [6]))]
    proposer = FakeProposer()
    seen: list[tuple[int, int]] = []
    replay(ReplayPlan.build(sessions), proposer, progress=lambda s, t: seen.append((s, t)))
    assert [c for c in proposer.calls if c[0] not in ("propose", "advance")] == [
        ("begin", "0:a", 0),
        ("finish", 0, True),
        ("begin", "0:a", 1),
        ("finish", 1, True),
        ("end_session", "0:a"),
        ("begin", "1:b", 2),
        ("finish", 2, True),
        ("end_session", "1:b"),
    ]
    assert seen == [(0, 1), (1, 2), (2, 3)]


def test_the_draft_never_learns_where_the_output_ends() -> None:
    sessions = [session("a", turn([1], [2, 3]), turn([1, 2, 3], [4] * 9))]
    unlimited, limited = FakeProposer(), FakeProposer()
    replay(ReplayPlan.build(sessions), unlimited)
    replay(ReplayPlan.build(sessions), limited, max_tokens=5)
    assert unlimited.max_tokens == [None, None]
    assert limited.max_tokens == [5, None]


def test_concurrent_sessions_take_steps_in_turn_and_the_next_joins() -> None:
    sessions = [
        session("a", turn([1], [7, 7])),
        session("b", turn([2], [7, 7, 7])),
        session("c", turn([3], [7])),
    ]
    proposer = FakeProposer()
    result = replay(ReplayPlan.build(sessions, concurrency=2), proposer)
    rounds = [c[:2] for c in proposer.calls if c[0] in ("begin", "propose", "finish")]
    assert rounds == [
        ("begin", "0:a"),
        ("begin", "1:b"),
        *[("propose", 0), ("propose", 1)] * 2,
        ("finish", 0),
        ("begin", "2:c"),
        *[("propose", 1), ("propose", 2)],
        ("finish", 1),
        ("finish", 2),
    ]
    assert result.log.column(Step.GAINED).sum() == 6


def test_stopping_ends_cleanly_and_keeps_what_was_done() -> None:
    for concurrency in (1, 2):
        stop = threading.Event()

        def script(context: list[int], prompt: int, stop: threading.Event = stop) -> Draft:
            if len(context) - prompt == 2:
                stop.set()
            return Draft.empty()

        sessions = [session("a", turn([1], [5] * 4)), session("b", turn([1], [5] * 4))]
        proposer = FakeProposer(script)
        result = replay(ReplayPlan.build(sessions, concurrency=concurrency), proposer, stop=stop)
        assert result.partial
        assert result.log.column(Step.GAINED).sum() == 3 * concurrency
        begun = [c[2] for c in proposer.calls if c[0] == "begin"]
        assert [c for c in proposer.calls if c[0] == "finish"] == [
            ("finish", request, False) for request in begun
        ]


def test_an_interrupt_from_the_keyboard_gives_a_partial_result() -> None:
    def script(context: list[int], prompt: int) -> Draft:
        if len(context) - prompt == 1:
            raise KeyboardInterrupt
        return Draft.empty()

    result = replay(ReplayPlan.build([session("a", turn([1], [5] * 4))]), FakeProposer(script))
    assert result.partial
    assert len(result.log) == 1


def test_the_log_grows_beyond_its_first_capacity() -> None:
    output = list(range(2, 12_002))
    plan = ReplayPlan.build([session("a", turn([1], [t % 7 for t in output]))])
    result = replay(plan, FakeProposer(counting(3)))
    assert result.log.column(Step.GAINED).sum() == 12_000
    assert result.log.node_offsets[-1] == len(result.log.node_tokens)


tokens = st.lists(st.integers(0, 3), min_size=1, max_size=12)


@st.composite
def drafts(draw: Any) -> Draft:
    """A random tree over a small alphabet."""
    size = draw(st.integers(0, 8))
    ids: list[int] = []
    parents: list[int] = []
    taken: set[tuple[int, int]] = set()
    for i in range(size):
        parent, token = draw(st.integers(-1, i - 1)), draw(st.integers(0, 3))
        parent = parent if parent < len(ids) else -1
        if (parent, token) not in taken:
            taken.add((parent, token))
            ids.append(token)
            parents.append(parent)
    probs = np.full(len(ids), 0.5, np.float32)
    sources = np.full(len(ids), Source.GLOBAL, np.uint8)
    return Draft(np.array(ids, np.int32), np.array(parents, np.int32), probs, sources)


@settings(deadline=None)
@given(st.lists(st.lists(tokens, min_size=1, max_size=3), min_size=1, max_size=4), st.data())
def test_every_token_is_gained_once_whatever_is_drafted(
    outputs: list[list[list[int]]], data: st.DataObject
) -> None:
    concurrency = data.draw(st.integers(1, 3))
    given_: list[Draft] = []

    def script(context: list[int], prompt: int) -> Draft:
        given_.append(data.draw(drafts()))
        return given_[-1]

    sessions = [session(str(i), *[turn([9], o) for o in s]) for i, s in enumerate(outputs)]
    proposer = FakeProposer(script)
    plan = ReplayPlan.build(sessions, concurrency=concurrency)
    result = replay(plan, proposer)
    log = result.log
    gained, accepted = log.column(Step.GAINED), log.column(Step.ACCEPTED)
    assert gained.sum() == plan.output_tokens
    # a step gains its accepted tokens and one more, unless the turn ended inside the draft
    assert set((gained - accepted).tolist()) <= {0, 1}
    assert (accepted <= log.column(Step.DRAFTED)).all()
    assert log.node_accepted.sum() == accepted.sum()
    assert log.column(Step.DRAFTED).tolist() == [len(d) for d in given_]
    for s, draft in enumerate(given_):
        planned = plan.turns[log.column(Step.TURN)[s]]
        at = planned.start + log.column(Step.POSITION)[s]
        assert accepted[s] == len(draft.accepted_by(plan.outputs[at : planned.end]))
    spoken = [proposer.contexts[h][proposer.prompts[h] :] for h in proposer.contexts]
    assert sorted(spoken) == sorted(o for s in outputs for o in s)


def test_depths_chosen_together_lose_no_token_and_are_logged_by_pass() -> None:
    """Ten sessions, four at a time, with the dynamic rule: the text is decoded whole, and steps of
    one pass share its number."""
    from suffixspec_index.depth import DepthController, DepthSettings
    from suffixspec_index.proposers import create_proposer
    from suffixspec_index.speculative_config import SpeculativeConfig
    from suffixspec_traces.cost import load_cost_model
    from suffixspec_traces.model import TokenSession, Turn

    prompt = np.arange(9, dtype=np.int32)
    outputs = [np.tile(np.arange(7 + i % 2, dtype=np.int32), 6) for i in range(10)]
    sessions = [TokenSession(str(i), (Turn(prompt, o),)) for i, o in enumerate(outputs)]
    plan = ReplayPlan.build(sessions, concurrency=4)
    rule = DepthController(load_cost_model("h100-sxm-8b-bf16"), DepthSettings(load=4))
    result = replay(plan, create_proposer(SpeculativeConfig()), depth=rule)
    assert int(result.log.column(Step.GAINED).sum()) == plan.output_tokens
    assert result.load == 4
    rows = np.bincount(result.log.column(Step.BATCH))
    assert rows[0] == 4
    assert rows.max() == 4
    assert len(result.log) < plan.output_tokens / 2
    assert 0 < rule.chosen == int(result.log.column(Step.DRAFTED).sum())
