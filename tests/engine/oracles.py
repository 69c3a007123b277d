"""Proposers for tests: one that knows the truth and hides it in a tree of lies, one that breaks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from suffixspec_index.draft import Draft, Source
from suffixspec_index.proposers.base import Proposer, RequestHandle


class TreeOracle(Proposer):
    """Drafts random trees that hold the true continuation as far as chance lets them.

    Args:
        truth: prompt -> the tokens that the model will say.
        vocabulary: lies are drawn from it.
        honesty: chance that a next true token is among the nodes.
    """

    name: ClassVar[str] = "oracle"

    def __init__(
        self,
        truth: Mapping[tuple[int, ...], list[int]],
        vocabulary: int,
        *,
        honesty: float = 0.9,
        seed: int = 0,
    ) -> None:
        self._truth, self._vocabulary, self._honesty = truth, vocabulary, honesty
        self._rng = np.random.default_rng(seed)
        self._rest: dict[RequestHandle, list[int]] = {}
        self._next = 0
        self.kept: list[bool] = []

    def begin(
        self,
        session_id: str,
        prompt: ArrayLike,
        *,
        max_tokens: int | None = None,
        prediction: ArrayLike | None = None,
    ) -> RequestHandle:
        self._next += 1
        self._rest[self._next] = list(self._truth[tuple(np.asarray(prompt).tolist())])
        return self._next

    def advance(self, request: RequestHandle, token_ids: ArrayLike) -> None:
        for token in np.asarray(token_ids).tolist():
            rest = self._rest[request]
            if rest:
                assert rest.pop(0) == token

    def propose(self, request: RequestHandle, limit: int | None = None) -> Draft:
        most = 12 if limit is None else min(limit, 12)
        size = int(self._rng.integers(0, most + 1))
        rest = list(self._rest[request])
        tokens: list[int] = []
        parents: list[int] = []
        tip = -1  # the last true node
        while len(tokens) < size:
            if rest and self._rng.random() < self._honesty:
                parent, token = tip, rest[0]
            else:
                parent = int(self._rng.integers(-1, len(tokens)))
                token = int(self._rng.integers(0, self._vocabulary))
            if (parent, token) in zip(parents, tokens, strict=True):
                if parent == tip and rest and token == rest[0]:
                    rest.pop(0)
                    tip = next(
                        i for i, pair in enumerate(zip(parents, tokens, strict=True))
                        if pair == (parent, token)
                    )  # fmt: skip
                continue
            tokens.append(token)
            parents.append(parent)
            if parent == tip and rest and token == rest[0]:
                tip = len(tokens) - 1
                rest.pop(0)
        return Draft(
            np.array(tokens, np.int32),
            np.array(parents, np.int32),
            np.ones(len(tokens), np.float32),
            np.full(len(tokens), Source.GLOBAL, np.uint8),
        )

    def finish(self, request: RequestHandle, *, keep: bool = True) -> None:
        del self._rest[request]
        self.kept.append(keep)

    def end_session(self, session_id: str) -> None:
        pass


class Broken(Proposer):
    """Raises in one of its calls, or drafts what must not be drafted."""

    name: ClassVar[str] = "broken"

    def __init__(self, where: str) -> None:
        self.where = where

    def _maybe(self, here: str) -> None:
        if here == self.where:
            raise RuntimeError(f"broken in {here}")

    def begin(self, session_id: str, prompt: ArrayLike, **_: Any) -> RequestHandle:
        self._maybe("begin")
        return 1

    def advance(self, request: RequestHandle, token_ids: ArrayLike) -> None:
        self._maybe("advance")

    def propose(self, request: RequestHandle, limit: int | None = None) -> Draft:
        self._maybe("propose")
        tokens = {"vocabulary": [10**6], "negative": [-1], "long": [1] * 400}.get(self.where, [1])
        return Draft.path(tokens, source=Source.SESSION)

    def finish(self, request: RequestHandle, *, keep: bool = True) -> None:
        self._maybe("finish")

    def end_session(self, session_id: str) -> None:
        self._maybe("end_session")
