"""Kernels over whole batches of drafts: cutting them, and learning how they came true.

``rows`` of a batch are ragged as in :class:`~suffixspec_index.draft.DraftBatch`. The calibration
table is ``(SOURCES, MATCHES, DEPTHS, CHANCES, 2)`` float64, holding in each cell the share of draft
tokens that came true where all before them had, and how many it was taken from; the coarse table
lacks the depths.
"""

from __future__ import annotations

import numpy as np

from suffixspec_index.kernels.jit import kernel

SOURCES, MATCHES, DEPTHS, CHANCES = 16, 9, 8, 12
MEAN, SEEN = 0, 1
OWN_SESSION, OWN_GLOBAL, OWN_FORCED = 1, 2, 8  # sources whose probabilities are learned elsewhere
PRIOR = 4.0  # observations that a coarser cell's opinion is worth
B_EXPECTED, B_CAME = 0, 1  # columns of the requests' balance


@kernel(inline="always")
def _match_bucket(length):
    """0-8: none, 1, 2, 3, 4, 5-6, 7-10, 11-20, longer."""
    if length <= 4:
        return max(length, 0)
    if length <= 10:
        return 5 if length <= 6 else 6
    return 7 if length <= 20 else 8


@kernel(inline="always")
def _depth_bucket(depth):
    """0-7 for depths from 1: 1, 2, 3, 4, 5-6, 7-10, 11-18, deeper."""
    if depth <= 4:
        return depth - 1
    if depth <= 10:
        return 4 if depth <= 6 else 5
    return 6 if depth <= 18 else 7


@kernel(inline="always")
def _chance_bucket(p):
    """0-11: below 1 tenth, ..., below 9 tenths, 0.97, 0.999, surer."""
    if p >= 0.97:
        return 11 if p >= 0.999 else 10
    return min(int(p * 10.0), 9)


@kernel(inline="always")
def _expected(coarse, fine, p):
    """The chance of a token that a proposer gave ``p``, from both cells."""
    broad = (coarse[MEAN] * coarse[SEEN] + PRIOR * 0.5 * p) / (coarse[SEEN] + PRIOR)
    return (fine[MEAN] * fine[SEEN] + PRIOR * broad) / (fine[SEEN] + PRIOR)


@kernel(inline="always")
def _count(cell, hit, memory):
    seen = min(cell[SEEN] + 1.0, memory)
    cell[MEAN] += (hit - cell[MEAN]) / seen
    cell[SEEN] = seen


@kernel
def calibrated(offsets, parents, probs, sources, matches, coarse, fine, out):
    """Write to ``out`` the probabilities with every source's own experience. O(nodes)."""
    depths = np.ones(len(probs), np.int64)
    for r in range(len(offsets) - 1):
        first = offsets[r]
        match = _match_bucket(matches[r])
        for i in range(first, offsets[r + 1]):
            before, own = np.float32(1.0), probs[i]
            if parents[i] >= 0:
                parent = first + parents[i]
                depths[i] = depths[parent] + 1
                before = out[parent]
                own = min(probs[i] / max(probs[parent], np.float32(1e-9)), np.float32(1.0))
            s = sources[i]
            if s != OWN_SESSION and s != OWN_GLOBAL and s != OWN_FORCED:
                chance = _chance_bucket(own)
                own = np.float32(
                    _expected(
                        coarse[s, match, chance],
                        fine[s, match, _depth_bucket(depths[i]), chance],
                        own,
                    )
                )
            out[i] = before * min(own, np.float32(1.0))


@kernel
def learn(
    rows, offsets, token_ids, parents, probs, raw, sources, matches, slots, coarse, fine, balance,
    survived, fade, memory, gained, tokens,
):  # fmt: skip
    """Learn from what ``rows`` of the batch gained: ``tokens[gained[r]:gained[r + 1]]``.

    ``probs`` are those the choice was made by, ``raw`` the proposers'. Every draft token is judged
    whose parent came true, whether or not it was verified: the row's tokens tell.

    ``balance`` is ``(slots, 2)``, what was expected and what came true of a request's draft tokens
    lately; ``survived`` is ``(depths, 2)``: how often drafts came true down to a depth.
    """
    reached = np.zeros(len(token_ids), np.int64)  # depth of what came true; 0: it did not
    for r in rows:
        first, last = offsets[r], offsets[r + 1]
        if first == last:
            continue
        row = balance[slots[r]]
        row[B_EXPECTED] *= fade
        row[B_CAME] *= fade
        match = _match_bucket(matches[r])
        deepest = 0
        known = gained[r + 1] - gained[r]
        for i in range(first, last):
            parent = first + parents[i] if parents[i] >= 0 else -1
            depth = 0 if parent < 0 else reached[parent]
            if depth >= known or (parent >= 0 and depth == 0):
                continue
            hit = 1.0 if token_ids[i] == tokens[gained[r] + depth] else 0.0
            before = probs[parent] if parent >= 0 else np.float32(1.0)
            row[B_EXPECTED] += probs[i] / max(before, np.float32(1e-9))
            row[B_CAME] += hit
            s = sources[i]
            if s != OWN_SESSION and s != OWN_GLOBAL and s != OWN_FORCED:
                raw_before = raw[parent] if parent >= 0 else np.float32(1.0)
                own = min(raw[i] / max(raw_before, np.float32(1e-9)), np.float32(1.0))
                chance = _chance_bucket(own)
                _count(coarse[s, match, chance], hit, memory)
                _count(fine[s, match, _depth_bucket(depth + 1), chance], hit, memory)
            if hit > 0:
                reached[i] = depth + 1
                deepest = max(deepest, depth + 1)
        for d in range(min(len(survived), known)):
            survived[d, 0] = survived[d, 0] * 0.995 + (1.0 if d < deepest else 0.0)
            survived[d, 1] = survived[d, 1] * 0.995 + 1.0


@kernel
def choose(drafts, probs, trust, rate, curve, scale, out_offsets, out):
    """Write to ``out`` the draft tokens that are worth their time. Returns how many.

    ``drafts`` holds the batch's offsets, token ids, parents and sources, ``probs`` the calibrated
    probabilities, ``trust`` a factor per row, ``rate`` the gain that a unit of time must bring.
    ``k`` draft tokens make a step take ``curve[scale * k]``, read between the values where that is
    not whole; ``scale`` rows like each stand in the step. ``out`` holds arrays as long as the
    batch: token ids, parents, probabilities, sources. O(n log n).
    """
    offsets, token_ids, parents, sources = drafts
    n = len(token_ids)
    loss = np.empty(n, np.float64)
    for r in range(len(offsets) - 1):
        for i in range(offsets[r], offsets[r + 1]):
            loss[i] = -trust[r] * probs[i]
    order = np.argsort(loss, kind="mergesort")  # stable: parents stand before their children
    best, most, gain = 0, 0.0, 0.0
    for k in range(1, n + 1):
        gain -= loss[order[k - 1]]
        size = scale * k
        low = min(int(size), len(curve) - 2)
        cost = curve[low] + (size - low) * (curve[low + 1] - curve[low]) - curve[0]
        net = gain - rate * cost / scale
        if net > most:
            best, most = k, net
    place = np.full(n, -1, np.int32)
    for k in range(best):
        place[order[k]] = 0
    out_ids, out_parents, out_probs, out_sources = out
    at = 0
    out_offsets[0] = 0
    for r in range(len(offsets) - 1):
        first, start = offsets[r], at
        for i in range(first, offsets[r + 1]):
            above = np.int32(-1) if parents[i] < 0 else place[first + parents[i]]
            if place[i] < 0 or (parents[i] >= 0 and above < 0):
                place[i] = -1
                continue
            place[i] = at - start
            out_ids[at] = token_ids[i]
            out_parents[at] = above
            out_probs[at] = probs[i]
            out_sources[at] = sources[i]
            at += 1
        out_offsets[r + 1] = at
    return at


@kernel
def origins(offsets, token_ids, parents, kept_offsets, kept_ids, kept_parents):
    """``(m,)`` int64: where in a batch each draft token stands that :func:`choose` kept of it.

    What was kept stands in its old order, and siblings differ, so one pass finds all. O(n).
    """
    found = np.empty(len(kept_ids), np.int64)
    for r in range(len(offsets) - 1):
        first, start = offsets[r], kept_offsets[r]
        i = first
        for j in range(start, kept_offsets[r + 1]):
            above = np.int64(-1)
            if kept_parents[j] >= 0:
                above = found[start + kept_parents[j]] - first
            while token_ids[i] != kept_ids[j] or parents[i] != above:
                i += 1
            found[j] = i
            i += 1
    return found
