"""Building a global tree anew beside the old one, while requests go on.

Forgetting costs what inserting the rest did: seconds for a large tree. Text of closed sequences
never changes, so the new tree is built from it without the lock; what came meanwhile is added under
the lock, where the trees are exchanged. Where somebody else rebuilt the tree meanwhile, the rest is
done under the lock. The price is that both trees are in memory for a while.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.forest import Forest
from suffixspec_index.tree import Sequence, SuffixTree

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

    Call it without the index's lock, from one thread at a time. Budgets are not enforced meanwhile.

    Args:
        index: whose global tree.
        keep: says of a sequence whether it stays; asked twice, under the lock.
        exchanging: called under the lock, right before the trees are exchanged.
        room: tokens that will be inserted soon: the new tree will not have to grow for them.
    """
    tree = index.world
    with index._lock.writing():
        generation, text = tree.generation, tree._text()
        closed = [s for s in tree.sequences.values() if not s.is_open and keep(s)]
        index._rebuilding += 1
    try:
        copy = _Copy(tree, sum(sequence.tokens for sequence in closed), room)
        for sequence in closed:
            copy.add(sequence, text)
        with index._lock.writing():
            kept = [s for s in tree.sequences.values() if keep(s)]
            gone = len(tree.sequences) - len(kept)
            exchanging()
            if tree.generation == generation:
                copy.install(kept)
            elif gone:
                tree.rebuild(keep)
            index._after_rebuild()
            index._update_context()
    finally:
        with index._lock.writing():
            index._rebuilding -= 1
    return gone


class _Copy:
    """A tree under construction that will take the place of another one."""

    def __init__(self, tree: SuffixTree, tokens: int, room: int) -> None:
        self._tree = tree
        self._forest = Forest()
        self._row = self._forest.add(tree.depth, tokens + 256)
        if room:
            self._forest.reserve(self._row, tokens + room)
        self._blocks: dict[int, list[tuple[int, int]]] = {}

    def add(self, sequence: Sequence, text: NDArray[np.int32], *, careful: bool = False) -> None:
        """Insert a sequence, as far as its blocks go."""
        moved = []
        for number, (at, length) in enumerate(sequence.blocks):
            end = not sequence.is_open and number == len(sequence.blocks) - 1
            piece = text[at : at + length]
            place = self._forest.insert_block(self._row, piece, end=end, careful=careful)
            moved.append((place, length))
        self._blocks[sequence.id] = moved

    def install(self, kept: list[Sequence]) -> None:
        """Add what is not in yet, and exchange. The write lock is held."""
        late = [sequence for sequence in kept if sequence.id not in self._blocks]
        careful = any(sequence.is_open for sequence in late)
        text = self._tree._text()
        for sequence in late:
            self.add(sequence, text, careful=careful)
        blocks = [self._blocks[sequence.id] for sequence in kept]
        self._tree.replace(self._forest, self._row, kept, blocks)
