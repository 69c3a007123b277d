"""Insertion of windows: McCreight's algorithm on a depth-capped, generalized suffix tree.

A window is the D tokens from a start position, or what is left of a closed sequence including its
``END``. Windows are inserted from left to right. Where the next one branches off is found from the
last one through suffix links (E. M. McCreight, "A space-economical suffix tree construction
algorithm", JACM 23(2), 1976), so that finding costs amortised O(1); counting costs one visit per
node on the window's path. An inserted window is complete, so leaves never grow and sequences may
be interleaved.

Suffix links assume that with a window all its suffixes are in the tree. The last window before
``OPEN`` breaks this until its text goes on, therefore a tree that holds other open text compares
what it would otherwise skip (``careful``), and falls back to the root where the comparison fails.
"""

from __future__ import annotations

import numpy as np

from suffixspec_index.kernels.jit import kernel
from suffixspec_index.kernels.layout import (
    C0,
    C1,
    C2,
    COUNT,
    DEPTH,
    END,
    H_DEPTH,
    H_HASH_CAP,
    H_HEAD_MATCH,
    H_HEAD_NODE,
    H_LEAF_CAP,
    H_N_HASH,
    H_N_LEAVES,
    H_N_NODES,
    H_N_TEXT,
    H_NEXT,
    H_NODE_CAP,
    H_PENDING,
    H_WINDOWS,
    INLINE,
    KIDS,
    L_COUNT,
    L_POS,
    LINK,
    NO_TOKEN,
    OPEN,
    PARENT,
    POS,
    ROOT,
    T0,
    T1,
    T2,
    child_of,
    count_of,
    hash_put,
    pos_of,
    view,
)


@kernel(inline="always")
def _swap(nodes, v, a):
    """Exchange the inline children at column ``a`` and the one before it."""
    child, token = nodes[v, a], nodes[v, a + 3]
    nodes[v, a], nodes[v, a + 3] = nodes[v, a - 1], nodes[v, a + 2]
    nodes[v, a - 1], nodes[v, a + 2] = child, token


@kernel(forceinline=True)
def _promote(head, nodes, leaves, keys, ids, v, x, token):
    """Restore the order of ``v``'s inline children after ``x`` (not the first) was counted."""
    count = count_of(nodes, leaves, x)
    at = C0
    if nodes[v, C1] == x:
        at = C1
    elif nodes[v, C2] == x:
        at = C2
    else:
        if count < count_of(nodes, leaves, nodes[v, C2]):
            return
        # The stale hash entry of x is overwritten should x ever leave the row again.
        hash_put(head, keys, ids, v, nodes[v, T2], nodes[v, C2])
        nodes[v, C2] = x
        nodes[v, T2] = token
        at = C2
    while at > C0 and count >= count_of(nodes, leaves, nodes[v, at - 1]):
        _swap(nodes, v, at)
        at -= 1


@kernel(forceinline=True)
def _bump(head, text, nodes, leaves, keys, ids, v, x, s):
    """Count window ``s`` in every node from ``v`` (parent of the counted ``x``) to the root."""
    while v != ROOT:
        nodes[v, COUNT] += 1
        nodes[v, POS] = s
        if nodes[v, C0] != x:
            _promote(head, nodes, leaves, keys, ids, v, x, text[s + nodes[v, DEPTH]])
        x = v
        v = nodes[v, PARENT]
    nodes[ROOT, COUNT] += 1
    head[H_WINDOWS] += 1


@kernel(forceinline=True)
def _add_child(head, nodes, keys, ids, v, token, child):
    """Give ``v`` a new child; the order of the row is restored by the following bump."""
    kids = nodes[v, KIDS]
    if kids < INLINE:
        nodes[v, C0 + kids] = child
        nodes[v, T0 + kids] = token
    else:
        hash_put(head, keys, ids, v, token, child)
    nodes[v, KIDS] = kids + 1


@kernel(inline="always")
def _replace_child(head, nodes, keys, ids, v, token, child):
    """Let ``v``'s edge by ``token`` lead to another child."""
    if nodes[v, T0] == token:
        nodes[v, C0] = child
    elif nodes[v, T1] == token:
        nodes[v, C1] = child
    elif nodes[v, T2] == token:
        nodes[v, C2] = child
    else:
        hash_put(head, keys, ids, v, token, child)


@kernel(inline="always")
def _new_leaf(head, leaves, s):
    """A leaf for window ``s``; returns its child id."""
    number = head[H_N_LEAVES]
    head[H_N_LEAVES] = number + 1
    leaves[number, L_POS] = s
    leaves[number, L_COUNT] = 1
    return np.int32(~number)


@kernel(forceinline=True)
def _split(head, text, nodes, leaves, keys, ids, v, c, s, h):
    """Break the edge from ``v`` to ``c`` at depth ``h``; returns the node made there."""
    p = np.int32(head[H_N_NODES])
    head[H_N_NODES] += 1
    nodes[p, POS] = s
    nodes[p, DEPTH] = h
    nodes[p, COUNT] = count_of(nodes, leaves, c)
    nodes[p, LINK] = ROOT if h == 1 else -1
    nodes[p, PARENT] = v
    nodes[p, KIDS] = 1
    nodes[p, C0] = c
    nodes[p, T0] = text[pos_of(nodes, leaves, c) + h]
    nodes[p, T1] = NO_TOKEN
    nodes[p, T2] = NO_TOKEN
    nodes[p, C1] = 0
    nodes[p, C2] = 0
    _replace_child(head, nodes, keys, ids, v, text[s + nodes[v, DEPTH]], p)
    if c > 0:
        nodes[c, PARENT] = p
    return p


@kernel(inline="always")
def has_room(head):
    """Whether one more window fits: a node, a leaf, and a hash entry for every node of a path."""
    return (
        head[H_N_NODES] < head[H_NODE_CAP]
        and head[H_N_LEAVES] < head[H_LEAF_CAP]
        and 4 * (head[H_N_HASH] + head[H_DEPTH] + 2) < 3 * head[H_HASH_CAP]
    )


@kernel(forceinline=True)
def _rescan(text, nodes, leaves, keys, ids, v, s, m, careful):
    """Go down from ``v`` to depth ``m`` of window ``s``, known to be in the tree.

    Returns ``(node, child, depth)``: the last node at or above the depth and the edge it lies on
    (0: it is the node itself). The depth is less than ``m`` only where the tree turned out not to
    hold what was promised.
    """
    d0 = nodes[v, DEPTH]
    d = d0
    c = np.int32(0)
    while d < m:
        child = child_of(nodes, keys, ids, v, text[s + d])
        if child == 0:
            break
        if child > 0 and nodes[child, DEPTH] <= m:
            v = child
            d = nodes[child, DEPTH]
        else:
            c = child
            d = m
    if careful and d > d0:
        base = nodes[v, POS]
        if c != 0:
            base = pos_of(nodes, leaves, c)
        for k in range(d0, d):
            if text[base + k] != text[s + k]:
                return np.int32(ROOT), np.int32(0), np.int64(0)
    return np.int32(v), np.int32(c), np.int64(d)


@kernel(forceinline=True)
def _scan(text, nodes, leaves, keys, ids, v, c, h, s, e):
    """Follow window ``s`` (ending at ``e``) from a place in the tree as far as it is known.

    Returns ``(node, child, depth)`` as ``_rescan`` does; ``child`` is 0 where the window leaves
    the tree at a node.
    """
    while True:
        if c == 0:
            c = child_of(nodes, keys, ids, v, text[s + h])
            if c == 0:
                return np.int32(v), np.int32(0), h
        base = pos_of(nodes, leaves, c)
        limit = e - s
        if c > 0 and nodes[c, DEPTH] < limit:
            limit = nodes[c, DEPTH]
        while h < limit and text[base + h] == text[s + h]:
            h += 1
        if h < limit or s + h == e:
            return np.int32(v), np.int32(c), h
        v = c
        c = np.int32(0)


@kernel
def insert_windows(table, row, stop, careful):
    """Insert windows from the tree's next start up to ``stop`` (exclusive), while there is room.

    Returns the next start: less than ``stop`` means that arrays must grow first. Resumes where the
    last call ended. Amortised O(nodes on the path) per window.
    """
    head, text, nodes, leaves, keys, ids = view(table, row)
    depth, n = head[H_DEPTH], head[H_N_TEXT]
    s = head[H_NEXT]
    v = np.int32(head[H_HEAD_NODE])
    m = head[H_HEAD_MATCH]
    pending = head[H_PENDING]
    while s < stop and has_room(head):
        e = min(s + depth, n)
        v, c, h = _rescan(text, nodes, leaves, keys, ids, v, s, m, careful)
        if pending != 0 and c == 0 and h == m:
            nodes[pending, LINK] = v
            pending = 0
        target = m
        v, c, h = _scan(text, nodes, leaves, keys, ids, v, c, h, s, e)
        up = v
        if s + h == e:
            leaves[~c, L_COUNT] += 1
            leaves[~c, L_POS] = s
            _bump(head, text, nodes, leaves, keys, ids, v, c, s)
            pending = 0
        else:
            made = np.int32(0)
            if c != 0:
                made = _split(head, text, nodes, leaves, keys, ids, v, c, s, h)
                if pending != 0 and h == target:
                    nodes[pending, LINK] = made
                v = made
            leaf = _new_leaf(head, leaves, s)
            _add_child(head, nodes, keys, ids, v, text[s + h], leaf)
            _bump(head, text, nodes, leaves, keys, ids, v, leaf, s)
            pending = made if h > 1 else np.int32(0)
        # the next window: drop the first token
        while up != ROOT and nodes[up, LINK] < 0:
            up = nodes[up, PARENT]
        v = nodes[up, LINK] if up != ROOT else np.int32(ROOT)
        m = max(h - 1, 0)
        s += 1
    head[H_NEXT] = s
    head[H_HEAD_NODE] = v
    head[H_HEAD_MATCH] = m
    head[H_PENDING] = pending
    return s


@kernel
def insert_text(table, row, tokens, end, careful):
    """Append a piece of text and insert its windows while there is room.

    Returns -1 where the text itself has no room (nothing was changed), else how many windows are
    still to be inserted with :func:`insert_windows`.
    """
    head, text, _, _, _, _ = view(table, row)
    at = head[H_N_TEXT]
    n = at + tokens.shape[0]
    if n + 2 + head[H_DEPTH] > text.shape[0]:
        return np.int64(-1)
    text[at:n] = tokens
    head[H_NEXT] = at
    head[H_HEAD_NODE] = 0
    head[H_HEAD_MATCH] = 0
    head[H_PENDING] = 0
    if end:
        text[n] = END
        stop = n
    else:
        text[n] = OPEN  # stays between this piece and whatever text comes next
        stop = n - head[H_DEPTH] + 1
    n += 1
    text[n] = OPEN
    head[H_N_TEXT] = n
    if stop <= at:
        return np.int64(0)
    return stop - insert_windows(table, row, stop, careful)


@kernel
def insert_sequences(table, row, tokens, offsets, first, positions, careful):
    """Append and insert closed sequences ``tokens[offsets[i]:offsets[i + 1]]`` from ``first`` on.

    ``positions`` gets where each starts in the text. Returns the first sequence whose windows are
    not all in (its text is: :func:`insert_windows` goes on), or how many sequences there are. The
    text must have room for all of them.
    """
    for i in range(first, offsets.shape[0] - 1):
        positions[i] = table[row, H_N_TEXT]
        if insert_text(table, row, tokens[offsets[i] : offsets[i + 1]], True, careful) != 0:
            return i
    return offsets.shape[0] - 1
