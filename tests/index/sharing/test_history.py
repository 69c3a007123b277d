"""What is kept to be sent again: bounds, purges, pieces."""

from __future__ import annotations

from typing import Any

import numpy as np

from suffixspec_index.log import Record, RecordKind
from suffixspec_index.log.base import FOREVER
from suffixspec_index.sharing.history import History
from tests.index.log.contract import KEY, OTHER


def said(number: int, tokens: int = 3, **changes: Any) -> Record:
    values: dict[str, Any] = {"sequence": number, "time": 100.0 + number} | changes
    kind = values.pop("kind", RecordKind.SEQUENCE)
    return Record(kind, 7, number, tokens=np.full(tokens, number, np.int32), **values)


def piece(number: int, offset: int, *, final: bool = False) -> Record:
    return said(number, 2, kind=RecordKind.CHUNK, sequence=1, offset=offset, final=final)


def mark(number: int, before: float = FOREVER) -> Record:
    return said(number, 0, kind=RecordKind.PURGE, sequence=0, before=before)


def sent_again(history: History, key: Any = KEY) -> list[Record]:
    """Everything pending, acknowledged batch by batch."""
    found: list[Record] = []
    while history.is_pending(key):
        names, records = history.next(key)
        assert names
        assert history.next(key) == (names, records)  # until it is done
        history.done(key, names)
        found += records
    assert history.next(key) == ([], [])
    return found


def test_nothing_goes_out_before_the_log_starts_over() -> None:
    history = History(1 << 20)
    history.add(KEY, [said(1), said(2)])
    history.add(OTHER, [said(3)])
    assert not history.is_pending(KEY)
    assert history.start_over(KEY)
    assert sent_again(history) == [said(1), said(2)]
    assert not history.is_pending(OTHER)
    assert history.start_over(KEY)  # and once more, when it is lost once more
    assert sent_again(history) == [said(1), said(2)]


def test_the_oldest_leave_first_whichever_namespace() -> None:
    history = History(10 * (200 + 4 * 50))
    for number in range(30):
        history.add(OTHER if number % 3 else KEY, [said(number, 50)])
        assert history.nbytes <= 10 * (200 + 4 * 50)
    history.start_over(KEY)
    history.start_over(OTHER)
    numbers = sorted(r.number for key in (KEY, OTHER) for r in sent_again(history, key))
    assert numbers == list(range(20, 30))


def test_zero_keeps_nothing() -> None:
    history = History(0)
    history.add(KEY, [said(1)])
    assert history.nbytes == 0
    assert not history.start_over(KEY)


def test_long_histories_go_out_in_batches() -> None:
    history = History(1 << 24)
    history.add(KEY, [said(number, 10_000) for number in range(20)])
    history.start_over(KEY)
    _, records = history.next(KEY)
    assert len(records) == 4
    assert [r.number for r in sent_again(history)] == list(range(20))


def test_pieces_go_out_together_once_the_last_is_there() -> None:
    history = History(1 << 20)
    history.add(KEY, [piece(1, 0), said(2), piece(3, 2)])
    history.start_over(KEY)
    assert sent_again(history) == [said(2)]
    history.add(KEY, [piece(4, 4, final=True)])
    assert sent_again(history) == [piece(1, 0), piece(3, 2), piece(4, 4, final=True)]


def test_pieces_with_a_gap_are_not_kept() -> None:
    history = History(1 << 20)
    history.add(KEY, [piece(1, 0), piece(3, 4), piece(4, 6, final=True)])
    assert history.nbytes == 0


def test_what_was_discarded_leaves_only_that() -> None:
    history = History(1 << 20)
    discard = said(3, 0, kind=RecordKind.DISCARD, sequence=1)
    history.add(KEY, [piece(1, 0), piece(2, 2), discard])
    history.start_over(KEY)
    assert sent_again(history) == [discard]


def test_what_was_purged_is_not_sent_again() -> None:
    history = History(1 << 20)
    history.add(KEY, [said(1), said(2)])
    history.start_over(KEY)
    history.forget(KEY, 7, 3, 102.0)
    assert sent_again(history) == [said(2)]
    history.add(KEY, [said(3), said(4)])  # 3 was said before; its acknowledgement came late
    history.forget(KEY, 7, 3, FOREVER)
    history.add(KEY, [said(3)])
    history.start_over(KEY)
    assert sent_again(history) == [said(4)]


def test_marks_go_alone_and_reach_no_further_than_they_did() -> None:
    history = History(1 << 20)
    history.add(KEY, [said(1), mark(2), said(3), mark(4, before=103.5), said(5)])
    history.start_over(KEY)
    first, records = history.next(KEY)
    assert len(first) == len(records) == 1
    assert [(r.number, r.before) for r in sent_again(history)] == [(4, 103.5), (5, FOREVER)]
    history.add(KEY, [mark(6)])
    history.start_over(KEY)
    (left,) = sent_again(history)
    assert (left.number, left.before) == (6, left.time)


def test_what_is_forgotten_while_it_is_sent_is_done_all_the_same() -> None:
    history = History(1 << 20)
    history.add(KEY, [said(1), said(2)])
    history.start_over(KEY)
    names, _ = history.next(KEY)
    history.forget(KEY, 7, 1, FOREVER)
    history.done(KEY, names)
    assert not history.is_pending(KEY)
