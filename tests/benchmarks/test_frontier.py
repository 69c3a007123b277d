"""Counting steps and comparing frontiers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.frontier import Count, accepted_length, advantages, at_drafted, draw, front


def count(drafted: float, tokens: float, label: str = "") -> Count:
    return Count(label, steps=100, drafted=round(100 * drafted), tokens=round(100 * tokens))


def test_accepted_length_of_a_path_and_of_a_tree() -> None:
    assert accepted_length([1, 2, 3], [-1, 0, 1], [1, 2, 9], 0) == 2
    assert accepted_length([1, 2, 3], [-1, 0, 1], [1, 2], 0) == 2  # the output ends first
    tree = ([5, 1, 7, 2, 3], [-1, -1, 0, 1, 3])
    assert accepted_length(*tree, [0, 1, 2, 3, 4], 1) == 3
    assert accepted_length(*tree, [5, 1], 0) == 1
    assert accepted_length([], [], [1], 0) == 0


def test_a_step_gains_one_more_than_accepted_unless_the_output_ends() -> None:
    c = Count("x")
    assert c.step([1, 2, 3], [-1, 0, 1], [1, 2, 9, 8], 0) == 3
    assert c.step([8, 4], [-1, 0], [1, 2, 9, 8], 3) == 1
    assert (c.steps, c.drafted, c.accepted, c.tokens) == (2, 5, 3, 4)
    assert c.by_size == {3: 1, 2: 1}
    assert c.milliseconds_per_token(lambda n: 10.0 * n) == pytest.approx((40 + 30) / 4)


def test_front_drops_what_another_beats() -> None:
    points = [count(4, 2.0, "a"), count(2, 2.1, "b"), count(2, 1.9, "c"), count(8, 2.5, "d")]
    assert [c.label for c in front(points)] == ["b", "d"]


def test_frontier_is_linear_from_no_drafting_and_flat_at_the_end() -> None:
    points = [count(2, 2.0), count(4, 3.0)]
    assert at_drafted(points, 1.0) == pytest.approx(1.5)
    assert at_drafted(points, 3.0) == pytest.approx(2.5)
    assert at_drafted(points, 9.0) == pytest.approx(3.0)
    assert advantages(points, [count(3, 2.0), count(4, 3.0)]) == pytest.approx([1.25, 1.0])


def test_draw_has_one_panel_per_source_and_one_line_per_rival() -> None:
    lines: dict[str, Sequence[Count]] = {"ours": [count(1, 2)], "peer": [count(1, 1.5)]}
    figure = draw({"one": lines, "two": lines})
    assert len(figure.data) == 4  # type: ignore[attr-defined]
