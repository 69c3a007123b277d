"""The invariants of a tree, verified node by node. O(text touched); meant for tests and doubt."""

from __future__ import annotations

import numpy as np

from suffixspec_index.kernels.jit import kernel
from suffixspec_index.kernels.layout import (
    C0,
    COUNT,
    DEPTH,
    EMPTY_KEY,
    H_DEPTH,
    H_N_HASH,
    H_N_LEAVES,
    H_N_NODES,
    H_N_TEXT,
    H_WINDOWS,
    INLINE,
    KIDS,
    L_COUNT,
    L_POS,
    LINK,
    PARENT,
    POS,
    ROOT,
    T0,
    count_of,
    pos_of,
    view,
)

# what can be wrong; the texts are in tree.py
OK, BAD_FILL, BAD_CHILD, BAD_PARENT, BAD_EDGE, BAD_TEXT, BAD_COUNT, BAD_ORDER, BAD_LINK = range(9)
BAD_KIDS, BAD_REACH, BAD_HASH = 9, 10, 11


@kernel
def _check_edge(tree, v, child, token, sums, kids, reached):
    """One parent-child edge; adds to the parent's sum and marks the child as reached."""
    head, text, nodes, leaves, _, _ = tree
    if child == 0 or child >= head[H_N_NODES] or ~child >= head[H_N_LEAVES]:
        return BAD_CHILD
    if child > 0:
        if nodes[child, PARENT] != v:
            return BAD_PARENT
        if nodes[child, DEPTH] <= nodes[v, DEPTH]:
            return BAD_CHILD
    else:
        if reached[~child]:
            return BAD_REACH
        reached[~child] = True
    here, above = pos_of(nodes, leaves, child), nodes[v, POS]
    depth = nodes[v, DEPTH]
    if here < 0 or here + depth >= head[H_N_TEXT]:
        return BAD_TEXT
    if text[here + depth] != token:
        return BAD_EDGE
    for k in range(depth):
        if text[here + k] != text[above + k]:
            return BAD_TEXT
    sums[v] += count_of(nodes, leaves, child)
    kids[v] += 1
    return OK


@kernel
def _is_inline(nodes, v, token):
    """Whether an edge stands in the node's row."""
    return nodes[v, T0] == token or nodes[v, T0 + 1] == token or nodes[v, T0 + 2] == token


@kernel
def _check_inline(tree, sums, kids, reached):
    """The children that stand in the nodes' rows, and their order."""
    head, _, nodes, leaves, _, _ = tree
    for v in range(head[H_N_NODES]):
        for q in range(min(nodes[v, KIDS], INLINE)):
            code = _check_edge(tree, v, nodes[v, C0 + q], nodes[v, T0 + q], sums, kids, reached)
            if code != OK:
                return code, v
            if (
                v != ROOT
                and q > 0
                and count_of(nodes, leaves, nodes[v, C0 + q])
                > count_of(nodes, leaves, nodes[v, C0 + q - 1])
            ):
                return BAD_ORDER, v
    return OK, 0


@kernel
def _check_hashed(tree, sums, kids, reached):
    """The children in the hash. An entry of a token that stands inline is stale, and allowed."""
    head, _, nodes, leaves, keys, ids = tree
    filled = 0
    for slot in range(keys.shape[0]):
        if keys[slot] == EMPTY_KEY:
            continue
        filled += 1
        v = keys[slot] >> 32
        token = np.int32(np.uint32(keys[slot] & 0xFFFFFFFF))
        if v < 0 or v >= head[H_N_NODES]:
            return BAD_HASH, slot
        if _is_inline(nodes, v, token):
            continue
        code = _check_edge(tree, v, ids[slot], token, sums, kids, reached)
        if code != OK:
            return code, v
        if v != ROOT and count_of(nodes, leaves, ids[slot]) > count_of(
            nodes, leaves, nodes[v, C0 + INLINE - 1]
        ):
            return BAD_ORDER, v
    if filled != head[H_N_HASH]:
        return BAD_HASH, filled
    return OK, 0


@kernel
def _check_nodes(tree, sums, kids):
    """Counts, numbers of children and suffix links of every node."""
    head, text, nodes, _, _, _ = tree
    for v in range(head[H_N_NODES]):
        if sums[v] != nodes[v, COUNT]:
            return BAD_COUNT, v
        if kids[v] != nodes[v, KIDS] or (v != ROOT and kids[v] < 2):
            return BAD_KIDS, v
        link = nodes[v, LINK]
        if v == ROOT or link < 0:
            continue
        if link >= head[H_N_NODES] or nodes[link, DEPTH] != nodes[v, DEPTH] - 1:
            return BAD_LINK, v
        for k in range(nodes[link, DEPTH]):
            if text[nodes[link, POS] + k] != text[nodes[v, POS] + 1 + k]:
                return BAD_LINK, v
    return OK, 0


@kernel
def check_tree(table, row):
    """``(code, place)``: ``OK``, or the first broken invariant and the node or slot it is at."""
    tree = view(table, row)
    head, _, nodes, leaves, _, _ = tree
    n_nodes, n_leaves = head[H_N_NODES], head[H_N_LEAVES]
    if n_nodes > nodes.shape[0] or n_leaves > leaves.shape[0] or head[H_DEPTH] < 1:
        return BAD_FILL, 0
    sums = np.zeros(n_nodes, np.int64)
    kids = np.zeros(n_nodes, np.int64)
    reached = np.zeros(n_leaves, np.bool_)
    code, place = _check_inline(tree, sums, kids, reached)
    if code == OK:
        code, place = _check_hashed(tree, sums, kids, reached)
    if code == OK:
        code, place = _check_nodes(tree, sums, kids)
    if code != OK:
        return code, place
    total = 0
    for leaf in range(n_leaves):
        if not reached[leaf]:
            return BAD_REACH, leaf
        if leaves[leaf, L_COUNT] < 1 or leaves[leaf, L_POS] >= head[H_N_TEXT]:
            return BAD_COUNT, leaf
        total += leaves[leaf, L_COUNT]
    if total != head[H_WINDOWS] or nodes[ROOT, COUNT] != total:
        return BAD_COUNT, ROOT
    return OK, 0


@kernel
def missing_links(table, row):
    """How many nodes have no suffix link (possible only where sequences were still open)."""
    head, _, nodes, _, _, _ = view(table, row)
    missing = 0
    for v in range(1, head[H_N_NODES]):
        missing += nodes[v, LINK] < 0
    return missing
