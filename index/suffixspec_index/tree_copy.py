"""A tree under construction that will take the place of another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.forest import Forest

if TYPE_CHECKING:
    from suffixspec_index.tree import Sequence, SuffixTree

Blocks = list[tuple[int, int]]


class TreeCopy:
    """Built from the text of another tree, in arrays of the right size.

    Args:
        tree: the other one.
        tokens: of the sequences that will be kept.
        room: tokens that will be inserted soon: the new tree will not have to grow for them.
    """

    def __init__(self, tree: SuffixTree, tokens: int, *, room: int = 0) -> None:
        self._tree = tree
        self._forest = Forest()
        self._row = self._forest.add(tree.depth, tokens + 256)
        if room:
            self._forest.reserve(self._row, tokens + room)
        self._blocks: dict[int, Blocks] = {}

    def add(
        self,
        sequence_id: int,
        blocks: Blocks,
        text: NDArray[np.int32],
        *,
        closed: bool = True,
        careful: bool = False,
    ) -> None:
        """Insert a sequence, as far as its blocks go, which lie in ``text``."""
        moved = []
        for number, (at, length) in enumerate(blocks):
            end = closed and number == len(blocks) - 1
            piece = text[at : at + length]
            place = self._forest.insert_block(self._row, piece, end=end, careful=careful)
            moved.append((place, length))
        self._blocks[sequence_id] = moved

    def trim(self) -> None:
        """Give back most of what the arrays are too large."""
        self._forest.trim(self._row, part=8)

    def install(self, kept: list[Sequence], *, trim: bool = False) -> None:
        """Add what is not in yet, and exchange the trees. Nobody may use the other one meanwhile.

        Args:
            kept: the sequences to keep.
            trim: give back all slack.
        """
        late = [sequence for sequence in kept if sequence.id not in self._blocks]
        careful = any(sequence.is_open for sequence in late)
        text = self._tree._text()
        for one in late:
            self.add(one.id, one.blocks, text, closed=not one.is_open, careful=careful)
        if trim:
            self._forest.trim(self._row)
        blocks = [self._blocks[sequence.id] for sequence in kept]
        self._tree.replace(self._forest, self._row, kept, blocks)
