"""Drafts that fit a grammar: cut where it forbids, lengthened where it forces."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from suffixspec_engine.grammar.matcher import Matcher
from suffixspec_index.draft import Draft, Source


@dataclass(frozen=True, slots=True)
class Constrained:
    """A draft that fits a grammar.

    Attributes:
        draft: what is worth verifying.
        origin: ``(n,)`` int32, the node of the given draft that each node was, -1 for one that
            stands for itself: forced, not drawn by the proposer.
    """

    draft: Draft
    origin: NDArray[np.int32]

    def probs(self, draft_probs: Tensor) -> Tensor:
        """Rows of ``draft_probs`` (``(given n, vocab)``) for the new draft; forced ones one-hot."""
        rows = draft_probs.new_zeros(len(self.draft), draft_probs.shape[1])
        drawn = torch.from_numpy(self.origin >= 0)
        rows[drawn] = draft_probs[torch.from_numpy(self.origin[self.origin >= 0]).long()]
        forced = torch.nonzero(~drawn).flatten()
        rows[forced, torch.from_numpy(self.draft.token_ids).long()[forced]] = 1.0
        return rows


def constrain(
    draft: Draft, matcher: Matcher, *, limit: int | None = None, drawn: bool = False
) -> Constrained:
    """Cut ``draft`` where the grammar forbids a token; put in the tokens it forces.

    Where the grammar leaves one text, the draft follows it and nothing else, and what the draft
    said beyond it is kept. ``matcher`` is left as it was found. O(nodes), some microseconds each.

    Args:
        draft: path or tree.
        matcher: where the request stands.
        limit: nodes at most; ``None``: no limit. A draft that is already longer is not shortened.
        drawn: the draft was drawn from probabilities that know nothing of the grammar, and is
            verified by ``standard`` or ``block``. Then a forbidden token is itself kept (what comes
            after it is not): being rejected is what makes the drawn tokens follow the target's
            distribution, and a draft cut before it would favour the others.
    """
    builder = _Builder(draft, matcher, len(draft) if limit is None else limit, drawn)
    builder.visit_all()
    return builder.result()


class _Builder:
    def __init__(self, draft: Draft, matcher: Matcher, limit: int, drawn: bool) -> None:
        self._draft = draft
        self._matcher = matcher
        self._limit = limit
        self._drawn = drawn
        self._children: dict[int, list[int]] = {}
        for node, parent in enumerate(draft.parents.tolist()):
            self._children.setdefault(parent, []).append(node)
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._probs: list[float] = []
        self._sources: list[int] = []
        self._origin: list[int] = []

    def visit_all(self) -> None:
        """Depth first, children in order; the stack holds (node, new parent, depth, forced)."""
        matcher, start = self._matcher, self._matcher.num_accepted
        stack = self._below(-1, -1, 0)
        while stack:
            node, parent, depth, forced = stack.pop()
            matcher.rollback(matcher.num_accepted - start - depth)
            token = int(self._draft.token_ids[node])
            if matcher.accept(token):
                index = self._add(node, parent, forced)
                stack.extend(self._below(node, index, depth + 1))
            elif self._drawn:
                self._add(node, parent, forced)
        matcher.rollback(matcher.num_accepted - start)

    def _below(self, node: int, index: int, depth: int) -> list[tuple[int, int, int, bool]]:
        """The children to visit of a node just accepted, last first."""
        children = self._children.get(node, [])
        forced = self._matcher.forced()
        if not forced:
            return [(child, index, depth, False) for child in reversed(children)]
        for child in children:
            if int(self._draft.token_ids[child]) == forced[0]:
                return [(child, index, depth, True)]
        for token in forced[: max(0, self._limit - len(self._tokens))]:
            index = self._force(token, index)
        return []

    def _add(self, node: int, parent: int, forced: bool) -> int:
        # With a drawn draft a forced token stands for itself even where the proposer drew the same:
        # it is proposed whatever was drawn.
        origin = -1 if forced and self._drawn else node
        prob = float(self._draft.probs[node])
        source = int(self._draft.sources[node])
        return self._append(int(self._draft.token_ids[node]), parent, prob, source, origin)

    def _force(self, token: int, parent: int) -> int:
        prob = self._probs[parent] if parent >= 0 else 1.0
        return self._append(token, parent, prob, Source.FORCED, -1)

    def _append(self, token: int, parent: int, prob: float, source: int, origin: int) -> int:
        self._tokens.append(token)
        self._parents.append(parent)
        self._probs.append(prob)
        self._sources.append(source)
        self._origin.append(origin)
        return len(self._tokens) - 1

    def result(self) -> Constrained:
        draft = Draft(
            np.array(self._tokens, np.int32),
            np.array(self._parents, np.int32),
            np.array(self._probs, np.float32),
            np.array(self._sources, np.uint8),
            self._draft.match_len,
        )
        return Constrained(draft, np.array(self._origin, np.int32))
