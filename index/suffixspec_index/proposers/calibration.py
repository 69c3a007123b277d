"""How far a proposer's probabilities can be trusted, learned from what came true.

Proposers estimate how probable it is that a drafted token is accepted together with all before it.
Some are right, some always say 1. To compare their drafts, each one's estimates are corrected by
what happened to tokens like these: with a similar estimate, at a similar depth of the draft. What
happened lately counts more, so that a proposer that has become worse, or better, is noticed.

What is learned is the chance of a token once those before it were accepted. Whether a token deep in
a draft would have been accepted is only ever known where the text went that far along the draft; to
count it as rejected wherever the text left the draft earlier would make long drafts look bad.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.draft import Draft

_PROB_BINS = 10
_DEPTH_BOUNDS = np.array([2, 3, 5, 9, 17])  # depth 1, 2, 3-4, 5-8, 9-16, more
_PRIOR = 10.0  # tokens that what is known beforehand counts for
_FADE_CELL, _FADE_BIN = 1 - 1 / 300, 1 - 1 / 1000  # per token observed
_EDGE = 0.005  # estimates of 0 and 1 are taken as this far from it


class Calibration:
    """Corrects the probabilities of one proposer's drafts; see the module's text.

    The correction is a shift of the log odds: that by which the observed rate of tokens with a
    similar estimate differs from their mean estimate, at any depth first, then at this one. A kind
    of token that was never observed keeps its estimate.
    """

    def __init__(self) -> None:
        # Observed tokens, of them accepted ones, and the sum of their estimates.
        self._bins = np.zeros((3, _PROB_BINS))
        self._cells = np.zeros((3, len(_DEPTH_BOUNDS) + 1, _PROB_BINS))

    def correct(self, draft: Draft) -> NDArray[np.float32]:
        """``(n,)`` float32: the probability of each node being accepted with all before it, never
        above its parent's. O(n)."""
        if not len(draft):
            return np.empty(0, np.float32)
        chances, depths, bins = _kinds(draft)
        known, near = self._bins[:, bins], self._cells[:, depths, bins]
        total = known[0] + _PRIOR
        rate = (known[1] + _PRIOR * chances) / total
        mean = (known[2] + _PRIOR * chances) / total
        total = near[0] + _PRIOR
        rate = (near[1] + _PRIOR * rate) / total
        mean = (near[2] + _PRIOR * mean) / total
        corrected = 1 / (1 + np.exp(_log_odds(mean) - _log_odds(rate) - _log_odds(chances)))
        if draft.is_path:
            return np.cumprod(corrected).astype(np.float32)
        probs: list[float] = corrected.tolist()
        for node, parent in enumerate(draft.parents.tolist()):
            if parent >= 0:
                probs[node] *= probs[parent]
        return np.array(probs, np.float32)

    def observe(self, draft: Draft, gained: Sequence[int] | NDArray[np.int32]) -> int:
        """Learn from what a request gained after this was drafted, used or not: of every node whose
        fate it tells, that is whose parent was accepted, if the gained tokens go on behind it.
        O(n).

        Returns:
            How many of the gained tokens the draft had foreseen.
        """
        if not len(draft):
            return 0
        accepted = draft.accepted_by(gained)
        chances, depths, bins = _kinds(draft)
        reached = {-1, *accepted}
        if len(accepted) == len(gained):
            reached.discard(accepted[-1] if accepted else -1)  # nothing is known of its children
        true = set(accepted)
        for node, parent in enumerate(draft.parents.tolist()):
            if parent in reached:
                seen = np.array([1.0, node in true, chances[node]])
                cell = self._cells[:, depths[node], bins[node]]
                cell *= _FADE_CELL
                cell += seen
                whole = self._bins[:, bins[node]]
                whole *= _FADE_BIN
                whole += seen
        return len(accepted)


def _kinds(
    draft: Draft,
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Per node: its estimated chance once its parent was accepted; the bins of depth and chance."""
    before = np.ones(len(draft))
    inner = draft.parents >= 0
    before[inner] = draft.probs[draft.parents[inner]]
    chances = np.clip(draft.probs / np.maximum(before, 1e-9), _EDGE, 1 - _EDGE)
    depths = np.arange(1, len(draft) + 1) if draft.is_path else draft.depths
    depth_bins = np.searchsorted(_DEPTH_BOUNDS, depths, side="right")
    return chances, depth_bins, (chances * _PROB_BINS).astype(np.int64)


def _log_odds(chance: NDArray[np.float64]) -> NDArray[np.float64]:
    clipped = np.clip(chance, _EDGE / 2, 1 - _EDGE / 2)
    odds: NDArray[np.float64] = np.log(clipped / (1 - clipped))
    return odds
