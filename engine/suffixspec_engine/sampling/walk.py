"""One request's step, token by token: the tokens gained so far and the distribution after them."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from suffixspec_engine.sampling.contract import GrammarMatcher, RowState, Verdict
from suffixspec_engine.sampling.distribution import (
    Context,
    Floats,
    argmax,
    is_plain,
    process,
)
from suffixspec_engine.sampling.logprobs import token_logprobs
from suffixspec_engine.sampling.params import SamplingParams
from suffixspec_engine.sampling.stopping import Finish, StopCheck
from suffixspec_index.draft import Draft


class Walk:
    """Goes down a draft from its root, gaining a token at each node.

    Attributes:
        node: the draft node reached; -1 at the root.
        position: output position of the next token.
        children: per node, its children in draft order.
    """

    def __init__(
        self,
        logits: Tensor,
        draft: Draft,
        state: RowState,
        params: SamplingParams,
        grammar: GrammarMatcher | None,
    ) -> None:
        self.draft = draft
        self.state = state
        self.params = params
        self.node = -1
        self.children: dict[int, list[int]] = {}
        for index, parent in enumerate(draft.parents.tolist()):
            self.children.setdefault(parent, []).append(index)
        self._draft_tokens: list[int] = draft.token_ids.tolist()
        self._logits = logits
        self._vocab_size = logits.shape[-1]
        self._grammar = grammar
        self._grammar_steps = 0
        self._stop = StopCheck(state, params)
        self._context = self._new_context()
        self._tokens: list[int] = []
        self._rows: list[int] = []
        self._accepted: list[int] = []
        self._finish: Finish | None = None

    def _new_context(self) -> Context:
        params, state = self.params, self.state
        counts = state.output_counts(self._vocab_size) if params.has_penalties else None
        seen = state.prompt_seen(self._vocab_size) if params.repetition_penalty != 1.0 else None
        return Context(state.position, counts, seen)

    @property
    def position(self) -> int:
        """Output position of the next token."""
        return self._context.position

    @property
    def vocab_size(self) -> int:
        """Columns of the logits."""
        return self._vocab_size

    def row(self, index: int) -> Floats:
        """Raw logits row on the host, as float32."""
        row: Floats = self._logits[index].detach().float().cpu().numpy()
        return row

    def processed(self) -> Floats:
        """Logits of the next token, mask, bias and penalties applied; see :func:`process`."""
        allowed = None if self._grammar is None else self._grammar.allowed(self._vocab_size)
        return process(
            self.row(self.node + 1),
            self.params,
            self._context,
            allowed=allowed,
            stop_ids=self._stop.stop_ids,
        )

    def greedy_token(self, argmaxes: list[int] | None) -> int:
        """The next token of a greedy request; ``argmaxes`` per row of the raw logits, if known."""
        if (
            argmaxes is not None
            and self._grammar is None
            and is_plain(self.params, self._context.position)
        ):
            return argmaxes[self.node + 1]
        return argmax(self.processed())

    def token_of(self, node: int) -> int:
        """The token of a draft node."""
        return self._draft_tokens[node]

    def child_with(self, token_id: int) -> int | None:
        """The child of the node reached that proposes ``token_id``."""
        for child in self.children.get(self.node, ()):
            if self._draft_tokens[child] == token_id:
                return child
        return None

    def gain(self, token_id: int, child: int | None) -> bool:
        """Gain a token; ``child`` is the draft node it accepts. False where the step is over."""
        self._tokens.append(token_id)
        self._rows.append(self.node + 1)
        if child is not None:
            self._accepted.append(child)
        self._finish = self._stop.add(token_id)
        if self._finish is not None or child is None:
            return False
        if self.descend(child):
            return True
        # The grammar's mask let through what it does not accept: there is no going on from here in
        # this step, so the token counts as added by the target, not as accepted.
        self._accepted.pop()
        return False

    def descend(self, child: int) -> bool:
        """Go to a child without gaining its token; false if the grammar forbids that."""
        token_id = self._draft_tokens[child]
        if self._grammar is not None:
            if not self._grammar.accept(token_id):
                return False
            self._grammar_steps += 1
        self._context.append(token_id)
        self.node = child
        return True

    def rewind(self) -> None:
        """Back to the root, for a second pass; only before a token is gained."""
        assert not self._tokens
        self.restore_grammar()
        self._context = self._new_context()
        self.node = -1

    def restore_grammar(self) -> None:
        """Leave the grammar where it was found."""
        if self._grammar is not None and self._grammar_steps:
            self._grammar.rollback(self._grammar_steps)
        self._grammar_steps = 0

    def verdict(self) -> Verdict:
        """What was decided."""
        finish = self._finish
        hidden = finish is not None and not finish.visible
        logprobs = None
        if self.params.logprobs is not None:
            logprobs = tuple(
                token_logprobs(self.row(row), token_id, self.params.logprobs)
                for row, token_id in zip(self._rows, self._tokens, strict=True)
            )
        return Verdict(
            accepted=tuple(self._accepted),
            token_ids=tuple(self._tokens),
            finish_reason=None if finish is None else finish.reason,
            stop_reason=None if finish is None else finish.stop_reason,
            num_visible=len(self._tokens) - hidden,
            text_end=None if finish is None else finish.text_end,
            logprobs=logprobs,
        )


def check_tokens(draft: Draft, vocab_size: int) -> bool:
    """Whether every draft token is in the vocabulary."""
    ids = draft.token_ids
    return not len(ids) or bool(np.min(ids) >= 0 and np.max(ids) < vocab_size)
