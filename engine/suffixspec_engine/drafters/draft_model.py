"""Method ``draft_model``: a small language model proposes, greedily or by sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from tokenizers import Tokenizer
from torch import Tensor

from suffixspec_engine.drafters.draft_runner import DraftModel, DraftSequence
from suffixspec_engine.drafters.vocabulary import VocabularyMap
from suffixspec_engine.sampling import draw_draft_token
from suffixspec_index.draft import Draft, DraftBatch, Source
from suffixspec_index.errors import ConfigError
from suffixspec_index.proposers.base import Proposer, RequestHandle
from suffixspec_index.proposers.drawing import DraftSampling
from suffixspec_index.proposers.requests import (
    RequestTable,
    as_limits,
    as_max_tokens,
    as_session_id,
)
from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_index.tokens import as_token_array

_MASK_KEYS = ("pard_token", "ptd_token_id")
"""Where models made for parallel drafting keep the id that stands for a token to come."""


@dataclass(slots=True, eq=False)
class _Request:
    sequence: DraftSequence
    remaining: int


@dataclass(slots=True, eq=False)
class _Drafting:
    """A request's draft while it is made; the tokens are the target's."""

    request: _Request
    most: int
    sampling: DraftSampling | None
    token_ids: list[int] = field(default_factory=list)
    probs: list[float] = field(default_factory=list)  # of the whole path up to each token
    drawn_from: list[NDArray[np.float32]] = field(default_factory=list)
    ended: bool = False

    def add(self, token_id: int, prob: float) -> None:
        self.token_ids.append(token_id)
        self.probs.append(min(1.0, prob * (self.probs[-1] if self.probs else 1.0)))
        self.ended = len(self.token_ids) >= self.most

    def result(self) -> tuple[Draft, Tensor | None]:
        probs = np.array(self.probs, np.float32)
        draft = Draft.path(self.token_ids, source=Source.DRAFT_MODEL, probs=probs)
        if self.sampling is None or not self.token_ids:
            return draft, None
        return draft, torch.from_numpy(np.stack(self.drawn_from))


class DraftModelProposer(Proposer):
    """Proposes what a smaller model says.

    The drafts of all requests of a step are made together: one forward pass per drafted token,
    however many requests there are (one in all with ``parallel_drafting``). A rejected draft costs
    nothing, and what a session's earlier turns had read is not read again. ``probs`` of a draft are
    products of the draft model's own probabilities.

    Args:
        config: ``num_speculative_tokens`` (if it is not given, the model's ``n_predict``),
            ``use_heterogeneous_vocab``, ``parallel_drafting`` and ``max_model_len`` count here.
        draft: the draft model; several proposers may share one.
        target_tokenizer: the target's.
        vocab_size: the target's number of logits; ``None``: its tokenizer's.
        forbidden: target ids that are never drafted.
        namespace: keys and values are shared with the proposers of the same namespace only.
        vocabulary: between both tokenizers, if it is known; it is costly to make.

    Raises:
        ConfigError: the tokenizers do not fit; no number of tokens is given; or the model is not
            made for parallel drafting.
    """

    name: ClassVar[str] = "draft_model"

    def __init__(
        self,
        config: SpeculativeConfig,
        draft: DraftModel,
        target_tokenizer: Tokenizer,
        *,
        vocab_size: int | None = None,
        forbidden: ArrayLike = (),
        namespace: str = "",
        vocabulary: VocabularyMap | None = None,
    ) -> None:
        self._draft, self._namespace = draft, namespace
        self._target_size = vocab_size or target_tokenizer.get_vocab_size()
        self.vocabulary = vocabulary or VocabularyMap(
            target_tokenizer,
            draft.tokenizer,
            target_size=self._target_size,
            draft_size=draft.model.vocab_size,
            heterogeneous=config.use_heterogeneous_vocab,
        )
        self._num_tokens = _num_tokens(config, draft)
        self._mask_id = _mask_id(draft) if config.parallel_drafting else None
        self._max_length = min(draft.model.max_model_len, config.max_model_len or 2**31)
        self._forbidden = frozenset(np.asarray(forbidden, np.int64).tolist())
        device = draft.model.device
        self._shared = torch.from_numpy(self.vocabulary.shared).to(device)
        self._targets: NDArray[np.int64] = self.vocabulary.to_target[self.vocabulary.shared]
        excluded = np.isin(self._targets, np.asarray(forbidden, np.int64))
        if excluded.all():
            raise ConfigError("forbidden: holds every token that draft model and target share")
        self._excluded = torch.from_numpy(np.flatnonzero(excluded)).to(device)
        self._requests: RequestTable[_Request] = RequestTable()

    def begin(
        self,
        session_id: str,
        prompt: ArrayLike,
        *,
        max_tokens: int | None = None,
        prediction: ArrayLike | None = None,
    ) -> RequestHandle:
        """See :meth:`Proposer.begin`. O(prompt); the model reads it at the first draft."""
        as_session_id(session_id)
        ids = as_token_array(prompt, self._target_size, field="prompt").tolist()
        remaining = as_max_tokens(max_tokens)
        sequence = DraftSequence(self._namespace, session_id, self.vocabulary.to_draft(ids))
        with self._draft.lock:
            return self._requests.add(_Request(sequence, remaining))

    def advance(self, request: RequestHandle, token_ids: ArrayLike) -> None:
        """See :meth:`Proposer.advance`. O(tokens)."""
        with self._draft.lock:
            row = self._requests.get(request)
            ids = as_token_array(token_ids, self._target_size, field="token_ids").tolist()
            row.sequence.token_ids.extend(self.vocabulary.to_draft(ids))
            row.remaining = max(0, row.remaining - len(ids))

    def propose(self, request: RequestHandle, limit: int | None = None) -> Draft:
        """See :meth:`Proposer.propose`: the draft model's most probable tokens."""
        return self.propose_batch([request], None if limit is None else [limit])[0]

    def propose_batch(
        self,
        requests: Sequence[RequestHandle],
        limits: Sequence[int] | NDArray[np.int32] | None = None,
    ) -> DraftBatch:
        """See :meth:`Proposer.propose_batch`: one forward pass per drafted token."""
        bounds = as_limits(limits, len(requests)).tolist()
        drawn = self.propose_drawn(requests, bounds, [None] * len(requests))
        return DraftBatch.of([draft for draft, _ in drawn])

    def propose_drawn(
        self,
        requests: Sequence[RequestHandle],
        limits: Sequence[int],
        samplings: Sequence[DraftSampling | None],
    ) -> list[tuple[Draft, Tensor | None]]:
        """See :meth:`~suffixspec_index.proposers.drawing.DrawingProposer.propose_drawn`;
        ``(n, target vocab)`` float32 distributions."""
        bounds = as_limits(list(limits), len(requests)).tolist()
        with self._draft.lock:
            drafting = []
            for handle, limit, sampling in zip(requests, bounds, samplings, strict=True):
                row = self._requests.get(handle)
                room = self._max_length - len(row.sequence.token_ids)
                most = min(limit, self._num_tokens, row.remaining, room)
                drafting.append(_Drafting(row, most, sampling))
            wanted = [one for one in drafting if one.most > 0 and one.request.sequence.token_ids]
            if self._mask_id is not None:
                self._draft_at_once(wanted, self._mask_id)
            else:
                self._draft_in_turn(wanted)
            return [one.result() for one in drafting]

    def _draft_in_turn(self, drafting: list[_Drafting]) -> None:
        """A token per pass, each read before the next is drafted."""
        sequences = [one.request.sequence for one in drafting]
        logits = self._draft.read(sequences, [()] * len(drafting))
        going = [
            (one, rows) for one, rows in zip(drafting, logits, strict=True) if rows is not None
        ]
        while going:
            self._choose([one for one, _ in going], torch.cat([rows for _, rows in going]))
            left = [one for one, _ in going if not one.ended]
            read = [self.vocabulary.to_draft(one.token_ids[-1:])[0] for one in left]
            rows = self._draft.extend([one.request.sequence for one in left], read) if left else []
            going = list(zip(left, rows, strict=True))

    def _draft_at_once(self, drafting: list[_Drafting], mask_id: int) -> None:
        """All tokens in one pass (An et al., 2025, "PARD"): masks stand for the tokens to come, and
        what the model says at each is a token."""
        sequences = [one.request.sequence for one in drafting]
        logits = self._draft.read(sequences, [[mask_id] * (one.most - 1) for one in drafting])
        for one, rows in zip(drafting, logits, strict=True):
            for row in rows if rows is not None else ():
                if not one.ended:
                    self._choose([one], row[None])

    def _choose(self, drafting: Sequence[_Drafting], logits: Tensor) -> None:
        """The next token of each draft; ``(n, draft vocab)`` logits."""
        shared = logits[:, self._shared] if len(self._shared) < logits.shape[1] else logits
        best = shared.max(-1)
        chances = (best.values - shared.logsumexp(-1)).exp().tolist()
        tops = best.indices.tolist()
        for i, one in enumerate(drafting):
            if one.sampling is None:
                token = int(self._targets[tops[i]])
                if token in self._forbidden:
                    one.ended = True
                else:
                    one.add(token, chances[i])
            else:
                self._draw(one, one.sampling, shared[i])

    def _draw(self, one: _Drafting, sampling: DraftSampling, shared: Tensor) -> None:
        """The forbidden tokens are left out before: to end a draft at a token because of what was
        drawn would favour the others (see ``grammar.constrain``)."""
        logits = shared / sampling.temperature
        logits[self._excluded] = -torch.inf
        q = np.zeros(self._target_size, np.float32)
        q[self._targets] = logits.softmax(-1).cpu().numpy()
        start = sampling.position
        position = start + len(one.token_ids)
        token = draw_draft_token(q, sampling.seed, position, start, coupled=sampling.coupled)
        one.drawn_from.append(q)
        one.add(token, float(q[token]))

    def finish(self, request: RequestHandle, *, keep: bool = True) -> None:
        """See :meth:`Proposer.finish`. Keys and values wait for the session's next turn."""
        with self._draft.lock:
            self._draft.close(self._requests.remove(request).sequence, keep=keep)

    def end_session(self, session_id: str) -> None:
        """See :meth:`Proposer.end_session`."""
        with self._draft.lock:
            self._draft.cache.end_session(self._namespace, session_id)


def _num_tokens(config: SpeculativeConfig, draft: DraftModel) -> int:
    predicted = getattr(draft.model.module.config, "n_predict", None)
    number = config.num_speculative_tokens or predicted
    if not number:
        raise ConfigError(
            "num_speculative_tokens: missing, and the draft model's configuration has no "
            "n_predict; give a number of draft tokens per step, greater than zero"
        )
    return int(number)


def _mask_id(draft: DraftModel) -> int:
    config = draft.model.module.config
    for key in _MASK_KEYS:
        token_id = getattr(config, key, None)
        if isinstance(token_id, int) and 0 <= token_id < draft.model.vocab_size:
            return token_id
    raise ConfigError(
        f"parallel_drafting: the model {draft.model.name!r} is not made for it: its configuration "
        f"has none of {', '.join(_MASK_KEYS)}; leave the key out, or use a model adapted to it"
    )
