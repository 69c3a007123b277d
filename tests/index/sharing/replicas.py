"""Replicas in one process: each with an index, a proposer and a sharing of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from suffixspec_index.index import SuffixIndex
from suffixspec_index.index_config import IndexConfig
from suffixspec_index.log import SequenceLog
from suffixspec_index.namespaces import NamespaceKey
from suffixspec_index.proposers.base import Proposer
from suffixspec_index.proposers.suffix import SuffixProposer
from suffixspec_index.sharing import Sharing, SharingConfig

KEY = NamespaceKey("tenant", "model", "tokenizer")
LONG = 60.0  # seconds to wait for what takes milliseconds, so that a busy machine fails no test


class Replica:
    """One process's part."""

    def __init__(
        self,
        log: SequenceLog,
        config: SharingConfig | None = None,
        *,
        key: NamespaceKey = KEY,
        attach: bool = True,
        **changes: Any,
    ) -> None:
        values: dict[str, Any] = {"depth": 6, "session_depth": 4, "live_chunk": 5}
        values |= {"min_token_prob": 0.0, "learning_rate": 0.0} | changes
        self.key = key
        self.index = SuffixIndex(IndexConfig(**values))
        self.sharing = Sharing(log, config)
        self.proposer: Proposer = SuffixProposer(index=self.index)
        if attach:
            self.attach()

    def attach(self) -> None:
        self.proposer = self.sharing.attach(self.key, self.index, self.proposer)

    def begin(self, session: str, prompt: Any = (0,)) -> int:
        return self.proposer.begin(session, prompt)

    def say(self, session: str, tokens: Any, *, keep: bool = True) -> None:
        """A whole request."""
        request = self.begin(session)
        self.proposer.advance(request, np.asarray(tokens, np.int32))
        self.proposer.finish(request, keep=keep)
        self.proposer.end_session(session)

    def sequences(self) -> Counter[tuple[int, ...]]:
        """What the global tree holds."""
        world = self.index.world
        with self.index._lock.reading():
            return Counter(tuple(world.sequence_tokens(s).tolist()) for s in world)

    def windows(self) -> Counter[tuple[int, ...]]:
        """Every string of the tree up to its depth, with its count as the tree tells it."""
        world = self.index.world
        texts = {
            text[i : i + n]
            for text in self.sequences()
            for i in range(len(text))
            for n in range(1, world.depth + 1)
        }
        with self.index._lock.reading():
            return Counter({text: world.count(list(text)) for text in texts})


@contextmanager
def closing(replicas: Sequence[Replica]) -> Iterator[None]:
    """Close them at the end, whatever happens."""
    try:
        yield
    finally:
        for replica in replicas:
            replica.sharing.close()


def settle(replicas: Sequence[Replica]) -> None:
    """Wait until every replica has taken in what all of them said."""
    for replica in replicas:
        assert replica.sharing.flush(LONG)
    for replica in replicas:
        assert replica.sharing.wait_until_current(LONG)


def assert_equal(replicas: Sequence[Replica]) -> None:
    """The same sequences, the same counts; every tree in order."""
    first = replicas[0]
    for replica in replicas:
        replica.index.check_integrity()
        assert replica.sequences() == first.sequences()
        assert replica.windows() == first.windows()
