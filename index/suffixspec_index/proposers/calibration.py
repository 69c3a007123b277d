"""How far a proposer's probabilities can be trusted, learned from what came true.

Proposers estimate how probable it is that a drafted token is accepted together with all before it.
Some are right, some always say 1. To compare their drafts, each one's estimates are corrected by
what happened to tokens like these: those with a similar estimate at a similar depth of the draft.
What happened lately counts more, so that a proposer that has become worse, or better, is noticed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.draft import Draft

_PROB_BINS = 10
_DEPTH_BOUNDS = np.array([2, 3, 5, 9, 17])  # depth 1, 2, 3-4, 5-8, 9-16, more
_PRIOR_TOKENS = 6.0
_MEMORY = 200.0  # tokens of one kind after which an older one counts 1/e


class Calibration:
    """Corrects the probabilities of one proposer's drafts; see the module's text.

    A kind of token that was never observed keeps its estimate; each observation moves it, as if
    6 tokens had confirmed the estimate before.
    """

    def __init__(self) -> None:
        shape = (len(_DEPTH_BOUNDS) + 1, _PROB_BINS)
        self._seen = np.zeros(shape)
        self._accepted = np.zeros(shape)

    def correct(self, draft: Draft) -> NDArray[np.float32]:
        """``(n,)`` float32: the probability of each node being accepted with all before it, never
        above its parent's. O(n)."""
        if not len(draft):
            return np.empty(0, np.float32)
        cells = _cells(draft)
        seen, accepted = self._seen[cells], self._accepted[cells]
        probs = (accepted + _PRIOR_TOKENS * draft.probs) / (seen + _PRIOR_TOKENS)
        if draft.is_path:
            return np.minimum.accumulate(probs).astype(np.float32)
        corrected: list[float] = probs.tolist()
        for node, parent in enumerate(draft.parents.tolist()):
            if parent >= 0:
                corrected[node] = min(corrected[node], corrected[parent])
        return np.array(corrected, np.float32)

    def observe(self, draft: Draft, gained: Sequence[int] | NDArray[np.int32]) -> int:
        """Learn from what a request gained after this was drafted, used or not. O(n).

        A node whose fate the gained tokens do not tell (they end above it, agreeing with it so
        far) is left out.

        Returns:
            How many of the gained tokens the draft had foreseen.
        """
        accepted = draft.accepted_by(gained)
        if not len(draft):
            return 0
        came_true = np.zeros(len(draft), np.bool_)
        came_true[accepted] = True
        told = np.ones(len(draft), np.bool_)
        if len(accepted) == len(gained):
            last = accepted[-1] if accepted else -1
            below = {last}
            for node, parent in enumerate(draft.parents.tolist()):
                if parent in below:
                    below.add(node)
                    told[node] = False
        depth_bins, prob_bins = _cells(draft)
        for node in np.flatnonzero(told).tolist():
            cell = depth_bins[node], prob_bins[node]
            fade = 1.0 - 1.0 / _MEMORY
            self._seen[cell] = self._seen[cell] * fade + 1.0
            self._accepted[cell] = self._accepted[cell] * fade + came_true[node]
        return len(accepted)


def _cells(draft: Draft) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    depths = np.arange(1, len(draft) + 1) if draft.is_path else draft.depths
    depth_bins = np.searchsorted(_DEPTH_BOUNDS, depths, side="right")
    prob_bins = np.minimum((draft.probs * _PROB_BINS).astype(np.int64), _PROB_BINS - 1)
    return depth_bins, prob_bins
