"""A batch as vLLM's model runner keeps it, with scripted texts instead of a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suffixspec_engine.vllm.identify import BatchFacts
from suffixspec_engine.vllm.proposer import SuffixSpecProposer

VOCAB = 1000


def vllm_config(
    *,
    most: int = 8,
    max_model_len: int = 4096,
    additional: dict[str, Any] | None = None,
    **spec: Any,
) -> Any:
    """As much of a ``VllmConfig`` as the plug-in reads."""
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=most, **spec),
        model_config=SimpleNamespace(
            max_model_len=max_model_len,
            model="test/model",
            served_model_name=None,
            get_vocab_size=lambda: VOCAB,
        ),
        additional_config={"suffixspec": additional or {}},
    )


@dataclass
class Scripted:
    """A request whose output is known beforehand."""

    name: str
    prompt: list[int]
    output: list[int]
    adapter: str = ""
    said: int = 0
    draft: list[int] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0

    @property
    def done(self) -> bool:
        return self.said >= len(self.output)

    def verify(self) -> list[int]:
        """One step: the accepted draft tokens and one more."""
        rest = self.output[self.said :]
        n = 0
        while n < min(len(self.draft), len(rest) - 1) and self.draft[n] == rest[n]:
            n += 1
        self.drafted += len(self.draft)
        self.accepted += n
        self.said += n + 1
        return rest[: n + 1]


class Batch:
    """Rows of requests, closed up as vLLM closes them when one leaves."""

    def __init__(self, proposer: SuffixSpecProposer, *, identified: bool, rows: int = 8) -> None:
        self.proposer, self.identified = proposer, identified
        self.rows: list[Scripted] = []
        self.tokens: NDArray[np.int32] = np.zeros((rows, proposer.max_model_len), np.int32)
        self.lengths: NDArray[np.int32] = np.zeros(rows, np.int32)
        self.gone: set[str] = set()

    def add(self, request: Scripted) -> None:
        """Also after a preemption: what it had said is written again."""
        row = len(self.rows)
        self.rows.append(request)
        context = request.prompt + request.output[: request.said]
        self.tokens[row, : len(context)] = context
        self.lengths[row] = len(context)

    def remove(self, request: Scripted, *, finished: bool) -> None:
        row, last = self.rows.index(request), len(self.rows) - 1
        if finished:
            self.gone.add(request.name)
        request.draft = []
        if row != last:  # the last row takes its place
            self.rows[row] = self.rows[last]
            self.tokens[row] = self.tokens[last]
            self.lengths[row] = self.lengths[last]
        self.rows.pop()

    def step(self, computing: frozenset[str] = frozenset()) -> None:
        """Verify the drafts, then propose; rows named in ``computing`` are in their prompt."""
        sampled: list[list[int]] = []
        for row, request in enumerate(self.rows):
            gained = [] if request.name in computing else request.verify()
            n = int(self.lengths[row])
            self.tokens[row, n : n + len(gained)] = gained
            self.lengths[row] = n + len(gained)
            sampled.append(gained)
        if self.identified:
            self.proposer.identify(
                BatchFacts(
                    tuple(r.name for r in self.rows),
                    tuple(len(r.prompt) for r in self.rows),
                    tuple(r.adapter for r in self.rows),
                    frozenset(self.gone),
                )
            )
            self.gone.clear()
        drafts = self.proposer.propose(sampled, self.lengths, self.tokens)
        assert len(drafts) == len(self.rows)
        for request, draft, gained in zip(self.rows, drafts, sampled, strict=True):
            assert type(draft) is list
            assert all(type(token) is int and 0 <= token < VOCAB for token in draft)
            assert len(draft) <= self.proposer.num_speculative_tokens
            assert not draft or gained
            request.draft = draft
