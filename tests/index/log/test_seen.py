"""Numbers that were met, beside a set."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from suffixspec_index.log.seen import MOST_RUNS, Seen


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=200))
def test_like_a_set(steps: list[tuple[bool, int]]) -> None:
    seen, model = Seen(), set[int]()
    for adds, number in steps:
        if adds:
            assert seen.add(number) is (number not in model)
            model.add(number)
        else:
            seen.remove(number)
            model.discard(number)
        runs = seen.runs()
        assert {n for start, end in runs for n in range(start, end)} == model
        assert all(a[1] < b[0] for a, b in itertools.pairwise(runs))
    assert all((n in seen) is (n in model) for n in range(42))


def test_beyond_the_bound_the_oldest_gaps_count_as_met() -> None:
    seen = Seen()
    for number in range(0, 4 * MOST_RUNS, 2):
        assert seen.add(number)
    assert len(seen.runs()) == MOST_RUNS
    assert not seen.add(1)
    assert seen.add(4 * MOST_RUNS - 3)
