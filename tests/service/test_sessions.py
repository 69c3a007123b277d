"""Sessions recognised, named, bounded and ended."""

from __future__ import annotations

import numpy as np
import pytest

from suffixspec_index.namespaces import NamespaceKey
from suffixspec_service.sessions import SessionTable

ONE = NamespaceKey("one", "m", "t")
TWO = NamespaceKey("two", "m", "t")


def ids(start: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.arange(start, start + count, dtype=np.int32)


def test_the_next_turn_is_recognised() -> None:
    table = SessionTable()
    name = table.find(ONE, ids(0, 100))
    table.remember(ONE, name, ids(0, 100), ids(100, 30))
    assert table.find(ONE, ids(0, 160)) == name
    changed = np.concatenate([ids(0, 100), ids(500, 40)])  # the answer was rendered anew
    assert table.find(ONE, changed) == name
    assert table.find(ONE, ids(1, 160)) != name
    assert table.find(TWO, ids(0, 160)) != name


def test_the_longest_context_wins() -> None:
    table = SessionTable()
    short, long = table.find(ONE, ids(0, 50), "short"), table.find(ONE, ids(0, 90), "long")
    table.remember(ONE, long, ids(0, 90), ids(90, 5))
    table.remember(ONE, short, ids(0, 50), ids(50, 5))
    assert table.find(ONE, ids(0, 120)) == "long"
    assert table.find(ONE, ids(0, 70)) == "short"


def test_a_named_session_is_taken_as_it_is_named() -> None:
    table = SessionTable()
    assert table.find(ONE, ids(0, 100), "mine") == "mine"
    table.remember(ONE, "mine", ids(0, 100), ids(100, 5))
    assert table.find(ONE, ids(0, 130), "other") == "other"
    assert table.names(ONE) == ["mine", "other"]


def test_more_than_most_end_the_oldest() -> None:
    ended: list[tuple[NamespaceKey, str]] = []
    table = SessionTable(2, ended=lambda key, name: ended.append((key, name)))
    for name in ("a", "b", "c"):
        table.find(ONE, ids(0, 40), name)
    table.find(TWO, ids(0, 40), "d")
    assert ended == [(ONE, "a")]
    assert len(table) == 3
    table.remember(ONE, "a", ids(0, 40), ids(40, 1))  # it has ended: ignored
    assert table.find(ONE, ids(0, 60)) not in ("a", "b", "c")


def test_idle_sessions_end_and_are_forgotten() -> None:
    now = [0.0]
    ended: list[str] = []
    table = SessionTable(
        idle_seconds=10, ended=lambda key, name: ended.append(name), clock=lambda: now[0]
    )
    table.find(ONE, ids(0, 40), "old")
    table.remember(ONE, "old", ids(0, 40), ids(40, 8))
    now[0] = 8.0
    table.find(ONE, ids(900, 40), "new")
    now[0] = 11.0
    assert table.expire() == 1
    assert ended == ["old"]
    assert table.find(ONE, ids(0, 60)) not in ("old", "new")


@pytest.mark.parametrize("known", [True, False])
def test_end(known: bool) -> None:
    table = SessionTable()
    if known:
        table.find(ONE, ids(0, 40), "a")
    assert table.end(ONE, "a") is known
    assert table.names(ONE) == []
