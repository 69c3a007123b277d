"""Cursors: the longest match of a context, kept as a place in the tree and moved token by token.

A cursor is one int32 row. Its place is ``(node, child, depth)``: ``depth`` tokens of the context's
end are in the tree, ``node`` is the last node at or above the place, ``child`` the edge it lies on
(0: the place is the node). The depth stays below the window length, so a continuation is always in
the tree. A match that is longer than that is known by its text: ``copy`` is the text position that
the copied passage would continue at, ``run`` the true match length there.
"""

from __future__ import annotations

import numpy as np

from suffixspec_index.kernels.jit import kernel
from suffixspec_index.kernels.layout import (
    DEPTH,
    H_DEPTH,
    H_NEXT,
    H_WINDOWS,
    LINK,
    OPEN,
    PARENT,
    POS,
    ROOT,
    child_of,
    pos_of,
)

K_NODE, K_CHILD, K_DEPTH, K_COPY, K_RUN, K_SEEN = 0, 1, 2, 3, 4, 5
CURSOR = 6


@kernel
def longest_suffix(text, nodes, leaves, keys, ids, base, length):
    """The place of the longest suffix in the tree of the ``length`` tokens at text position
    ``base``, searched from the root. O(length squared) at worst, and hardly ever needed."""
    while length > 0:
        v, c, d = np.int32(ROOT), np.int32(0), np.int64(0)
        while d < length:
            c = child_of(nodes, keys, ids, v, text[base + d])
            if c == 0:
                break
            here = pos_of(nodes, leaves, c)
            stop = length
            if c > 0 and nodes[c, DEPTH] < length:
                stop = np.int64(nodes[c, DEPTH])
            while d < stop and text[here + d] == text[base + d]:
                d += 1
            if d < stop:
                break
            if c > 0 and nodes[c, DEPTH] == d:
                v = c
                c = np.int32(0)
        if d == length:
            return v, np.int32(c), d
        base += 1
        length -= 1
    return np.int32(ROOT), np.int32(0), np.int64(0)


@kernel(forceinline=True)
def shorten(head, text, nodes, leaves, keys, ids, v, c, d):
    """Drop the first token of the string at a place: its suffix link. Amortised O(1).

    Returns ``(node, child, depth)`` of the longest proper suffix that is in the tree; it is shorter
    than ``d - 1`` only where text is still growing, so that the suffix is not in the tree yet.
    """
    if c == 0:
        link = nodes[v, LINK]
        if link >= 0:
            return np.int32(link), np.int32(0), d - 1
        if v == ROOT:
            return np.int32(ROOT), np.int32(0), np.int64(0)
        c = v
        v = nodes[v, PARENT]
    here = pos_of(nodes, leaves, c)
    while v != ROOT and nodes[v, LINK] < 0:
        v = nodes[v, PARENT]
    v = nodes[v, LINK] if v != ROOT else np.int32(ROOT)
    base = here + 1
    goal = d - 1
    start = np.int64(nodes[v, DEPTH])
    at = start
    c = np.int32(0)
    while at < goal:
        child = child_of(nodes, keys, ids, v, text[base + at])
        if child == 0:
            break
        if child > 0 and nodes[child, DEPTH] <= goal:
            v = child
            at = np.int64(nodes[child, DEPTH])
        else:
            c = child
            at = goal
    if at < goal:
        return longest_suffix(text, nodes, leaves, keys, ids, base + 1, goal - 1)
    if at > start and (text[here + head[H_DEPTH]] == OPEN or base >= head[H_NEXT]):
        # The newest window of growing text: its suffix may be missing, so compare.
        other = pos_of(nodes, leaves, c) if c != 0 else nodes[v, POS]
        for k in range(start, at):
            if text[other + k] != text[base + k]:
                return longest_suffix(text, nodes, leaves, keys, ids, base + 1, goal - 1)
    return np.int32(v), np.int32(c), at


@kernel(forceinline=True)
def refresh(head, text, nodes, leaves, keys, ids, cursor):
    """Look again at the edge below a cursor's node: insertions may have split it. O(splits)."""
    if cursor[K_SEEN] == np.int32(head[H_WINDOWS]):
        return
    cursor[K_SEEN] = np.int32(head[H_WINDOWS])
    if cursor[K_CHILD] == 0:
        return
    v, d = cursor[K_NODE], cursor[K_DEPTH]
    base = pos_of(nodes, leaves, cursor[K_CHILD])
    c = child_of(nodes, keys, ids, v, text[base + nodes[v, DEPTH]])
    while c > 0 and nodes[c, DEPTH] <= d:
        v = c
        c = np.int32(0)
        if nodes[v, DEPTH] < d:
            c = child_of(nodes, keys, ids, v, text[base + nodes[v, DEPTH]])
    cursor[K_NODE] = v
    cursor[K_CHILD] = c


@kernel(forceinline=True)
def advance(head, text, nodes, leaves, keys, ids, cursor, token):
    """Append one token to the context. Amortised O(1) hash steps."""
    refresh(head, text, nodes, leaves, keys, ids, cursor)
    v, c, d = cursor[K_NODE], cursor[K_CHILD], np.int64(cursor[K_DEPTH])
    longest = head[H_DEPTH] - 1
    while True:
        if d < longest:
            if c == 0:
                child = child_of(nodes, keys, ids, v, token)
                if child != 0:
                    c = child
                    d += 1
                    if c > 0 and nodes[c, DEPTH] == d:
                        v = c
                        c = np.int32(0)
                    break
            elif text[pos_of(nodes, leaves, c) + d] == token:
                d += 1
                if c > 0 and nodes[c, DEPTH] == d:
                    v = c
                    c = np.int32(0)
                break
        if d == 0:
            break
        v, c, d = shorten(head, text, nodes, leaves, keys, ids, v, c, d)
    cursor[K_NODE], cursor[K_CHILD], cursor[K_DEPTH] = v, c, d
    if cursor[K_RUN] > 0 and text[cursor[K_COPY]] == token:
        cursor[K_COPY] += 1
        cursor[K_RUN] += 1
    elif d > 0:
        cursor[K_COPY] = (pos_of(nodes, leaves, c) if c != 0 else nodes[v, POS]) + d
        cursor[K_RUN] = d
    else:
        cursor[K_RUN] = 0
