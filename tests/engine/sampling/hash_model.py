"""A random "model" (logits depend on the tokens so far alone) and drafts to try on it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from suffixspec_engine.sampling import (
    GrammarMatcher,
    Method,
    RowState,
    SamplingParams,
    Verdict,
    verify,
)
from suffixspec_index.draft import Draft, Source

Drafter = Callable[[list[int], int, np.random.Generator], tuple[Draft, torch.Tensor | None]]
"""``(context, limit, rng) -> (draft, draft_probs)``"""


@dataclass
class HashModel:
    """Logits are drawn from a generator seeded by the last ``order`` tokens."""

    vocab_size: int = 24
    order: int = 3
    spread: float = 2.0
    salt: str = ""
    _known: dict[tuple[int, ...], NDArray[np.float32]] = field(default_factory=dict, repr=False)

    def row(self, context: Sequence[int]) -> NDArray[np.float32]:
        last = tuple(context[-self.order :])
        if last not in self._known:
            key = f"{self.salt}{list(last)}".encode()
            seed = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
            row = np.random.default_rng(seed).standard_normal(self.vocab_size) * self.spread
            self._known[last] = row.astype(np.float32)
        return self._known[last]

    def rows(self, context: list[int], draft: Draft) -> torch.Tensor:
        """What a forward pass over the context's last token and the draft gives."""
        paths: list[list[int]] = []
        rows = [self.row(context)]
        for token, parent in zip(draft.token_ids.tolist(), draft.parents.tolist(), strict=True):
            paths.append([*(paths[parent] if parent >= 0 else []), token])
            rows.append(self.row([*context, *paths[-1]]))
        return torch.from_numpy(np.stack(rows))

    def softmax(self, context: Sequence[int]) -> NDArray[np.float32]:
        row = self.row(context)
        weight: NDArray[np.float32] = np.exp(row - row.max())
        weight /= weight.sum()
        return weight


@dataclass
class Run:
    """A whole request, step by step."""

    tokens: list[int]
    text: str
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def accepted(self) -> int:
        return sum(len(v.accepted) for v in self.verdicts)


def no_draft(
    context: list[int], limit: int, rng: np.random.Generator
) -> tuple[Draft, torch.Tensor | None]:
    return Draft.empty(), None


def tree_draft(
    context: list[int],
    limit: int,
    rng: np.random.Generator,
    *,
    model: HashModel,
    nodes: int = 12,
) -> tuple[Draft, torch.Tensor | None]:
    """A random tree of tokens that the model finds probable, so that many are accepted."""
    tokens: list[int] = []
    parents: list[int] = []
    paths: list[list[int]] = []
    for _ in range(int(rng.integers(0, nodes + 1))):
        parent = int(rng.integers(-1, len(tokens)))
        path = paths[parent] if parent >= 0 else []
        if len(path) >= limit:
            continue
        likely = np.argsort(-model.row([*context, *path]))
        token = int(likely[int(rng.integers(0, 4))])
        if (parent, token) in zip(parents, tokens, strict=True):
            continue
        tokens.append(token)
        parents.append(parent)
        paths.append([*path, token])
    n = len(tokens)
    draft = Draft(
        np.array(tokens, np.int32),
        np.array(parents, np.int32),
        np.full(n, 0.5, np.float32) ** np.array([len(p) for p in paths], np.float32),
        np.full(n, Source.SESSION, np.uint8),
    )
    draft.check_integrity()
    return draft, None


def path_draft(
    context: list[int],
    limit: int,
    rng: np.random.Generator,
    *,
    drafter: HashModel,
    length: int = 4,
) -> tuple[Draft, torch.Tensor | None]:
    """A path drawn token by token from a probabilistic drafter."""
    tokens: list[int] = []
    probs: list[NDArray[np.float32]] = []
    for _ in range(min(length, limit)):
        q = drafter.softmax([*context, *tokens])
        probs.append(q)
        tokens.append(int(np.searchsorted(np.cumsum(q, dtype=np.float64), rng.random() * q.sum())))
    if not tokens:
        return Draft.empty(), None
    return Draft.path(tokens, source=Source.DRAFT_MODEL), torch.from_numpy(np.stack(probs))


def generate(
    model: HashModel,
    prompt: list[int],
    params: SamplingParams,
    drafter: Drafter = no_draft,
    *,
    seed: int = 0,
    rng: np.random.Generator | None = None,
    method: Method = "coupled",
    eos: frozenset[int] = frozenset(),
    detokenizer: Callable[[], object] | None = None,
    grammar: GrammarMatcher | None = None,
) -> Run:
    """What an engine does with one request."""
    state = RowState(
        prompt_token_ids=prompt,
        seed=seed,
        eos_token_ids=eos,
        detokenizer=None if detokenizer is None else detokenizer(),  # type: ignore[arg-type]
    )
    rng = rng or np.random.default_rng(0)
    run = Run([], "")
    while not run.verdicts or not run.verdicts[-1].finished:
        context = [*prompt, *state.output_token_ids]
        draft, probs = drafter(context, state.draft_limit(params), rng)
        verdict = verify(model.rows(context, draft), draft, state, params, method, probs, grammar)
        assert draft.accepted_by(verdict.token_ids)[: len(verdict.accepted)] == list(
            verdict.accepted
        )
        assert verdict.token_ids
        extra = len(verdict.token_ids) - len(verdict.accepted)
        assert extra == 1 or (extra == 0 and verdict.finished)
        state.commit(verdict, grammar)
        run.verdicts.append(verdict)
    run.tokens, run.text = state.output_token_ids, state.text
    return run
