"""Kernels that follow a predicted output while it is being generated, and find the place again.

One row of ``rows`` (``(m, COLUMNS)`` int64) is one request; the columns are named below. ``text``
is the prediction, ``(length,)`` int32. ``orders`` is ``(ANCHOR, length)`` int32: row ``n - 1``
lists the start positions of all n-grams, sorted by n-gram, then by position, so that the occurrence
nearest to a place is found by binary search.

How the place is kept. ``PLACE`` is where the next token is expected, -1 while the place is lost;
``RUN`` counts the tokens that agree since it was last found. ``TRUSTED`` is the place behind the
last run that was long enough to believe, and ``SINCE`` the number of tokens produced until then. A
token that does not come as expected loses the place. Then the last tokens of the output, up to
``ANCHOR`` of them, are looked for: at or after the trusted place, and the fewer tokens agree, the
nearer they must be; only a full anchor may also lie before it. While nothing is found, the edit is
taken for a replacement, one token for one, for the first few tokens.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from suffixspec_index.pointers import int32_at
from suffixspec_index.tokens import is_forbidden

(TEXT, ORDERS, LENGTH, PRODUCED, END, PLACE, TRUSTED, SINCE, RUN, HITS, TRIALS) = range(11)
"""Columns: addresses of text and orders, tokens predicted, tokens produced, most tokens to
produce, the four described above, expected tokens that came and that were expected at all."""

TAIL = 11
"""First of ``ANCHOR`` columns with the last tokens of the output, the newest last."""

ANCHOR = 4
"""Tokens of output that are looked for. Four tokens in a row are rarely chance."""

COLUMNS = TAIL + ANCHOR

_REACH = np.array([12, 64, 512, 2**31 - 1], np.int64)
"""How far behind the trusted place an anchor of 1, 2, 3, 4 tokens is believed."""

_GUESSES = 3
"""For how many lost tokens the edit is taken for a replacement."""

_GUESS_TOKENS = 4
"""Most tokens drafted on such a guess."""


@njit(cache=True, nogil=True)
def _lower_bound(
    text: NDArray[np.int32],
    order: NDArray[np.int32],
    tail: NDArray[np.int64],
    n: int,
    position: int,
) -> int:
    """The first index of ``order`` whose (n-gram, position) is not below (the last n tokens of
    ``tail``, ``position``)."""
    low, high = 0, len(text) - n + 1
    while low < high:
        middle = (low + high) >> 1
        start = order[middle]
        sign = 0
        for j in range(n):
            difference = text[start + j] - tail[ANCHOR - n + j]
            if difference != 0:
                sign = -1 if difference < 0 else 1
                break
        if sign < 0 or (sign == 0 and start < position):
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)
def _occurs_at(text: NDArray[np.int32], start: int, tail: NDArray[np.int64], n: int) -> bool:
    j = 0
    while j < n and text[start + j] == tail[ANCHOR - n + j]:
        j += 1
    return j == n


@njit(cache=True, nogil=True)
def _find_place(row: NDArray[np.int64], text: NDArray[np.int32]) -> tuple[int, int]:
    """The place after the best anchor and the anchor's length; ``(-1, 0)`` if there is none.

    O(ANCHOR * log(length)).
    """
    length = len(text)
    tail = row[TAIL : TAIL + ANCHOR]
    longest = min(ANCHOR, row[PRODUCED], length)
    for n in range(longest, 0, -1):
        order = int32_at(row[ORDERS] + 4 * (n - 1) * length, length)
        earliest = max(0, row[TRUSTED] + 1 - n)  # the anchor ends after the trusted place
        index = _lower_bound(text, order, tail, n, earliest)
        if index < length - n + 1:
            start = order[index]
            near = start + n <= row[TRUSTED] + _REACH[n - 1]
            if near and _occurs_at(text, start, tail, n):
                return start + n, n
        if n == ANCHOR and index > 0:
            start = order[index - 1]
            if _occurs_at(text, start, tail, n):
                return start + n, n
    return -1, 0


@njit(cache=True, nogil=True)
def _advance_one(row: NDArray[np.int64], text: NDArray[np.int32], token: int) -> None:
    for j in range(ANCHOR - 1):
        row[TAIL + j] = row[TAIL + j + 1]
    row[TAIL + ANCHOR - 1] = token
    row[PRODUCED] += 1
    known = row[PLACE] >= 0
    if known and row[PLACE] < len(text):
        row[TRIALS] += 1
        if text[row[PLACE]] == token:
            row[HITS] += 1
            row[PLACE] += 1
            row[RUN] += 1
            if row[RUN] >= ANCHOR:
                row[TRUSTED], row[SINCE] = row[PLACE], row[PRODUCED]
            return
    if known and row[RUN] >= 2:  # two in a row near the trusted place: the edit begins here
        row[TRUSTED], row[SINCE] = row[PLACE], row[PRODUCED] - 1
    row[PLACE], row[RUN] = _find_place(row, text)
    if row[RUN] == ANCHOR:
        row[TRUSTED], row[SINCE] = row[PLACE], row[PRODUCED]


@njit(cache=True, nogil=True)
def advance(row: NDArray[np.int64], tokens: NDArray[np.int32]) -> None:
    """Follow the tokens that were produced. O(tokens) while they are as predicted, O(log(length))
    for each one that is not."""
    if row[LENGTH] == 0:
        row[PRODUCED] += len(tokens)
        return
    text = int32_at(row[TEXT], row[LENGTH])
    for token in tokens:
        _advance_one(row, text, token)


@njit(cache=True, nogil=True)
def advance_batch(
    rows: NDArray[np.int64],
    row_ids: NDArray[np.int64],
    tokens: NDArray[np.int32],
    offsets: NDArray[np.int64],
) -> None:
    """:func:`advance` for many rows."""
    for i in range(len(row_ids)):
        advance(rows[row_ids[i]], tokens[offsets[i] : offsets[i + 1]])


@njit(cache=True, nogil=True)
def propose(
    row: NDArray[np.int64],
    limit: int,
    forbidden: NDArray[np.int32],
    out: NDArray[np.int32],
    probs: NDArray[np.float32],
) -> int:
    """Write the draft into ``out`` and ``probs`` and return its length. O(draft).

    A token's probability is the request's own rate of expected tokens that came (begun at 8 of 9),
    times the confidence in the place: less than 1 while fewer than ``ANCHOR`` tokens agree, and
    then the draft is short too.
    """
    length = row[LENGTH]
    if length == 0:
        return 0
    text = int32_at(row[TEXT], length)
    run = row[RUN]
    start = row[PLACE]
    confidence = 1.0
    if start < 0:
        edited = row[PRODUCED] - row[SINCE]
        if edited > _GUESSES:
            return 0
        start = row[TRUSTED] + edited
        limit = min(limit, _GUESS_TOKENS)
        confidence = 0.5
    elif run < min(ANCHOR, start):  # found again just now, not followed from the beginning
        limit = min(limit, 4 * run)
        confidence = run / (run + 1.0)
    count = min(limit, length - start, row[END] - row[PRODUCED])
    rate = (row[HITS] + 8.0) / (row[TRIALS] + 9.0)
    for i in range(count):
        if is_forbidden(forbidden, text[start + i]):
            return int(i)
        confidence *= rate
        out[i] = text[start + i]
        probs[i] = confidence
    return int(max(count, 0))


@njit(cache=True, nogil=True)
def propose_batch(
    rows: NDArray[np.int64],
    row_ids: NDArray[np.int64],
    limits: NDArray[np.int64],
    forbidden: NDArray[np.int32],
    out: NDArray[np.int32],
    probs: NDArray[np.float32],
    offsets: NDArray[np.int64],
    match_lens: NDArray[np.int32],
) -> None:
    """:func:`propose` for many rows, one draft after the other."""
    offsets[0] = 0
    for i in range(len(row_ids)):
        used = offsets[i]
        row = rows[row_ids[i]]
        count = propose(row, limits[i], forbidden, out[used:], probs[used:])
        offsets[i + 1] = used + count
        match_lens[i] = row[RUN] if count else 0
