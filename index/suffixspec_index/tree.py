"""The suffix tree of a collection of token sequences, depth-capped, counted, growing.

Each *window* of a sequence (the ``depth`` tokens from a position, or what is left of it and its
end) is a path from the root, and a node's count is the number of windows through it: how often its
string occurs. How it lies in memory is told in ``kernels/layout.py``, how it is built in
``kernels/insert.py``.

A sequence still being generated is opened, extended and closed. Its last ``depth - 1`` tokens are
not in the tree until more follow or it is closed; within ``live_chunk`` tokens more, so that
text is not copied for every token.

Not thread-safe by itself: :class:`suffixspec_index.index.SuffixIndex` owns the lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from suffixspec_index.draft import Draft, Source
from suffixspec_index.errors import ConfigError, InputError
from suffixspec_index.forest import Forest
from suffixspec_index.integrity import check_tree
from suffixspec_index.kernels import layout as L
from suffixspec_index.kernels import lookup
from suffixspec_index.kernels.cursor import K_DEPTH
from suffixspec_index.statistics import TreeStatistics
from suffixspec_index.tokens import as_token_array, as_vocab_size
from suffixspec_index.tree_copy import TreeCopy

__all__ = ["MAX_DEPTH", "Sequence", "SuffixTree", "TreeStatistics"]

MAX_DEPTH = 4096
_UNBOUNDED = 1e9  # stands for an infinite factor where kernels need a number


@dataclass(slots=True)
class Sequence:
    """One sequence of the tree: where its pieces of text lie, and what waits to be inserted."""

    id: int
    time: float
    blocks: list[tuple[int, int]] = field(default_factory=list)  # (position, length without END)
    tokens: int = 0
    waiting: NDArray[np.int32] | None = None  # of an open sequence: text not wholly inserted

    @property
    def is_open(self) -> bool:
        """Whether it may still be extended."""
        return self.waiting is not None


class SuffixTree:
    """See the module docstring.

    >>> tree = SuffixTree(depth=8)
    >>> _ = tree.insert([1, 2, 3, 1, 2, 4, 1, 2, 3])
    >>> tree.count([1, 2]), tree.match([9, 9, 1, 2])
    (3, 2)
    >>> tree.draft([9, 1, 2], num_speculative_tokens=2, max_spec_factor=2).token_ids.tolist()
    [3, 1]

    Args:
        depth: window length D in tokens, 2 to 4096. Matches are found up to D - 1 tokens.
        vocab_size: ids must be below it; ``None``: any id below 2**31 - 1.
        live_chunk: an open sequence is inserted in pieces of this many windows.
        forest: where the arrays live; by default a forest of its own.

    Raises:
        ConfigError: a setting is out of range.
    """

    def __init__(
        self,
        depth: int = 64,
        *,
        vocab_size: int | None = None,
        live_chunk: int = 128,
        forest: Forest | None = None,
    ) -> None:
        if isinstance(depth, bool) or not isinstance(depth, int) or not 2 <= depth <= MAX_DEPTH:
            raise ConfigError(f"depth: must be an integer from 2 to {MAX_DEPTH}, got {depth!r}")
        if live_chunk < 1:
            raise ConfigError(f"live_chunk: must be at least 1, got {live_chunk!r}")
        self.depth = depth
        self.live_chunk = live_chunk
        self.vocab_size = as_vocab_size(vocab_size)
        self.forest = Forest() if forest is None else forest
        self.row = self.forest.add(depth, 1024)
        self.sequences: dict[int, Sequence] = {}  # by id, oldest first
        self.generation = 0  # how often it was built anew
        self._next_id = 0
        self._open = 0

    # --- writing ---------------------------------------------------------------------------------

    def insert(self, token_ids: ArrayLike, *, at_time: float | None = None) -> int:
        """Insert a finished sequence; returns its id. Amortised O(nodes on a path) per token.

        Raises:
            TokenError: an id is wrong. CapacityError: the text is full. Nothing is changed then.
        """
        tokens = as_token_array(token_ids, self.vocab_size, field="token_ids")
        sequence = self._new_sequence(at_time)
        self._add_block(sequence, tokens, end=True)
        sequence.tokens = len(tokens)
        self.sequences[sequence.id] = sequence
        return sequence.id

    def insert_many(
        self, token_ids: ArrayLike, offsets: ArrayLike, times: Iterable[float]
    ) -> list[int]:
        """Insert finished sequences in one kernel call; returns their ids.

        Args:
            token_ids: ``(m,)`` the tokens of all, end to end.
            offsets: ``(n + 1,)`` rising from 0 to m: sequence ``i`` is
                ``token_ids[offsets[i]:offsets[i + 1]]``.
            times: when each was said, seconds since the epoch.

        Raises:
            TokenError: an id is wrong. CapacityError: the text is full. Nothing is changed then.
        """
        tokens = as_token_array(token_ids, self.vocab_size, field="token_ids")
        bounds = np.ascontiguousarray(offsets, np.int64)
        careful = self._open > 0
        positions = self.forest.insert_blocks(self.row, tokens, bounds, careful=careful)
        lengths = np.diff(bounds).tolist()
        first = self._next_id
        for at, length, said in zip(positions.tolist(), lengths, times, strict=True):
            sequence = Sequence(self._next_id, said, [(at, length)], length)
            self.sequences[sequence.id] = sequence
            self._next_id += 1
        return list(range(first, self._next_id))

    def open(self, token_ids: ArrayLike = (), *, at_time: float | None = None) -> int:
        """Start a sequence that will be extended; returns its id.

        Raises:
            TokenError: an id is wrong. Nothing is changed then.
        """
        tokens = as_token_array(token_ids, self.vocab_size, field="token_ids")
        sequence = self._new_sequence(at_time)
        sequence.waiting = np.empty(0, np.int32)
        self.sequences[sequence.id] = sequence
        self._open += 1
        self._extend(sequence, tokens)
        return sequence.id

    def extend(self, sequence_id: int, token_ids: ArrayLike) -> None:
        """Append tokens to an open sequence.

        Raises:
            InputError: no such sequence, or it is closed. TokenError: an id is wrong.
        """
        tokens = as_token_array(token_ids, self.vocab_size, field="token_ids")
        self._extend(self._open_sequence(sequence_id), tokens)

    def close(self, sequence_id: int) -> None:
        """End an open sequence: all of it becomes visible.

        Raises:
            InputError: no such sequence, or it is closed already.
        """
        sequence = self._open_sequence(sequence_id)
        assert sequence.waiting is not None
        self._add_block(sequence, sequence.waiting, end=True)
        sequence.waiting = None
        self._open -= 1

    def evict(self, sequence_ids: Iterable[int]) -> int:
        """Forget sequences and return their memory; returns how many there were.

        The tree is built anew from what is left, which costs what inserting it cost: evict many
        at a time. Unknown ids are ignored.
        """
        gone = set(sequence_ids) & self.sequences.keys()
        if gone:
            self.rebuild(lambda sequence: sequence.id not in gone)
        return len(gone)

    def rebuild(self, keep: Callable[[Sequence], bool]) -> None:
        """Build the tree anew, in arrays of the right size, from the sequences to keep."""
        kept = [sequence for sequence in self.sequences.values() if keep(sequence)]
        copy = TreeCopy(self, sum(s.tokens for s in kept))
        copy.install(kept, trim=True)

    def replace(
        self,
        forest: Forest,
        row: int,
        kept: list[Sequence],
        blocks: list[list[tuple[int, int]]],
    ) -> None:
        """Take over a tree that was built in another forest from the sequences to keep, whose
        text lies there in ``blocks``."""
        for sequence, moved in zip(kept, blocks, strict=True):
            sequence.blocks = moved
        self.sequences = {sequence.id: sequence for sequence in kept}
        self._open = sum(s.is_open for s in kept)
        self.generation += 1
        self.forest.take(self.row, forest, row)

    def clear(self) -> None:
        """Forget everything."""
        self.rebuild(lambda _: False)

    def save(self, path: str | Path, *, fingerprint: str | None = None) -> None:
        """Write the sequences to a file; see :func:`suffixspec_index.snapshot.save_tree`."""
        from suffixspec_index.snapshot import save_tree

        save_tree(self, path, fingerprint=fingerprint)

    @staticmethod
    def load(
        path: str | Path, *, fingerprint: str | None = None, depth: int | None = None
    ) -> SuffixTree:
        """Build a tree from a file; see :func:`suffixspec_index.snapshot.load_tree`."""
        from suffixspec_index.snapshot import load_tree

        return load_tree(path, fingerprint=fingerprint, depth=depth)

    # --- reading ---------------------------------------------------------------------------------

    def match(self, context: ArrayLike) -> int:
        """Length of the longest suffix of ``context`` in the tree, at most ``depth - 1``."""
        return int(self._cursor(context)[K_DEPTH])

    def count(self, token_ids: ArrayLike) -> int:
        """How many windows start with ``token_ids``: the occurrences of it in closed sequences.
        O(len). Strings longer than ``depth`` count 0."""
        tokens = as_token_array(token_ids, self.vocab_size, field="token_ids")
        if len(tokens) > self.depth:
            return 0
        return int(lookup.count_string(self.forest.table, self.row, tokens))

    def draft(
        self,
        context: ArrayLike,
        *,
        num_speculative_tokens: int = 16,
        max_spec_factor: float = 1.0,
        max_spec_offset: float = 0.0,
        min_token_prob: float = 0.1,
        min_match_len: int = 1,
        tree: bool = False,
    ) -> Draft:
        """Propose by frequency alone: ratios of counts, best score over all match lengths.

        This is what SuffixDecoding does (arXiv 2411.04975, section 4.1). The index's learned
        drafts are better; this one needs no request and learns nothing.

        Raises:
            TokenError: an id is wrong. ConfigError: a setting is out of range.
        """
        if not (num_speculative_tokens >= 0 and max_spec_factor >= 0 and 0 <= min_token_prob <= 1):
            raise ConfigError(
                "draft: num_speculative_tokens and max_spec_factor must not be negative, "
                f"min_token_prob must lie in [0, 1]; got {num_speculative_tokens}, "
                f"{max_spec_factor}, {min_token_prob}"
            )
        if not abs(max_spec_offset) < _UNBOUNDED:
            raise ConfigError(f"draft: max_spec_offset must be finite, got {max_spec_offset}")
        cursor = self._cursor(context)
        budget = min(num_speculative_tokens, self.depth)
        tokens, parents = np.empty(budget, np.int32), np.empty(budget, np.int32)
        probs = np.empty(budget, np.float32)
        n, matched = lookup.frequency_draft(
            self.forest.table,
            self.row,
            cursor,
            budget,
            min(float(max_spec_factor), _UNBOUNDED),
            float(max_spec_offset),
            float(min_token_prob),
            min_match_len,
            tree,
            tokens,
            parents,
            probs,
        )
        sources = np.full(n, Source.GLOBAL, np.uint8)
        return Draft(tokens[:n], parents[:n], probs[:n], sources, int(matched))

    def sequence_tokens(self, sequence_id: int) -> NDArray[np.int32]:
        """The tokens of a sequence, ``(n,)`` int32, a copy.

        Raises:
            InputError: no such sequence.
        """
        sequence = self._sequence(sequence_id)
        text = self._text()
        parts: list[NDArray[np.int32]] = []
        for number, (at, length) in enumerate(sequence.blocks):
            skip = self.depth - 1 if number else 0  # pieces overlap by D - 1 tokens
            parts.append(text[at + skip : at + length])
        if sequence.waiting is not None:
            parts.append(sequence.waiting[self.depth - 1 if sequence.blocks else 0 :])
        return np.concatenate(parts) if parts else np.empty(0, np.int32)

    def statistics(self) -> TreeStatistics:
        """Sizes. O(sequences)."""
        head = self.forest.table[self.row]
        return TreeStatistics(
            sequences=len(self.sequences),
            tokens=sum(s.tokens for s in self.sequences.values()),
            windows=int(head[L.H_WINDOWS]),
            nodes=int(head[L.H_N_NODES]),
            leaves=int(head[L.H_N_LEAVES]),
            bytes=self.forest.nbytes(self.row),
            depth=self.depth,
        )

    def check_integrity(self) -> None:
        """Verify every invariant of the tree. O(nodes times depth).

        Raises:
            IntegrityError: names the first fault found.
        """
        check_tree(self)

    # --- inside ----------------------------------------------------------------------------------

    def _text(self) -> NDArray[np.int32]:
        arrays = self.forest.arrays[self.row]
        assert arrays is not None
        return arrays.text

    def _cursor(self, context: ArrayLike) -> NDArray[np.int32]:
        tokens = as_token_array(context, self.vocab_size, field="context")
        tail = tokens[max(len(tokens) - self.depth + 1, 0) :]
        cursor: NDArray[np.int32] = lookup.longest_match(self.forest.table, self.row, tail)
        return cursor

    def _new_sequence(self, at_time: float | None) -> Sequence:
        sequence = Sequence(self._next_id, time.time() if at_time is None else at_time)
        self._next_id += 1
        return sequence

    def _add_block(self, sequence: Sequence, tokens: NDArray[np.int32], *, end: bool) -> None:
        at = self.forest.insert_block(self.row, tokens, end=end, careful=self._open > 0)
        sequence.blocks.append((at, len(tokens)))

    def _extend(self, sequence: Sequence, tokens: NDArray[np.int32]) -> None:
        """Add to what waits; insert a piece once it holds ``live_chunk`` complete windows."""
        assert sequence.waiting is not None
        sequence.waiting = np.concatenate([sequence.waiting, tokens])
        sequence.tokens += len(tokens)
        if len(sequence.waiting) - self.depth + 1 >= self.live_chunk:
            self._add_block(sequence, sequence.waiting, end=False)
            sequence.waiting = sequence.waiting[len(sequence.waiting) - self.depth + 1 :].copy()

    def _sequence(self, sequence_id: int) -> Sequence:
        try:
            return self.sequences[sequence_id]
        except KeyError:
            raise InputError(
                f"sequence_id: no sequence {sequence_id!r}; it was never inserted or is evicted"
            ) from None

    def _open_sequence(self, sequence_id: int) -> Sequence:
        sequence = self._sequence(sequence_id)
        if not sequence.is_open:
            raise InputError(f"sequence_id: sequence {sequence_id} is closed; open a new one")
        return sequence

    def __len__(self) -> int:
        return len(self.sequences)

    def __iter__(self) -> Iterator[int]:
        return iter(self.sequences)
