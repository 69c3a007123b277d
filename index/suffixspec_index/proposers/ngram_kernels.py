"""Kernels of prompt lookup: a text and, per n-gram length, a hash from n-gram to first position.

One row of ``rows`` (``(m, 5)`` int64) is one text; the columns are named below. ``text`` is
``(capacity,)`` int32. ``slots`` holds a table of ``2 * capacity`` int32 for each n in
``[min_n, max_n]``, one after the other: open addressing with linear probing, 0 for an empty slot,
else the first position of the n-gram plus 1. Only positions are stored, and a hit is compared with
the text, so a hash collision costs time and never gives a false match.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from suffixspec_index.pointers import int32_at
from suffixspec_index.tokens import is_forbidden

TEXT, SLOTS, CAPACITY, LENGTH, END = range(5)
"""Columns: addresses of text and slots, capacity (a power of two), tokens held, longest context."""

COLUMNS = 5

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@njit(cache=True, nogil=True)
def _mix(state: np.uint64, token: int) -> np.uint64:
    mixed = (state + np.uint64(token) + np.uint64(1)) * _MULTIPLIER
    return mixed ^ (mixed >> np.uint64(32))


@njit(cache=True, nogil=True)
def _hash(text: NDArray[np.int32], start: int, n: int, seed: np.uint64) -> np.uint64:
    """Of the n-gram at ``start``, from its last token to its first: longer ones extend shorter."""
    state = seed
    for j in range(n - 1, -1, -1):
        state = _mix(state, text[start + j])
    return state


@njit(cache=True, nogil=True)
def _find(
    text: NDArray[np.int32], table: NDArray[np.int32], state: np.uint64, start: int, n: int
) -> np.int64:
    """The slot that holds the n-gram at ``start``, or the empty one where it belongs."""
    mask = len(table) - 1
    slot = np.int64(state & np.uint64(mask))
    while table[slot] != 0:
        found = table[slot] - 1
        j = 0
        while j < n and text[found + j] == text[start + j]:
            j += 1
        if j == n:
            break
        slot = (slot + 1) & mask
    return slot


@njit(cache=True, nogil=True)
def _insert(
    text: NDArray[np.int32],
    slots: NDArray[np.int32],
    first: int,
    length: int,
    min_n: int,
    max_n: int,
    seed: np.uint64,
) -> None:
    """Enter all n-grams that end after token ``first`` and at or before ``length``."""
    width = 2 * len(text)
    for end in range(first + 1, length + 1):
        state = seed
        for n in range(1, min(max_n, end) + 1):
            state = _mix(state, text[end - n])
            if n >= min_n:
                table = slots[(n - min_n) * width : (n - min_n + 1) * width]
                slot = _find(text, table, state, end - n, n)
                if table[slot] == 0:
                    table[slot] = end - n + 1


@njit(cache=True, nogil=True)
def _erase(
    text: NDArray[np.int32], table: NDArray[np.int32], hole: np.int64, n: int, seed: np.uint64
) -> None:
    """Empty a slot and move later entries of its cluster up, so that no probe is cut short."""
    mask = len(table) - 1
    slot = hole
    while True:
        slot = (slot + 1) & mask
        if table[slot] == 0:
            break
        home = np.int64(_hash(text, table[slot] - 1, n, seed) & np.uint64(mask))
        if ((slot - home) & mask) >= ((slot - hole) & mask):
            table[hole] = table[slot]
            hole = slot
    table[hole] = 0


@njit(cache=True, nogil=True)
def _remove(
    text: NDArray[np.int32],
    slots: NDArray[np.int32],
    keep: int,
    length: int,
    min_n: int,
    max_n: int,
    seed: np.uint64,
) -> None:
    """Take out all n-grams whose first occurrence ends after ``keep``; the last one goes first,
    so that every entry still in a table points at text that is still there."""
    width = 2 * len(text)
    for end in range(length, keep, -1):
        state = seed
        for n in range(1, min(max_n, end) + 1):
            state = _mix(state, text[end - n])
            if n >= min_n:
                table = slots[(n - min_n) * width : (n - min_n + 1) * width]
                slot = _find(text, table, state, end - n, n)
                if table[slot] == end - n + 1:
                    _erase(text, table, slot, n, seed)


@njit(cache=True, nogil=True)
def _open_slots(row: NDArray[np.int64], min_n: int, max_n: int) -> NDArray[np.int32]:
    return int32_at(row[SLOTS], 2 * row[CAPACITY] * (max_n - min_n + 1))


@njit(cache=True, nogil=True)
def common_prefix(row: NDArray[np.int64], tokens: NDArray[np.int32]) -> int:
    """How many first tokens of ``tokens`` are the row's. O(result)."""
    text = int32_at(row[TEXT], row[CAPACITY])
    bound = min(row[LENGTH], len(tokens))
    i = 0
    while i < bound and text[i] == tokens[i]:
        i += 1
    return i


@njit(cache=True, nogil=True)
def truncate(row: NDArray[np.int64], keep: int, min_n: int, max_n: int, seed: np.uint64) -> None:
    """Forget all tokens from ``keep`` on. O((removed or kept, whichever is less) * max_n)."""
    text = int32_at(row[TEXT], row[CAPACITY])
    slots = _open_slots(row, min_n, max_n)
    if 2 * keep >= row[LENGTH]:
        _remove(text, slots, keep, row[LENGTH], min_n, max_n, seed)
    else:
        slots[:] = 0
        _insert(text, slots, 0, keep, min_n, max_n, seed)
    row[LENGTH] = keep


@njit(cache=True, nogil=True)
def append(
    row: NDArray[np.int64], tokens: NDArray[np.int32], min_n: int, max_n: int, seed: np.uint64
) -> None:
    """Append tokens, for which there must be room. O(tokens * max_n) expected."""
    text = int32_at(row[TEXT], row[CAPACITY])
    length = row[LENGTH]
    for i in range(len(tokens)):
        text[length + i] = tokens[i]
    row[LENGTH] = length + len(tokens)
    _insert(text, _open_slots(row, min_n, max_n), length, row[LENGTH], min_n, max_n, seed)


@njit(cache=True, nogil=True)
def append_batch(
    rows: NDArray[np.int64],
    row_ids: NDArray[np.int64],
    tokens: NDArray[np.int32],
    offsets: NDArray[np.int64],
    min_n: int,
    max_n: int,
    seed: np.uint64,
) -> None:
    """:func:`append` for many rows."""
    for i in range(len(row_ids)):
        append(rows[row_ids[i]], tokens[offsets[i] : offsets[i + 1]], min_n, max_n, seed)


@njit(cache=True, nogil=True)
def propose(
    row: NDArray[np.int64],
    limit: int,
    min_n: int,
    max_n: int,
    seed: np.uint64,
    forbidden: NDArray[np.int32],
    out: NDArray[np.int32],
) -> tuple[int, int]:
    """Write the draft into ``out``; return its length and the length of the n-gram it rests on.

    Going from short to long: where the last n tokens did not occur before, no longer run did.
    O(max_n + draft).
    """
    text = int32_at(row[TEXT], row[CAPACITY])
    slots = _open_slots(row, min_n, max_n)
    length = row[LENGTH]
    width = 2 * len(text)
    matched, position = 0, 0
    state = seed
    for n in range(1, min(max_n, length - 1) + 1):
        state = _mix(state, text[length - n])
        if n >= min_n:
            table = slots[(n - min_n) * width : (n - min_n + 1) * width]
            first = table[_find(text, table, state, length - n, n)] - 1
            if first == length - n:
                break
            matched, position = n, first
    if matched == 0:
        return 0, 0
    start = position + matched
    count = min(limit, length - start, row[END] - length)
    for i in range(count):
        if is_forbidden(forbidden, text[start + i]):
            return i, matched
        out[i] = text[start + i]
    return max(count, 0), matched


@njit(cache=True, nogil=True)
def propose_batch(
    rows: NDArray[np.int64],
    row_ids: NDArray[np.int64],
    limits: NDArray[np.int64],
    min_n: int,
    max_n: int,
    seed: np.uint64,
    forbidden: NDArray[np.int32],
    out: NDArray[np.int32],
    offsets: NDArray[np.int64],
    match_lens: NDArray[np.int32],
) -> None:
    """:func:`propose` for many rows, one draft after the other in ``out``."""
    offsets[0] = 0
    for i in range(len(row_ids)):
        used = offsets[i]
        count, matched = propose(
            rows[row_ids[i]], limits[i], min_n, max_n, seed, forbidden, out[used:]
        )
        offsets[i + 1] = used + count
        match_lens[i] = matched if count else 0
