"""From the steps of a generation to the pieces of the session view."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from suffixspec_index.draft import Draft, Source
from suffixspec_service.monitor.records import Piece

BRANCHES = 4
BRANCH_TOKENS = 24
_CONTEXT = 8


class Detokenizer(Protocol):
    """Turns tokens into text one by one."""

    def feed(self, token_id: int) -> str:
        """The text that a token completes."""


NewDetokenizer = Callable[[Sequence[int]], Detokenizer]
"""A detokenizer behind a context of token ids."""


@dataclass(frozen=True, slots=True)
class StepSeen:
    """What one step gained: tokens, who drafted each, and the draft they come from (its nodes
    ``accepted`` in order)."""

    token_ids: tuple[int, ...]
    sources: tuple[Source, ...]
    draft: Draft | None
    accepted: tuple[int, ...]

    @classmethod
    def of(
        cls,
        token_ids: tuple[int, ...],
        sources: tuple[Source, ...],
        draft: Draft | None,
        accepted: tuple[int, ...],
    ) -> StepSeen:
        """A step to keep: drafts are slices of the arrays of a whole batch, which need not stay."""
        if draft is not None:
            draft = Draft(
                draft.token_ids.copy(),
                draft.parents.copy(),
                draft.probs.copy(),
                draft.sources.copy(),
                draft.match_len,
            )
        return cls(token_ids, sources, draft, accepted)


def pieces_of(
    prompt_end: Sequence[int], steps: Sequence[StepSeen], new_detokenizer: NewDetokenizer
) -> tuple[Piece, ...]:
    """The output token by token, and what was drafted and rejected where it would have stood.

    Of a tree at most :data:`BRANCHES` rejected branches are shown, of a branch at most
    :data:`BRANCH_TOKENS` tokens. O(tokens + draft tokens).

    Args:
        prompt_end: the last token ids of the prompt, because text depends on what is before it.
        steps: all of the request's, in order.
        new_detokenizer: see :data:`NewDetokenizer`.
    """
    context = list(prompt_end[-_CONTEXT:])
    detokenizer = new_detokenizer(context)
    pieces: list[Piece] = []
    for number, step in enumerate(steps):
        match = step.draft.match_len if step.draft is not None else 0
        kept = min(len(step.accepted), len(step.token_ids))
        for place, (token, source) in enumerate(zip(step.token_ids, step.sources, strict=True)):
            if place == kept:
                pieces += _rejected(step, number, context, new_detokenizer)
            drafted = source is not Source.NONE
            text = detokenizer.feed(token)
            pieces.append(Piece(text, source.label, True, match if drafted else 0, number))
            context.append(token)
        if kept == len(step.token_ids):  # a step that ended inside its draft rejects what is left
            pieces += _rejected(step, number, context, new_detokenizer)
        del context[:-_CONTEXT]
    return tuple(pieces)


def _rejected(
    step: StepSeen, number: int, context: Sequence[int], new_detokenizer: NewDetokenizer
) -> list[Piece]:
    draft = step.draft
    if draft is None or len(step.accepted) == len(draft):
        return []
    kept = set(step.accepted)
    parents, tokens, sources = (
        draft.parents.tolist(),
        draft.token_ids.tolist(),
        draft.sources.tolist(),
    )
    inner = set(parents)
    pieces: list[Piece] = []
    shown = 0
    for leaf in range(len(draft)):
        if leaf in inner or leaf in kept or shown == BRANCHES:
            continue
        branch, node = [], leaf
        while node >= 0 and node not in kept:
            branch.append(node)
            node = parents[node]
        branch.reverse()
        detokenizer = new_detokenizer(list(context[-_CONTEXT:]))
        for node in branch[:BRANCH_TOKENS]:
            text = detokenizer.feed(tokens[node])
            label = Source(sources[node]).label
            pieces.append(Piece(text, label, False, draft.match_len, number))
        shown += 1
    return pieces
