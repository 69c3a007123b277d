"""How a tree lies in memory, and how a kernel gets at it.

A tree is one row of an int64 *header table*; the row holds the addresses, capacities and fill
counts of the tree's five arrays. Kernels receive the table and a row number, so that one call can
work on many trees (the namespace's global tree and every session's own) without unboxing five
arrays per tree. The owner of the table keeps the arrays alive and holds the lock while a kernel
runs.

Text: int32 token ids. ``END`` closes a sequence and is a symbol of its own in the tree (so the
probability that a sequence stops is counted like any other). ``OPEN`` stands after text that is
still growing, and stays after a piece of a sequence that went on later: the window before it has
been inserted, the next one perhaps not.

Internal node: one row of twelve int32 (48 bytes). The three most frequent children stand in the row
itself, token and id, ordered by count (ties: the more recently seen first); the others are in a
hash keyed by (node, token). Most nodes have at most three children, so most descents touch no hash.
A leaf is two int32 (8 bytes): its text runs on from ``POS``, so it needs no length.

Child ids: positive = internal node, negative = bitwise complement of a leaf number, 0 = none (the
root is nobody's child).
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numba.core import types
from numba.extending import intrinsic

from suffixspec_index.kernels.jit import kernel

# --- columns of the header table -----------------------------------------------------------------
H_TEXT, H_NODES, H_LEAVES, H_KEYS, H_IDS = 0, 1, 2, 3, 4  # addresses
H_TEXT_CAP, H_NODE_CAP, H_LEAF_CAP, H_HASH_CAP = 5, 6, 7, 8
H_N_TEXT, H_N_NODES, H_N_LEAVES, H_N_HASH = 9, 10, 11, 12
H_DEPTH = 13  # window length D
H_WINDOWS = 14  # windows inserted: the root's count
H_NEXT = 15  # start of the first window that is not yet inserted (growing text only)
H_HEAD_NODE, H_HEAD_MATCH = 16, 17  # insertion resumes here: see kernels/insert.py
H_PENDING = 18  # node whose suffix link the next window will set, 0 for none
HEADER = 20

# --- columns of an internal node -----------------------------------------------------------------
POS, DEPTH, COUNT, LINK, PARENT, KIDS = 0, 1, 2, 3, 4, 5
C0, C1, C2 = 6, 7, 8
T0, T1, T2 = 9, 10, 11
NODE = 12
INLINE = 3

# --- columns of a leaf ---------------------------------------------------------------------------
L_POS, L_COUNT = 0, 1

carray = nb.carray  # type: ignore[attr-defined]  # numba's annotations forget it

ROOT = 0
END = -1
OPEN = -2
NO_TOKEN = -3  # an empty inline slot

EMPTY_KEY = -1

# A session's windows are inserted in bursts: the first one fetches the nodes near the root into the
# cache, the others find them there. What waits is found by scanning the tail.
BURST = 16


def _pointer_to(element):
    """An intrinsic that reinterprets an integer as a pointer to ``element``."""

    @intrinsic
    def pointer(typingctx, address):
        def codegen(context, builder, signature, args):
            return builder.inttoptr(args[0], context.get_value_type(types.CPointer(element)))

        return types.CPointer(element)(types.int64), codegen

    return pointer


pointer_i32 = _pointer_to(types.int32)
pointer_i64 = _pointer_to(types.int64)
pointer_f32 = _pointer_to(types.float32)
pointer_f64 = _pointer_to(types.float64)
pointer_u8 = _pointer_to(types.uint8)


@kernel(inline="always")
def view(table, row):
    """The tree of a row: ``(header, text, nodes, leaves, keys, ids)`` as arrays without a copy."""
    head = table[row]
    text = carray(pointer_i32(head[H_TEXT]), (head[H_TEXT_CAP],))
    nodes = carray(pointer_i32(head[H_NODES]), (head[H_NODE_CAP], NODE))
    leaves = carray(pointer_i32(head[H_LEAVES]), (head[H_LEAF_CAP], 2))
    keys = carray(pointer_i64(head[H_KEYS]), (head[H_HASH_CAP],))
    ids = carray(pointer_i32(head[H_IDS]), (head[H_HASH_CAP],))
    return head, text, nodes, leaves, keys, ids


@kernel(inline="always")
def slot_of(key, capacity):
    """Home slot of a key: Fibonacci hashing, then range reduction by a high multiply, so that
    the table need not be a power of two (Lemire, "Fast random integer generation", 2019)."""
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    return np.int64(((mixed >> np.uint64(32)) * np.uint64(capacity)) >> np.uint64(32))


@kernel(forceinline=True)
def hash_get(keys, ids, node, token):
    """The child of ``node`` by ``token`` among the hashed ones, 0 for none. Expected O(1)."""
    capacity = keys.shape[0]
    key = (np.int64(node) << 32) | np.int64(np.uint32(token))
    slot = slot_of(key, capacity)
    while True:
        found = keys[slot]
        if found == key:
            return ids[slot]
        if found == EMPTY_KEY:
            return np.int32(0)
        slot += 1
        if slot == capacity:
            slot = 0


@kernel
def hash_put(head, keys, ids, node, token, child):
    """Insert or overwrite. The caller has made room. Expected O(1)."""
    capacity = keys.shape[0]
    key = (np.int64(node) << 32) | np.int64(np.uint32(token))
    slot = slot_of(key, capacity)
    while keys[slot] != key and keys[slot] != EMPTY_KEY:
        slot += 1
        if slot == capacity:
            slot = 0
    if keys[slot] == EMPTY_KEY:
        keys[slot] = key
        head[H_N_HASH] += 1
    ids[slot] = child


@kernel
def rehash(old_keys, old_ids, keys, ids):
    """Move every entry into larger, empty arrays. O(capacity)."""
    capacity = keys.shape[0]
    for i in range(old_keys.shape[0]):
        key = old_keys[i]
        if key != EMPTY_KEY:
            slot = slot_of(key, capacity)
            while keys[slot] != EMPTY_KEY:
                slot += 1
                if slot == capacity:
                    slot = 0
            keys[slot] = key
            ids[slot] = old_ids[i]


@kernel(inline="always")
def child_of(nodes, keys, ids, node, token):
    """The child of ``node`` whose edge starts with ``token``, 0 for none."""
    if nodes[node, T0] == token:
        return nodes[node, C0]
    if nodes[node, T1] == token:
        return nodes[node, C1]
    if nodes[node, T2] == token:
        return nodes[node, C2]
    if nodes[node, KIDS] > INLINE:
        return hash_get(keys, ids, node, token)
    return np.int32(0)


@kernel(inline="always")
def pos_of(nodes, leaves, child):
    """Most recent text position of a child's string."""
    if child > 0:
        return nodes[child, POS]
    return leaves[~child, L_POS]


@kernel(inline="always")
def count_of(nodes, leaves, child):
    """Windows through a child."""
    if child > 0:
        return nodes[child, COUNT]
    return leaves[~child, L_COUNT]
