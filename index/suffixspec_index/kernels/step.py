"""What happens to a batch of requests in a step: drafting before it, advancing after it.

Kernels of this file are the only ones that Python calls per step. Their many arrays come as one
int64 *context* of addresses and lengths, so that a call costs a microsecond and not ten.
"""

from __future__ import annotations

import numpy as np

from suffixspec_index.kernels.cursor import CURSOR, K_DEPTH, advance
from suffixspec_index.kernels.draft import (
    MAX_NODES,
    R_DRAFTED,
    R_EXPANDED,
    R_LEFT,
    R_OWN,
    R_PARENTS,
    R_SESSION,
    R_SHARED,
    R_TOKENS,
    R_VOTES,
    R_WORLD,
    REQUEST,
    S_COST,
    S_DYNAMIC,
    S_GAINED,
    S_MEMORY,
    S_RATE,
    S_SHARE,
    S_SPENT,
    S_WORLD,
    SCRATCH,
    SETTINGS,
    V_CELLS,
    V_CHANCES,
    V_COUNT,
    V_LAST,
    V_SET,
    V_TOKENS,
    VOTES,
    draft,
    scratch_views,
)
from suffixspec_index.kernels.evidence import CELLS, FEATURES, MAX_CANDIDATES
from suffixspec_index.kernels.insert import has_room, insert_windows
from suffixspec_index.kernels.jit import kernel
from suffixspec_index.kernels.layout import (
    BURST,
    H_DEPTH,
    H_LEAF_CAP,
    H_N_LEAVES,
    H_N_NODES,
    H_N_TEXT,
    H_NEXT,
    H_NODE_CAP,
    H_TEXT_CAP,
    HEADER,
    OPEN,
    carray,
    pointer_f32,
    pointer_f64,
    pointer_i32,
    pointer_i64,
    pointer_u8,
    view,
)
from suffixspec_index.kernels.mixture import WEIGHT_SETS, WEIGHTS, learn

# --- the context: addresses, and the lengths that are not constants ------------------------------
X_TABLE, X_TREES, X_REQUESTS, X_ROWS, X_CELLS, X_WEIGHTS, X_SETTINGS = 0, 1, 2, 3, 4, 5, 6
X_BLOCKED, X_N_BLOCKED, X_ODDS = 7, 8, 9
CONTEXT = 10
FADE = 0.998  # per step, of what the going rate is taken from
WORLD = 0  # the global tree's row

# what advancing a batch answers where no tree must grow first
DONE, SHARE_DUE = -1, -2


@kernel(inline="always")
def _model(context):
    """The learned tables: cells, their log-odds, weights."""
    return (
        carray(pointer_f32(context[X_CELLS]), (CELLS, 2)),
        carray(pointer_f32(context[X_ODDS]), (CELLS,)),
        carray(pointer_f32(context[X_WEIGHTS]), (WEIGHT_SETS, WEIGHTS)),
    )


@kernel
def _draft_row(context, row, limit, floor, at, tokens, parents, probs, sources, work):
    """Draft for the request of one row."""
    table = carray(pointer_i64(context[X_TABLE]), (context[X_TREES], HEADER))
    requests = carray(pointer_i32(context[X_REQUESTS]), (context[X_ROWS], REQUEST))
    settings = carray(pointer_f64(context[X_SETTINGS]), (SETTINGS,))
    blocked = carray(pointer_u8(context[X_BLOCKED]), (context[X_N_BLOCKED],))
    _, odds, weights = _model(context)
    request = requests[row]
    session = view(table, request[R_SESSION])
    world = view(table, WORLD)
    most = min(limit, MAX_NODES)
    out = (at, tokens, parents, probs, sources, scratch_views(work))
    return draft(session, world, request, most, floor, settings, blocked, odds, weights, out)


@kernel
def propose_batch(context, rows, limits, floor, offsets, tokens, parents, probs, sources, matches):
    """Draft for requests ``rows`` with at most ``limits`` nodes each, into ragged arrays; ``floor``
    as for :func:`draft`.

    The ragged arrays must hold the sum of the limits (each capped at ``MAX_NODES``); ``offsets`` is
    ``(rows + 1,)``. Returns the number of nodes.
    """
    work = np.empty(SCRATCH, np.int32)
    address = work.ctypes.data
    at = 0
    offsets[0] = 0
    for r in range(rows.shape[0]):
        n, matches[r] = _draft_row(
            context, rows[r], limits[r], floor, at, tokens, parents, probs, sources, address
        )
        at += n
        offsets[r + 1] = at
    return at + 0 * work[0]  # the scratch must live until here


@kernel
def propose_one(context, row, limit, floor, tokens, parents, probs, sources):
    """Draft for one request into arrays of ``limit``; returns ``(nodes, match length)``."""
    work = np.empty(SCRATCH, np.int32)
    work[0] = 0
    n, match = _draft_row(
        context, row, limit, floor, 0, tokens, parents, probs, sources, work.ctypes.data
    )
    return n + 0 * work[0], match


@kernel(forceinline=True)
def _learn_from(request, tokens, first, last, model, rate, memory):
    """Train on the draft nodes that the verified tokens went through."""
    cell_table, odds, weights = model
    drafted, expanded = request[R_DRAFTED], request[R_EXPANDED]
    node = 0
    for i in range(first, last):
        if node >= expanded:
            break
        at = R_VOTES + node * VOTES
        n = request[at + V_COUNT]
        if n > 0:
            cells = request[at + V_CELLS : at + VOTES].reshape((MAX_CANDIDATES, FEATURES))
            learn(
                cell_table,
                odds,
                weights,
                request[at + V_SET],
                request[at + V_LAST],
                request[at + V_TOKENS : at + V_CHANCES],
                request[at + V_CHANCES : at + V_CELLS],
                cells,
                n,
                tokens[i],
                rate,
                memory,
            )
        child = 0
        for j in range(node, drafted):
            if request[R_PARENTS + j] + 1 == node and request[R_TOKENS + j] == tokens[i]:
                child = j + 1
                break
        if child == 0:
            break
        node = child
    request[R_DRAFTED] = 0
    request[R_EXPANDED] = 0


@kernel
def advance_batch(context, rows, tokens, offsets):
    """Give requests ``rows`` the tokens they gained.

    Returns ``DONE``, or ``SHARE_DUE`` where a request has so much output that is not in the global
    tree that it should share it; or the first row whose session tree must grow before anything can
    be done, and then nothing was changed.
    """
    table = carray(pointer_i64(context[X_TABLE]), (context[X_TREES], HEADER))
    requests = carray(pointer_i32(context[X_REQUESTS]), (context[X_ROWS], REQUEST))
    settings = carray(pointer_f64(context[X_SETTINGS]), (SETTINGS,))
    for r in range(rows.shape[0]):
        head = table[requests[rows[r], R_SESSION]]
        gained = offsets[r + 1] - offsets[r]
        if (
            head[H_N_TEXT] + gained + head[H_DEPTH] + 2 > head[H_TEXT_CAP]
            or head[H_N_NODES] + gained + BURST > head[H_NODE_CAP]
            or head[H_N_LEAVES] + gained + BURST > head[H_LEAF_CAP]
            or not has_room(head)
        ):
            return r
    model = _model(context)
    rate, memory = np.float32(settings[S_RATE]), np.float32(settings[S_MEMORY])
    share = settings[S_SHARE]
    outcome = DONE
    world = view(table, WORLD)
    for r in range(rows.shape[0]):
        request = requests[rows[r]]
        row = request[R_SESSION]
        if settings[S_DYNAMIC] > 0:
            settings[S_GAINED] = settings[S_GAINED] * FADE + (offsets[r + 1] - offsets[r])
            settings[S_SPENT] = settings[S_SPENT] * FADE + settings[S_COST + request[R_DRAFTED]]
        if rate > 0:
            _learn_from(request, tokens, offsets[r], offsets[r + 1], model, rate, memory)
        else:
            request[R_DRAFTED] = 0
            request[R_EXPANDED] = 0
        session = view(table, row)
        head, text = session[0], session[1]
        own = request[R_OWN : R_OWN + CURSOR]
        other = request[R_WORLD : R_WORLD + CURSOR]
        for i in range(offsets[r], offsets[r + 1]):
            token = tokens[i]
            n = head[H_N_TEXT]
            text[n] = token
            text[n + 1] = OPEN
            head[H_N_TEXT] = n + 1
            stop = n + 2 - head[H_DEPTH]
            if stop - head[H_NEXT] >= BURST:
                insert_windows(table, row, stop, False)
            advance(head, text, session[2], session[3], session[4], session[5], own, token)
            if settings[S_WORLD] > 0:
                advance(world[0], world[1], world[2], world[3], world[4], world[5], other, token)
        if request[R_LEFT] < 2**30:
            request[R_LEFT] = max(request[R_LEFT] - (offsets[r + 1] - offsets[r]), 0)
        if share > 0 and head[H_N_TEXT] - request[R_SHARED] >= share:
            outcome = SHARE_DUE
    return outcome


@kernel
def warm_cursor(table, row, cursor, tokens):
    """Set a cursor to the longest match of ``tokens`` (no more than D - 1 of them)."""
    head, text, nodes, leaves, keys, ids = view(table, row)
    cursor[:] = 0
    for token in tokens:
        advance(head, text, nodes, leaves, keys, ids, cursor, token)


@kernel
def match_length(table, row, tokens):
    """How many last ``tokens`` are in a tree, at most D - 1."""
    cursor = np.zeros(CURSOR, np.int32)
    warm_cursor(table, row, cursor, tokens)
    return cursor[K_DEPTH]
