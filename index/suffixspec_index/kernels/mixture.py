"""Learned acceptance: from filed votes to the probability that a token will be accepted.

Every cell keeps the share of its votes that came true (an adaptive mean with a floor on its rate,
so that old evidence fades). A candidate's log-odds are a weighted sum of its cells' log-odds;
three weight vectors are added, chosen by the match lengths, by the last token and by the candidate
itself, and trained online by the logistic gradient. This is the mixing of the PAQ compressors
(M. Mahoney, "Adaptive weighing of context models for lossless data compression", Florida Tech
TR CS-2005-16, sections 3-4) applied to whole tokens, and only to those that some memory proposes.

The model belongs to a namespace; it is trained by what the verifier accepted, on every draft node
that was reached, so the probabilities in drafts predict acceptance.
"""

from __future__ import annotations

import numpy as np

from suffixspec_index.kernels.evidence import FEATURES, LEVELS, P_LENGTH
from suffixspec_index.kernels.jit import kernel

LENGTH_SETS = 48
TOKEN_SETS = 4096
SET_BY_TOKEN = LENGTH_SETS  # first row of the sets chosen by the last token
SET_BY_CANDIDATE = SET_BY_TOKEN + TOKEN_SETS
WEIGHT_SETS = SET_BY_CANDIDATE + TOKEN_SETS
WEIGHTS = FEATURES + 1  # and a bias
UNIT = np.float32(1.0 / (1 << 24))
CELL_MEAN, CELL_SEEN = 0, 1  # columns of the cells; their log-odds are an array of their own


@kernel(inline="always")
def squash(x):
    """The logistic function."""
    return np.float32(1.0) / (np.float32(1.0) + np.exp(-x))


@kernel(inline="always")
def _length_class(length):
    """0-3: none, 1-2, 3-6, longer."""
    if length <= 2:
        return 0 if length == 0 else 1
    return 2 if length <= 6 else 3


@kernel(forceinline=True)
def weight_set(places, node, depth):
    """The weight set chosen by both memories' match lengths and the draft depth."""
    late = 0 if depth == 0 else (1 if depth < 3 else 2)
    own = _length_class(places[node, 0, P_LENGTH])
    return (own * 4 + _length_class(places[node, LEVELS, P_LENGTH])) * 3 + late


@kernel(forceinline=True)
def log_odds(odds, weights, by_length, last, token, cells, i):
    """Log-odds that candidate ``i``, with its row of ``cells``, is accepted."""
    a = by_length
    b = SET_BY_TOKEN + last % TOKEN_SETS
    c = SET_BY_CANDIDATE + token % TOKEN_SETS
    total = weights[a, FEATURES] + weights[b, FEATURES] + weights[c, FEATURES]
    for k in range(FEATURES):
        cell = cells[i, k]
        if cell >= 0:
            total += (weights[a, k] + weights[b, k] + weights[c, k]) * odds[cell]
    return total


@kernel(forceinline=True)
def learn(
    cell_table, odds, weights, by_length, last, tokens, chances, cells, n, truth, rate, memory
):
    """Train on one draft node: ``n`` candidates, of which at most one was the ``truth``.

    ``chances`` are the probabilities given to them when they were drafted, ``(n,)`` in units of
    2**-24.
    """
    a = weights[by_length]
    b = weights[SET_BY_TOKEN + last % TOKEN_SETS]
    for i in range(n):
        token = tokens[i]
        c = weights[SET_BY_CANDIDATE + token % TOKEN_SETS]
        hit = np.float32(1.0) if token == truth else np.float32(0.0)
        step = rate * (hit - np.float32(chances[i]) * UNIT)
        bias = np.float32(0.3) * step
        a[FEATURES] += bias
        b[FEATURES] += bias
        c[FEATURES] += bias
        for k in range(FEATURES):
            cell = cells[i, k]
            if cell < 0:
                continue
            row = cell_table[cell]
            move = step * odds[cell]
            a[k] += move
            b[k] += move
            c[k] += move
            seen = row[CELL_SEEN]
            mean = row[CELL_MEAN] + (hit - row[CELL_MEAN]) / (seen + np.float32(1.0))
            row[CELL_MEAN] = mean
            if seen < memory:
                row[CELL_SEEN] = seen + np.float32(1.0)
            p = min(max(mean, np.float32(0.002)), np.float32(0.998))
            odds[cell] = np.log(p / (np.float32(1.0) - p))
