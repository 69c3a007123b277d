"""Verifying every invariant of trees and of an index."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from suffixspec_index.errors import IntegrityError
from suffixspec_index.forest import Forest
from suffixspec_index.kernels import check
from suffixspec_index.kernels import layout as L

if TYPE_CHECKING:
    from suffixspec_index.index import SuffixIndex
    from suffixspec_index.tree import SuffixTree

_FAULTS = {
    check.BAD_FILL: "more rows in use than allocated",
    check.BAD_CHILD: "a child id points nowhere or is not deeper than its parent",
    check.BAD_PARENT: "a child names another parent",
    check.BAD_EDGE: "an edge does not start with its token",
    check.BAD_TEXT: "a child's text does not continue its parent's",
    check.BAD_COUNT: "a count is not the sum of the children's",
    check.BAD_ORDER: "children are not ordered by count",
    check.BAD_LINK: "a suffix link leads to another string",
    check.BAD_KIDS: "the number of children is wrong",
    check.BAD_REACH: "a leaf is reached twice or not at all",
    check.BAD_HASH: "the hash holds a foreign key",
}


def check_row(forest: Forest, row: int) -> None:
    """Verify the invariants of one tree of a forest.

    Raises:
        IntegrityError: names the first fault found.
    """
    code, place = check.check_tree(forest.table, row)
    if code != check.OK:
        raise IntegrityError(f"tree {row}, at {place}: {_FAULTS[code]}")


def check_tree(tree: SuffixTree) -> None:
    """Verify a tree and what it knows of its sequences.

    Raises:
        IntegrityError: names the first fault found.
    """
    check_row(tree.forest, tree.row)
    windows = 0
    for sequence in tree.sequences.values():
        for number, (_, length) in enumerate(sequence.blocks):
            last = number == len(sequence.blocks) - 1 and not sequence.is_open
            windows += length if last else max(length - tree.depth + 1, 0)
        if len(tree.sequence_tokens(sequence.id)) != sequence.tokens:
            raise IntegrityError(f"tree: sequence {sequence.id} lost or gained tokens")
    if windows != int(tree.forest.table[tree.row, L.H_WINDOWS]):
        raise IntegrityError(f"tree: {windows} windows expected in the sequences' text")
    if tree._open != sum(s.is_open for s in tree.sequences.values()):
        raise IntegrityError("tree: the number of open sequences is wrong")


def check_index(index: SuffixIndex) -> None:
    """Verify every tree, every session and the request table. The write lock is held.

    What is lent (:meth:`suffixspec_index.sessions.Sessions.lend`) changes at this moment, so of
    these trees only the place is verified.

    Raises:
        IntegrityError: names the first fault found.
    """
    index.world.check_integrity()
    sessions = {id(s): s for s in index._sessions.values()}
    sessions |= {id(r.session): r.session for r in index._requests.values()}
    lent = {id(s): s for s in index._sessions.lent()}
    for key, session in sessions.items():
        if key not in lent:
            check_row(index._forest, session.row)
    if any(s.awaited is None or s.request >= 0 for s in lent.values()):
        raise IntegrityError("index: a session is lent and not in a state for it")
    if any(s.awaited is not None for key, s in sessions.items() if key not in lent):
        raise IntegrityError("index: a session waits for a prompt that nobody inserts")
    sessions |= lent
    rows = {s.row for s in sessions.values() if s.row >= 0} | {index.world.row}
    alive = {i for i, arrays in enumerate(index._forest.arrays) if arrays is not None}
    if rows != alive:
        raise IntegrityError(f"index: trees {sorted(alive ^ rows)} belong to nobody")
    index._requests.check_integrity()
    counted = sum(a.nbytes for a in index._forest.arrays if a is not None)
    if counted != index._forest.nbytes_total:
        raise IntegrityError("index: the byte count is wrong")
    if not np.isfinite(index.model.weights).all():
        raise IntegrityError("index: a learned weight is not finite")
