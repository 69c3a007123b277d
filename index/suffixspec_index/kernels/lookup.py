"""Reading a tree without a request: counts, longest matches, and drafts by frequency alone."""

from __future__ import annotations

import numpy as np

from suffixspec_index.kernels.cursor import (
    CURSOR,
    K_CHILD,
    K_DEPTH,
    K_NODE,
    advance,
    shorten,
)
from suffixspec_index.kernels.jit import kernel
from suffixspec_index.kernels.layout import (
    C0,
    COUNT,
    DEPTH,
    INLINE,
    KIDS,
    ROOT,
    T0,
    child_of,
    count_of,
    pos_of,
    view,
)


@kernel
def count_string(table, row, tokens):
    """How many windows start with ``tokens`` (fewer than or exactly D of them). O(len)."""
    _, text, nodes, leaves, keys, ids = view(table, row)
    v = np.int32(ROOT)
    d = 0
    n = tokens.shape[0]
    while d < n:
        c = child_of(nodes, keys, ids, v, tokens[d])
        if c == 0:
            return 0
        base = pos_of(nodes, leaves, c)
        stop = n
        if c > 0:
            stop = min(n, nodes[c, DEPTH])
        while d < stop:
            if text[base + d] != tokens[d]:
                return 0
            d += 1
        if d == n:
            return count_of(nodes, leaves, c)
        v = c
    return nodes[v, COUNT]


@kernel
def longest_match(table, row, tokens):
    """The cursor of a context: its longest suffix in the tree, at most D - 1 tokens. Amortised
    O(len)."""
    head, text, nodes, leaves, keys, ids = view(table, row)
    cursor = np.zeros(CURSOR, np.int32)
    for token in tokens:
        advance(head, text, nodes, leaves, keys, ids, cursor, token)
    return cursor


@kernel
def _push(tree, pool, probs, n, v, c, d, parent, reach):
    """Add the continuations of a place to the pool; returns the new size."""
    _, text, nodes, leaves, _, _ = tree
    if c != 0:
        token = text[pos_of(nodes, leaves, c) + d]
        if token >= 0:
            pool[n, 0], pool[n, 1], pool[n, 2], pool[n, 3] = token, parent, v, c
            pool[n, 4] = d
            probs[n] = reach
            n += 1
        return n
    for q in range(min(nodes[v, KIDS], INLINE)):
        token = nodes[v, T0 + q]
        if token >= 0:
            child = nodes[v, C0 + q]
            pool[n, 0], pool[n, 1], pool[n, 2], pool[n, 3] = token, parent, v, child
            pool[n, 4] = d
            probs[n] = reach * count_of(nodes, leaves, child) / nodes[v, COUNT]
            n += 1
    return n


@kernel
def _draft_from(tree, place, most, min_prob, as_tree, tokens, parents, probs):
    """Best-first draft from one place by products of count ratios; returns its size."""
    _, _, nodes, _, _, _ = tree
    pool = np.empty((3 * (most + 1), 5), np.int32)
    waiting = np.empty(3 * (most + 1), np.float64)
    size = _push(tree, pool, waiting, 0, place[0], place[1], place[2], -1, 1.0)
    n = 0
    while size > 0 and n < most:
        best = 0
        for i in range(1, size):
            if waiting[i] > waiting[best]:
                best = i
        reach = waiting[best]
        if reach < min_prob:
            break
        token, parent, v, c, d = pool[best]
        tokens[n], parents[n], probs[n] = token, parent, reach
        d += 1
        if c > 0 and nodes[c, DEPTH] == d:
            v = c
            c = np.int32(0)
        size -= 1
        pool[best] = pool[size]
        waiting[best] = waiting[size]
        if not as_tree:
            size = 0
        size = _push(tree, pool, waiting, size, v, c, d, n, reach)
        n += 1
    return n


@kernel
def frequency_draft(
    table, row, cursor, budget, factor, offset, min_prob, min_match, as_tree, tokens, parents, probs
):
    """The draft of the best score (sum of probabilities) over all match lengths.

    Walks from the longest match to shorter ones and stops where no shorter one can score more: a
    draft of match length ``m`` has at most ``factor * m + offset`` tokens, each of probability at
    most 1. Returns ``(size, match length)``.
    """
    tree = view(table, row)
    head, text, nodes, leaves, keys, ids = tree
    v, c, d = cursor[K_NODE], cursor[K_CHILD], np.int64(cursor[K_DEPTH])
    best_score = 0.0
    best_n = 0
    match = np.int64(0)
    t = np.empty(budget, np.int32)
    p = np.empty(budget, np.int32)
    q = np.empty(budget, np.float32)
    while d >= max(min_match, 1):
        most = min(budget, np.int64(factor * d + offset + 1e-6))
        if most <= best_score:
            break
        place = (v, c, d)
        n = _draft_from(tree, place, most, min_prob, as_tree, t, p, q)
        score = 0.0
        for i in range(n):
            score += q[i]
        if score > best_score:
            best_score = score
            best_n = n
            match = d
            tokens[:n], parents[:n], probs[:n] = t[:n], p[:n], q[:n]
        v, c, d = shorten(head, text, nodes, leaves, keys, ids, v, c, d)
    return best_n, match
