from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from suffixspec_index.draft import Draft, DraftBatch, Source
from suffixspec_service.drafting.acceptance import Acceptance, AcceptanceLedger, as_paths


@st.composite
def drafts(draw: st.DrawFn, most: int = 12) -> Draft:
    """A tree with few different tokens; siblings differ, children are less probable."""
    n = draw(st.integers(0, most))
    tokens: list[int] = []
    parents: list[int] = []
    probs: list[float] = []
    for i in range(n):
        parent = draw(st.integers(-1, i - 1))
        taken = {t for t, p in zip(tokens, parents, strict=True) if p == parent}
        free = [t for t in range(4) if t not in taken]
        if not free:
            continue
        # Positions may be fewer than i where siblings were full.
        parent = min(parent, len(tokens) - 1)
        taken = {t for t, p in zip(tokens, parents, strict=True) if p == parent}
        free = [t for t in range(4) if t not in taken]
        if not free:
            continue
        tokens.append(draw(st.sampled_from(free)))
        parents.append(parent)
        above = 1.0 if parent < 0 else probs[parent]
        probs.append(above * draw(st.sampled_from([0.25, 0.5, 1.0])))
    sources = draw(st.lists(st.sampled_from([1, 2, 3]), min_size=len(tokens), max_size=len(tokens)))
    return Draft(
        np.array(tokens, np.int32),
        np.array(parents, np.int32),
        np.array(probs, np.float32),
        np.array(sources, np.uint8),
        draw(st.integers(0, 9)),
    )


gains = st.lists(st.integers(0, 3), max_size=6)


def counted(draft: Draft, gained: list[int], counts: Acceptance) -> None:
    """The slow and obvious way."""
    if not gained:
        return
    counts.steps += 1
    counts.output_tokens += len(gained)
    if not len(draft):
        return
    accepted = draft.accepted_by(gained)
    counts.steps_with_draft += 1
    counts.drafted += len(draft)
    counts.accepted += len(accepted)
    for depth in range(len(accepted)):
        if depth == len(counts.accepted_per_position):
            counts.accepted_per_position.append(0)
        counts.accepted_per_position[depth] += 1
    for node, source in enumerate(draft.sources.tolist()):
        counts.drafted_by_source[source] += 1
        counts.accepted_by_source[source] += node in accepted


@settings(deadline=None)
@given(st.lists(st.lists(st.tuples(drafts(), gains), min_size=1, max_size=4), max_size=5))
def test_counts_as_the_obvious_way_does(requests: list[list[tuple[Draft, list[int]]]]) -> None:
    ledger = AcceptanceLedger()
    rows = [ledger.open(3) for _ in requests]
    expected = [Acceptance() for _ in requests]
    for turn in range(max(map(len, requests), default=0)):
        there = [i for i, steps in enumerate(requests) if turn < len(steps)]
        numbers = np.array([rows[i] for i in there], np.int64)
        ledger.drafted(numbers, DraftBatch.of([requests[i][turn][0] for i in there]))
        told = [requests[i][turn][1] for i in there]
        offsets = np.concatenate([[0], np.cumsum([len(g) for g in told])]).astype(np.int64)
        ledger.advanced(numbers, np.array([t for g in told for t in g], np.int32), offsets)
        for i in there:
            counted(*requests[i][turn], expected[i])
    assert [ledger.close(row) for row in rows] == expected


def test_a_draft_is_held_against_the_next_gain_only() -> None:
    ledger = AcceptanceLedger()
    row = np.array([ledger.open(1)], np.int64)
    ledger.drafted(row, DraftBatch.of([Draft.path([1, 2], source=Source.GLOBAL)]))
    ledger.drafted(row, DraftBatch.of([Draft.path([5], source=Source.SESSION)]))
    for token in (5, 1):
        ledger.advanced(row, np.array([token], np.int32), np.array([0, 1], np.int64))
    counts = ledger.close(int(row[0]))
    assert (counts.steps, counts.steps_with_draft, counts.drafted, counts.accepted) == (2, 1, 1, 1)
    assert counts.by_source == {"session": (1, 1)}


def test_rows_are_used_again_and_grow() -> None:
    ledger = AcceptanceLedger()
    rows = [ledger.open(n) for n in range(200)]
    assert len(set(rows)) == 200
    assert ledger.contexts(np.array(rows, np.int64)).tolist() == list(range(200))
    long = Draft.path(list(range(300)), source=Source.PREDICTION)
    one = np.array([rows[150]], np.int64)
    ledger.drafted(one, DraftBatch.of([long]))
    ledger.advanced(one, long.token_ids, np.array([0, 300], np.int64))
    assert ledger.close(rows[150]).accepted_per_position == [1] * 300
    again = ledger.open(7)
    assert again == rows[150]
    assert ledger.close(again) == Acceptance()


@settings(deadline=None)
@given(st.lists(drafts(), max_size=5))
def test_paths_are_the_best_of_all(trees: list[Draft]) -> None:
    batch = as_paths(DraftBatch.of(trees))
    assert batch.match_lens.tolist() == [tree.match_len for tree in trees]
    for tree, path in zip(trees, batch, strict=True):
        path.check_integrity()
        assert path.is_path
        scores = []
        for leaf in range(len(tree)):
            nodes = [leaf]
            while tree.parents[nodes[-1]] >= 0:
                nodes.append(int(tree.parents[nodes[-1]]))
            scores.append(float(tree.probs[nodes].sum()))
        assert path.score == max(scores, default=0.0)
        if len(path):
            assert len(tree.accepted_by(path.token_ids)) == len(path)


def test_adding_counts() -> None:
    total = Acceptance(steps=1, accepted_per_position=[2])
    total.add(Acceptance(steps=2, accepted_per_position=[1, 1], accepted=3))
    assert (total.steps, total.accepted, total.accepted_per_position) == (3, 3, [3, 1])
