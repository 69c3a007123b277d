"""Building a global tree anew beside the old one, while requests go on.

Forgetting costs what inserting the rest did: seconds for a large tree. Text of closed sequences
never changes, so the new tree is built from it without the lock; what came meanwhile is added under
the lock, where the trees are exchanged. Where everything was forgotten meanwhile, the rest is done
under the lock. The price is that both trees are in memory for a while.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from suffixspec_index.tree import Sequence
from suffixspec_index.tree_copy import TreeCopy

if TYPE_CHECKING:
    from suffixspec_index.index import SuffixIndex


def rebuild_aside(
    index: SuffixIndex,
    keep: Callable[[Sequence], bool],
    exchanging: Callable[[], None] = lambda: None,
    *,
    room: int = 0,
) -> int:
    """Forget the sequences that are not to be kept; returns how many there were.

    Call it without the index's lock; one thread after another is served. Budgets are not enforced
    meanwhile.

    Args:
        index: whose global tree.
        keep: says of a sequence whether it stays; asked twice, under the lock.
        exchanging: called under the lock, right before the trees are exchanged.
        room: tokens that will be inserted soon: the new tree will not have to grow for them.
    """
    tree = index.world
    with index._rebuild_turn:
        with index._lock.writing():
            generation, text = tree.generation, tree._text()
            closed = [s for s in tree.sequences.values() if not s.is_open and keep(s)]
            places = [(s.id, s.blocks) for s in closed]  # those of the text at hand
            index._budget.rebuilding += 1
        try:
            copy = TreeCopy(tree, sum(sequence.tokens for sequence in closed), room=room)
            for sequence_id, blocks in places:
                copy.add(sequence_id, blocks, text)
            if not room:
                copy.trim()
            with index._lock.writing():
                kept = [s for s in tree.sequences.values() if keep(s)]
                gone = len(tree.sequences) - len(kept)
                exchanging()
                if tree.generation == generation:
                    copy.install(kept)
                elif gone:
                    tree.rebuild(keep)
                index._requests.restart_cursors()
                index._update_context()
        finally:
            with index._lock.writing():
                index._budget.rebuilding -= 1
    return gone


def discard_aside(index: SuffixIndex, sequence_id: int) -> None:
    """Take back what was shared of a live sequence, as :func:`rebuild_aside` does."""
    rebuild_aside(
        index, _all_but({sequence_id}), exchanging=lambda: index.spoken.discarded(sequence_id)
    )


def purge_aside(index: SuffixIndex, before: float, purging: Callable[[], None]) -> None:
    """Forget what was said before a time, as :func:`rebuild_aside` does; ``purging`` is called
    under the lock at the moment of it, also where there is nothing to forget."""
    with index._lock.writing():
        older = bool(index.spoken.older(before))
        if not older:
            purging()

    def exchanging() -> None:
        index._requests.leave(before)
        purging()

    if older:
        rebuild_aside(index, lambda sequence: sequence.time >= before, exchanging)


def evict_aside(index: SuffixIndex) -> None:
    """Forget the oldest sequences until the index fits its budget, as :func:`rebuild_aside` does.

    It is the duty of whoever :meth:`Budget.enforce` answered with true, after giving the lock back.
    """
    due = True
    while due:
        gone = 0
        try:
            with index._lock.reading():
                oldest = index._budget.oldest()
            gone = rebuild_aside(index, _all_but(oldest))
        finally:
            with index._lock.writing():
                due = index._budget.evicted(gone)


def _all_but(sequences: set[int]) -> Callable[[Sequence], bool]:
    return lambda sequence: sequence.id not in sequences
