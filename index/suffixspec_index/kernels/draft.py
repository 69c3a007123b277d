"""Drafting: the most probable continuations under the learned mixture, best first.

The draft grows from the context's last token. Its open candidates wait in a pool with their
probability of being reached and accepted; the best one becomes the next node, its own candidates
join the pool, until the best is less probable than ``min_token_prob`` or the budget is spent. With
probabilities that predict acceptance this maximises the expected number of accepted tokens for the
number drafted. A path draft keeps only the best candidate of each node.
"""

from __future__ import annotations

import numpy as np

from suffixspec_index.draft import Source
from suffixspec_index.kernels.cursor import CURSOR
from suffixspec_index.kernels.evidence import (
    FEATURES,
    HASHED,
    LEVELS,
    MAX_CANDIDATES,
    P_LENGTH,
    PLACE,
    SESSION_SIDE,
    SLOTS,
    TAIL,
    WORLD_SIDE,
    follow,
    gather,
    levels,
    tail_place,
)
from suffixspec_index.kernels.jit import kernel
from suffixspec_index.kernels.layout import H_N_TEXT, carray, pointer_f32, pointer_i32
from suffixspec_index.kernels.mixture import log_odds, squash, weight_set

MAX_NODES = 64  # nodes per draft
CHANCE = np.float32(1 << 24)
LEARN_NODES = 16  # draft nodes whose votes are kept for training

# --- columns of a request row --------------------------------------------------------------------
R_SESSION = 0  # the session's row in the header table
R_LEFT = 1  # output tokens the request may still produce
R_SHARED = 2  # text position up to which its output is in the global tree
R_OWN = 4  # cursor in the session's tree
R_WORLD = R_OWN + CURSOR  # cursor in the global tree
R_DRAFTED = R_WORLD + CURSOR  # nodes of the last draft
R_EXPANDED = R_DRAFTED + 1  # nodes whose votes follow
R_TOKENS = R_EXPANDED + 1
R_PARENTS = R_TOKENS + MAX_NODES
R_VOTES = R_PARENTS + MAX_NODES
V_COUNT, V_SET, V_LAST, V_TOKENS = 0, 1, 2, 3
V_CHANCES = V_TOKENS + MAX_CANDIDATES  # probabilities in units of 2**-24
V_CELLS = V_CHANCES + MAX_CANDIDATES
VOTES = V_CELLS + MAX_CANDIDATES * FEATURES
REQUEST = R_VOTES + (LEARN_NODES + 1) * VOTES

# --- parameters (float64) ------------------------------------------------------------------------
S_TOKENS, S_FACTOR, S_OFFSET, S_MIN_PROB, S_MIN_MATCH, S_TREE, S_BEYOND = 0, 1, 2, 3, 4, 5, 6
S_RATE, S_MEMORY, S_WORLD = 7, 8, 9
S_DYNAMIC = 10  # 1: the draft's size follows from the step costs below
S_GAINED, S_SPENT = 11, 12  # tokens gained and time spent lately: their quotient is the going rate
S_COST = 13  # cost of a step by the draft's size, 0 to MAX_NODES
S_SLOPE = S_COST + MAX_NODES + 1  # least cost per further node, from each size on
S_SHARE = S_SLOPE + MAX_NODES + 1  # tokens not shared yet from which a request shares; 0: never
SETTINGS = S_SHARE + 1

_SESSION, _GLOBAL = int(Source.SESSION), int(Source.GLOBAL)


@kernel(forceinline=True)
def _last_tokens(request, text, n, node, out):
    """The last tokens at a draft node (0: the context), the latest first."""
    i = 0
    while i < HASHED and node > 0:
        out[i] = request[R_TOKENS + node - 1]
        node = request[R_PARENTS + node - 1] + 1
        i += 1
    z = n - 1
    while i < HASHED:
        out[i] = text[z] if z >= 0 else -1
        z -= 1
        i += 1


@kernel(forceinline=True)
def _start(session, world, request, settings, places):
    """Fill the context's places; returns the match length."""
    match = levels(session, request[R_OWN : R_OWN + CURSOR], places, 0)
    for k in range(LEVELS, TAIL):
        places[0, k, P_LENGTH] = 0
    if settings[S_WORLD] > 0:
        match = max(match, levels(world, request[R_WORLD : R_WORLD + CURSOR], places, LEVELS))
    return max(match, tail_place(session[0], session[1], places))


@kernel(forceinline=True)
def _weigh(session, world, request, node, reach, pooled, blocked, odds, weights, scratch):
    """Put a draft node's candidates into the pool; returns its new size."""
    places, ids, probs, votes, vote_cells, tokens, cells, backing, last, depths = scratch
    _last_tokens(request, session[1], session[0][H_N_TEXT], node, last)
    ballot = (tokens, cells, backing, votes, vote_cells)
    found = gather(session, world, places, node, last, blocked, ballot)
    by_length = weight_set(places, node, depths[node])
    keep = node <= LEARN_NODES
    at = R_VOTES + node * VOTES
    if keep:
        _keep_votes(request, at, found, by_length, last[0], tokens, cells)
    total = np.float32(0.0)
    first = pooled
    for i in range(found):
        p = squash(log_odds(odds, weights, by_length, last[0], tokens[i], cells, i))
        total += p
        if keep:
            request[at + V_CHANCES + i] = np.int32(p * CHANCE)
        ids[pooled, 0] = tokens[i]
        ids[pooled, 1] = node
        own = backing[i, SESSION_SIDE] >= backing[i, WORLD_SIDE]
        ids[pooled, 2] = _SESSION if own else _GLOBAL
        probs[pooled] = p
        pooled += 1
    scale = reach / max(total, np.float32(1.0))
    for i in range(first, pooled):
        probs[i] *= scale
    return pooled


@kernel(forceinline=True)
def draft(session, world, request, budget, floor, settings, blocked, odds, weights, out):
    """Draft for one request; returns ``(nodes, match length)``.

    ``floor``: least probability of a node, instead of all that the settings say of it; negative:
    as the settings say.

    ``out`` is ``(at, tokens, parents, probs, sources, scratch)``, to be written from ``at``. Nodes
    are numbered from 1 here, 0 being the context; ``parents`` are written as callers see them.
    """
    first_out, out_tokens, out_parents, out_probs, out_sources, scratch = out
    places, ids, probs, _, _, _, _, _, _, depths = scratch
    request[R_DRAFTED] = 0
    request[R_EXPANDED] = 0
    match = _start(session, world, request, settings, places)
    bound = np.floor(settings[S_FACTOR] * match + settings[S_OFFSET] + 1e-6)
    most = min(budget, settings[S_TOKENS], bound)
    deepest = request[R_LEFT] - 1
    if match < settings[S_MIN_MATCH] or match == 0 or most < 1 or deepest < 1:
        return 0, match
    for k in range(SLOTS):  # nor may a shorter match beside the longest one have a say
        if places[0, k, P_LENGTH] < settings[S_MIN_MATCH]:
            places[0, k, P_LENGTH] = 0
    node = 0
    n = 0
    pooled = 0
    depths[0] = 0
    reach = np.float32(1.0)
    dynamic = settings[S_DYNAMIC] > 0 and floor < 0
    least = floor if floor >= 0 else settings[S_MIN_PROB]
    rate = settings[S_GAINED] / settings[S_SPENT] if dynamic else 0.0
    while True:
        if node <= LEARN_NODES:
            request[R_VOTES + node * VOTES + V_COUNT] = 0
            request[R_EXPANDED] = node + 1
        if depths[node] < deepest:
            pooled = _weigh(
                session, world, request, node, reach, pooled, blocked, odds, weights, scratch
            )
        if settings[S_TREE] == 0 and pooled > 1:
            best = _best(probs, pooled)
            _move(ids, 0, best)
            probs[0] = probs[best]
            pooled = 1
        if pooled == 0 or n >= most:
            break
        best = _best(probs, pooled)
        reach = probs[best]
        if dynamic:
            if reach < rate * settings[S_SLOPE + n]:
                break
        elif reach < least:
            break
        token, parent = ids[best, 0], ids[best, 1]
        request[R_TOKENS + n] = token
        request[R_PARENTS + n] = parent - 1
        out_tokens[first_out + n] = token
        out_parents[first_out + n] = parent - 1
        out_probs[first_out + n] = reach
        out_sources[first_out + n] = ids[best, 2]
        pooled -= 1
        _move(ids, best, pooled)
        probs[best] = probs[pooled]
        n += 1
        node = n
        depths[node] = depths[parent] + 1
        follow(session, world, places, parent, node, token, settings[S_BEYOND] > 0)
    if dynamic:
        n = _worth(out_probs, first_out, n, settings, rate)
    request[R_DRAFTED] = n
    return n, match


@kernel(inline="always")
def _worth(probs, first, n, settings, rate):
    """The size, at most ``n``, at which a draft gains most over what its time is worth.

    Nodes stand in falling order of probability, so the first ones are always the best ones.
    """
    best = 0
    most = 0.0
    gain = 0.0
    for size in range(1, n + 1):
        gain += probs[first + size - 1]
        value = gain - rate * (settings[S_COST + size] - settings[S_COST])
        if value > most:
            most = value
            best = size
    return best


@kernel(inline="always")
def _best(probs, n):
    """The most probable of the pool; the earliest among equals."""
    best = 0
    for i in range(1, n):
        if probs[i] > probs[best]:
            best = i
    return best


@kernel(inline="always")
def _move(pool, to, origin):
    """Copy one row of the pool; by elements, since a slice would be checked for overlap."""
    pool[to, 0] = pool[origin, 0]
    pool[to, 1] = pool[origin, 1]
    pool[to, 2] = pool[origin, 2]


@kernel(forceinline=True)
def _keep_votes(request, at, found, by_length, last, tokens, cells):
    """Keep a node's votes in the request row, for training once the truth is known."""
    request[at + V_COUNT] = found
    request[at + V_SET] = by_length
    request[at + V_LAST] = last
    for i in range(found):
        request[at + V_TOKENS + i] = tokens[i]
        for k in range(FEATURES):
            request[at + V_CELLS + i * FEATURES + k] = cells[i, k]


_POOL = (MAX_NODES + 1) * MAX_CANDIDATES
_SHAPES = (
    (MAX_NODES + 1) * SLOTS * PLACE,
    _POOL * 3,
    _POOL,
    SLOTS * 3,
    SLOTS * 4,
    MAX_CANDIDATES,
    MAX_CANDIDATES * FEATURES,
    MAX_CANDIDATES * 2,
    HASHED,
    MAX_NODES + 1,
)
_AT = tuple(4 * sum(_SHAPES[:i]) for i in range(len(_SHAPES)))
SCRATCH = sum(_SHAPES)  # int32 words that :func:`draft` works in


@kernel(forceinline=True)
def scratch_views(address):
    """Working memory of :func:`draft` over ``SCRATCH`` words at an address.

    Views of plain memory carry no reference counts, which a tight loop would pay for.
    """
    return (
        carray(pointer_i32(address + _AT[0]), (MAX_NODES + 1, SLOTS, PLACE)),
        carray(pointer_i32(address + _AT[1]), (_POOL, 3)),
        carray(pointer_f32(address + _AT[2]), (_POOL,)),
        carray(pointer_i32(address + _AT[3]), (SLOTS, 3)),
        carray(pointer_i32(address + _AT[4]), (SLOTS, 4)),
        carray(pointer_i32(address + _AT[5]), (MAX_CANDIDATES,)),
        carray(pointer_i32(address + _AT[6]), (MAX_CANDIDATES, FEATURES)),
        carray(pointer_i32(address + _AT[7]), (MAX_CANDIDATES, 2)),
        carray(pointer_i32(address + _AT[8]), (HASHED,)),
        carray(pointer_i32(address + _AT[9]), (MAX_NODES + 1,)),
    )
