"""Evidence: what the memories say about the next token, gathered from several match lengths.

A *place* is where a string stands in a memory: ``(node, child, depth, length)`` as in a cursor,
with ``length`` the true match length (a match can be longer than the tree is deep). A draft starts
from up to ``SLOTS`` places:

====  =====================================================================================
slot  place
====  =====================================================================================
0-1   the session's own tree: the longest match of the context, and the next shorter one
2-3   the global tree, likewise
4     the session's last tokens, which its tree does not hold yet: text position and length
====  =====================================================================================

A copy of the last tokens that reaches the end of the text goes on with what it has copied, as in
Lempel-Ziv coding (J. Ziv, A. Lempel, "A universal algorithm for sequential data compression", IEEE
Transactions on Information Theory 23, 1977): so a rule of dashes is drafted at full length.

Each place votes for at most three tokens. A vote is filed under a *cell*: slot, match length, how
often the place was seen, the share this token had, and whether it was what followed last time. How
often votes of a cell come true is learned (``mixture.py``); here they are only filed. A place that
knows continuations but not this token votes against it, which is filed as share 0.

Two more slots file a candidate under a hash of itself and the last one or two tokens: they learn
which continuations were proposed in vain before.
"""

from __future__ import annotations

import numpy as np

from suffixspec_index.kernels.cursor import (
    K_CHILD,
    K_DEPTH,
    K_NODE,
    K_RUN,
    refresh,
    shorten,
)
from suffixspec_index.kernels.jit import kernel
from suffixspec_index.kernels.layout import (
    C0,
    COUNT,
    DEPTH,
    END,
    H_DEPTH,
    H_N_TEXT,
    H_NEXT,
    L_COUNT,
    L_POS,
    POS,
    T0,
    child_of,
    count_of,
)

LEVELS = 2  # match lengths per memory; a third changed nothing
TAIL = 2 * LEVELS
SLOTS = TAIL + 1
HASHED = 2
FEATURES = SLOTS + HASHED

P_NODE, P_CHILD, P_DEPTH, P_LENGTH = 0, 1, 2, 3
P_BASE, P_COUNT, P_END = 4, 5, 6  # of the edge: its text, its count, the depth it ends at
P_NEXT, P_TOKEN, P_PARENT = 1, 2, 4  # of the tail: its vote; the draft node's token and parent
PLACE = 8
# As a node: the shorter match was seen as often as the longer one of the slot before. So it ends at
# the same occurrences, and all that follows it follows that one too: it need not be looked at.
SAME = -1
_NO_END = 1 << 30  # a leaf's edge goes on as long as the text

LENGTHS, COUNTS, SHARES = 11, 6, 14
CELLS_PER_SLOT = LENGTHS * COUNTS * SHARES
HASH_BITS = 14
CELLS = SLOTS * CELLS_PER_SLOT + HASHED * (1 << HASH_BITS)

MAX_CANDIDATES = 8
SESSION_SIDE, WORLD_SIDE = 0, 1
UNSEEN = -2
MAX_TAIL_MATCH = 32


@kernel(inline="always")
def length_bucket(length):
    """0-10: 1, 2, 3, 4, 5-6, 7-8, 9-12, 13-16, 17-24, 25-64, longer."""
    if length <= 4:
        return max(length, 1) - 1
    if length <= 8:
        return 4 if length <= 6 else 5
    if length <= 16:
        return 6 if length <= 12 else 7
    if length <= 24:
        return 8
    return 9 if length <= 64 else 10


@kernel(inline="always")
def _count_bucket(count):
    """0-5: 1, 2, 3-4, 5-8, 9-32, more."""
    if count <= 2:
        return count - 1
    if count <= 8:
        return 2 if count <= 4 else 3
    return 4 if count <= 32 else 5


@kernel(inline="always")
def _share_bucket(count, total):
    """1-6: under 10, 25, 50, 75, 95 %, more. (0 is "not seen here".)"""
    share = np.float32(count) / np.float32(total)
    if share < 0.25:
        return 1 if share < 0.1 else 2
    if share < 0.75:
        return 3 if share < 0.5 else 4
    return 5 if share < 0.95 else 6


@kernel(forceinline=True)
def levels(tree, cursor, places, first):
    """Fill the places of one memory from a request's cursor; returns the longest match length."""
    head, text, nodes, leaves, keys, ids = tree
    for j in range(LEVELS):
        places[0, first + j, P_LENGTH] = 0
    refresh(head, text, nodes, leaves, keys, ids, cursor)
    v, c, d = cursor[K_NODE], cursor[K_CHILD], np.int64(cursor[K_DEPTH])
    if d == 0:
        return 0
    longest = d
    if d == head[H_DEPTH] - 1:
        longest = max(d, np.int64(cursor[K_RUN]))
    _put(nodes, leaves, places, 0, first, v, c, d, longest)
    seen = count_of(nodes, leaves, c) if c != 0 else nodes[v, COUNT]
    for level in range(1, LEVELS):
        v, c, d = shorten(head, text, nodes, leaves, keys, ids, v, c, d)
        if d == 0:
            break
        count = count_of(nodes, leaves, c) if c != 0 else nodes[v, COUNT]
        if count == seen:
            places[0, first + level, P_NODE] = SAME
            places[0, first + level, P_LENGTH] = d
        else:
            _put(nodes, leaves, places, 0, first + level, v, c, d, d)
        seen = count
    return longest


@kernel(inline="always")
def _put(nodes, leaves, places, node, slot, v, c, d, length):
    """Write a place, with what is needed of the edge it lies on."""
    places[node, slot, P_NODE] = v
    places[node, slot, P_CHILD] = c
    places[node, slot, P_DEPTH] = d
    places[node, slot, P_LENGTH] = length
    if c > 0:
        places[node, slot, P_BASE] = nodes[c, POS]
        places[node, slot, P_COUNT] = nodes[c, COUNT]
        places[node, slot, P_END] = nodes[c, DEPTH]
    elif c < 0:
        places[node, slot, P_BASE] = leaves[~c, L_POS]
        places[node, slot, P_COUNT] = leaves[~c, L_COUNT]
        places[node, slot, P_END] = _NO_END


@kernel(forceinline=True)
def tail_place(head, text, places):
    """Fill the tail's place: the longest (then latest) repeat of the context's end that the tree
    does not hold yet. Returns its length. O(D) plus the matched lengths, which are capped."""
    places[0, TAIL, P_LENGTH] = 0
    n = head[H_N_TEXT]
    best = 0
    if n < 2:
        return 0
    last = text[n - 1]
    for q in range(n - 1, max(0, head[H_NEXT]), -1):
        if text[q - 1] == last:
            m = 1
            while (
                m < MAX_TAIL_MATCH
                and q - 1 - m >= 0
                and text[q - 1 - m] == text[n - 1 - m]
                and text[q - 1 - m] >= 0
            ):
                m += 1
            if m > best:
                best = m
                places[0, TAIL, P_NODE] = q
                if m == MAX_TAIL_MATCH:
                    break
    places[0, TAIL, P_LENGTH] = best
    if best > 0:
        places[0, TAIL, P_NEXT] = text[places[0, TAIL, P_NODE]]
    return best


@kernel(forceinline=True)
def _follow_tail(session, places, node, out, token):
    """Move the tail's place by one token to draft node ``out``. O(1) within the text; beyond its
    end O(tokens copied), to find what was drafted there."""
    places[out, TAIL, P_TOKEN] = token
    places[out, TAIL, P_PARENT] = node
    places[out, TAIL, P_LENGTH] = 0
    length = places[node, TAIL, P_LENGTH]
    if length <= 0 or places[node, TAIL, P_NEXT] != token:
        return
    position = places[node, TAIL, P_NODE] + 1
    n = session[0][H_N_TEXT]
    if position < n:
        following = session[1][position]
    else:
        origin = out
        for _ in range(n - places[0, TAIL, P_NODE] - 1):
            origin = places[origin, TAIL, P_PARENT]
        following = places[origin, TAIL, P_TOKEN]
    places[out, TAIL, P_NODE] = position
    places[out, TAIL, P_LENGTH] = length + 1
    places[out, TAIL, P_NEXT] = following


@kernel(forceinline=True)
def _collect(tree, places, node, slot, tokens, cells):
    """The votes of one tree place: up to three tokens with their cells, and in ``cells[slot, 3]``
    the cell of every other token. Returns how many."""
    _, text, nodes, leaves, _, _ = tree
    v, c, d = (
        places[node, slot, P_NODE],
        places[node, slot, P_CHILD],
        places[node, slot, P_DEPTH],
    )
    base = (slot * LENGTHS + length_bucket(places[node, slot, P_LENGTH])) * COUNTS
    if c != 0:
        base = (base + _count_bucket(places[node, slot, P_COUNT])) * SHARES
        tokens[slot, 0] = text[places[node, slot, P_BASE] + d]
        cells[slot, 0] = base + SHARES - 1
        n = 1
    else:
        n = 0
        total = nodes[v, COUNT]
        base = (base + _count_bucket(total)) * SHARES
        latest = text[nodes[v, POS] + d]
        for q in range(3):
            token = nodes[v, T0 + q]
            if token < END:
                break
            tokens[slot, q] = token
            share = _share_bucket(count_of(nodes, leaves, nodes[v, C0 + q]), total)
            cells[slot, q] = base + 2 * share + (1 if token == latest else 0)
            n = q + 1
    cells[slot, 3] = base
    return n


@kernel(forceinline=True)
def _repeat(places, node, slot, cast, tokens, cells):
    """The votes of a place that is the ``SAME`` as the one before: its ``cast`` votes, filed under
    this slot and length. Returns how many."""
    before, here = places[node, slot - 1, P_LENGTH], places[node, slot, P_LENGTH]
    shift = (LENGTHS + length_bucket(here) - length_bucket(before)) * COUNTS * SHARES
    for q in range(cast):
        tokens[slot, q] = tokens[slot - 1, q]
        cells[slot, q] = cells[slot - 1, q] + shift
    cells[slot, 3] = cells[slot - 1, 3] + shift
    return cast


@kernel(inline="always")
def _mixed(a, b):
    """Hash a token into a running hash."""
    h = (a ^ np.uint64(np.uint32(b))) * np.uint64(0x9E3779B97F4A7C15)
    return h ^ (h >> np.uint64(32))


@kernel(forceinline=True)
def gather(session, world, places, node, last, blocked, scratch):
    """Candidates for the next token after a draft node, each with its cell in every slot.

    Args:
        session, world: the two trees as ``layout.view`` gives them.
        places: ``(nodes, SLOTS, PLACE)``; node: the draft node.
        last: its last two tokens, the latest first.
        blocked: ``(vocabulary,)`` uint8, tokens that may not be drafted; may be empty.
        scratch: ``tokens (MAX_CANDIDATES,)``, ``cells (MAX_CANDIDATES, FEATURES)`` (-1: none) and
            ``backing (MAX_CANDIDATES, 2)`` (the longest match that proposes it, by side) are
            written; ``votes (SLOTS, 3)`` and ``vote_cells (SLOTS, 4)`` are worked in.

    Returns:
        The number of candidates.
    """
    tokens, cells, backing, votes, vote_cells = scratch
    n = 0
    cast = 0
    for k in range(SLOTS):
        length = places[node, k, P_LENGTH]
        if length <= 0:
            continue
        side = SESSION_SIDE
        if k < TAIL and places[node, k, P_NODE] == SAME:
            cast = _repeat(places, node, k, cast, votes, vote_cells)
            side = SESSION_SIDE if k < LEVELS else WORLD_SIDE
        elif k < LEVELS:
            cast = _collect(session, places, node, k, votes, vote_cells)
        elif k < TAIL:
            cast = _collect(world, places, node, k, votes, vote_cells)
            side = WORLD_SIDE
        else:
            base = (k * LENGTHS + length_bucket(length)) * COUNTS * SHARES
            votes[k, 0] = places[node, k, P_NEXT]
            vote_cells[k, 0] = base + SHARES - 1
            vote_cells[k, 3] = base
            cast = 1
        for q in range(cast):
            token = votes[k, q]
            if token < 0 or (token < blocked.shape[0] and blocked[token] != 0):
                continue
            i = 0
            while i < n and tokens[i] != token:
                i += 1
            if i == n:
                if n == MAX_CANDIDATES:
                    continue
                tokens[n] = token
                backing[n, SESSION_SIDE] = 0
                backing[n, WORLD_SIDE] = 0
                for slot in range(SLOTS):
                    cells[n, slot] = UNSEEN
                n += 1
            cells[i, k] = vote_cells[k, q]
            backing[i, side] = max(backing[i, side], length)
    for i in range(n):
        token = tokens[i]
        for k in range(SLOTS):
            if cells[i, k] == UNSEEN:
                cells[i, k] = vote_cells[k, 3] if places[node, k, P_LENGTH] > 0 else -1
        h = _mixed(np.uint64(0x5851F42D4C957F2D), token)
        for j in range(HASHED):
            h = _mixed(h, last[j])
            cells[i, SLOTS + j] = (
                SLOTS * CELLS_PER_SLOT
                + (j << HASH_BITS)
                + np.int64((h * np.uint64(0xD6E8FEB86659FD93)) >> np.uint64(64 - HASH_BITS))
            )
    return n


@kernel(forceinline=True)
def _step(tree, places, node, out, k, token):
    """Move a tree place by one token to draft node ``out``, if the token follows it."""
    _, text, nodes, leaves, keys, ids = tree
    v, c, d = places[node, k, P_NODE], places[node, k, P_CHILD], places[node, k, P_DEPTH]
    length = places[node, k, P_LENGTH] + 1
    if c != 0:
        if text[places[node, k, P_BASE] + d] != token:
            return
        places[out, k, P_BASE] = places[node, k, P_BASE]
        places[out, k, P_COUNT] = places[node, k, P_COUNT]
        places[out, k, P_END] = places[node, k, P_END]
        if places[node, k, P_END] == d + 1:
            v = c
            c = np.int32(0)
        places[out, k, P_NODE] = v
        places[out, k, P_CHILD] = c
        places[out, k, P_DEPTH] = d + 1
        places[out, k, P_LENGTH] = length
        return
    c = child_of(nodes, keys, ids, v, token)
    if c != 0:
        if c > 0 and nodes[c, DEPTH] == d + 1:
            v = c
            c = np.int32(0)
        _put(nodes, leaves, places, out, k, v, c, d + 1, length)


@kernel(forceinline=True)
def follow(session, world, places, node, out, token, beyond):
    """Fill the places of draft node ``out``, the child of ``node`` by ``token``. With ``beyond`` a
    place in a leaf goes on in the text when the tree's depth is passed."""
    _follow_tail(session, places, node, out, token)
    for k in range(TAIL):
        places[out, k, P_LENGTH] = 0
        length = places[node, k, P_LENGTH]
        if length <= 0:
            continue
        if places[node, k, P_NODE] == SAME:
            if places[out, k - 1, P_LENGTH] > 0:
                places[out, k, P_NODE] = SAME
                places[out, k, P_LENGTH] = length + 1
        elif k < LEVELS:
            if beyond or places[node, k, P_DEPTH] + 1 < session[0][H_DEPTH]:
                _step(session, places, node, out, k, token)
        elif beyond or places[node, k, P_DEPTH] + 1 < world[0][H_DEPTH]:
            _step(world, places, node, out, k, token)
