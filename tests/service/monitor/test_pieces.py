"""Pieces of the session view, from steps whose drafts are paths and trees."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from suffixspec_index.draft import Draft, Source
from suffixspec_service.monitor.pieces import BRANCH_TOKENS, StepSeen, pieces_of

S, G, N = Source.SESSION, Source.GLOBAL, Source.NONE


class Numbers:
    """Every token reads as its number, and knows what it was told to follow."""

    def __init__(self, context: Sequence[int]) -> None:
        self.last = context[-1] if context else -1

    def feed(self, token_id: int) -> str:
        text = f"{self.last}>{token_id} "
        self.last = token_id
        return text


def test_rejected_tokens_stand_before_what_the_model_wrote() -> None:
    draft = Draft.path([11, 12, 13], source=S, match_len=4)
    steps = [StepSeen((11, 50), (S, N), draft, (0,)), StepSeen((51,), (N,), None, ())]
    pieces = pieces_of([1, 2], steps, Numbers)
    assert pieces == (
        ("2>11 ", "session", True, 4, 0),
        ("11>12 ", "session", False, 4, 0),
        ("12>13 ", "session", False, 4, 0),
        ("11>50 ", "none", True, 0, 0),
        ("50>51 ", "none", True, 0, 1),
    )


def test_branches_of_a_tree_leave_from_what_was_accepted() -> None:
    # 11 (accepted) has the children 12 and 13; 21 stands beside 11, and 22 follows it.
    draft = Draft(
        np.array([11, 21, 12, 13, 22], np.int32),
        np.array([-1, -1, 0, 0, 1], np.int32),
        np.full(5, 0.5, np.float32),
        np.array([S, G, S, S, G], np.uint8),
        7,
    )
    pieces = pieces_of([], [StepSeen((11, 50), (S, N), draft, (0,))], Numbers)
    rejected = [(p.text, p.source) for p in pieces if not p.accepted]
    assert rejected == [
        ("11>12 ", "session"),
        ("11>13 ", "session"),
        ("11>21 ", "global"),
        ("21>22 ", "global"),
    ]
    assert "".join(p.text for p in pieces if p.accepted) == "-1>11 11>50 "


def test_a_step_that_ends_inside_its_draft() -> None:
    draft = Draft.path([11, 12, 13], source=G)
    pieces = pieces_of([], [StepSeen((11, 12), (G, G), draft, (0, 1))], Numbers)
    assert [(p.text, p.accepted) for p in pieces] == [
        ("-1>11 ", True),
        ("11>12 ", True),
        ("12>13 ", False),
    ]


def test_long_branches_are_cut() -> None:
    draft = Draft.path(list(range(100)), source=S)
    pieces = pieces_of([], [StepSeen((500,), (N,), draft, ())], Numbers)
    assert len(pieces) == BRANCH_TOKENS + 1
    assert pieces[-1].source == "none"
