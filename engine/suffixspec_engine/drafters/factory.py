"""Who drafts in which namespace: a proposer for each, made when its first request comes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from tokenizers import Tokenizer

from suffixspec_engine.drafters.draft_model import DraftModelProposer
from suffixspec_engine.drafters.draft_runner import CACHE_BYTES, DraftModel
from suffixspec_engine.drafters.vocabulary import VocabularyMap
from suffixspec_engine.models import TargetModel, dtype_name
from suffixspec_index.errors import InputError
from suffixspec_index.proposers import create_proposer
from suffixspec_index.proposers.base import Proposer
from suffixspec_index.proposers.hybrid import create_hybrid
from suffixspec_index.proposers.members import Member
from suffixspec_index.speculative_config import SpeculativeConfig

MODEL_METHODS = ("draft_model",)
"""Methods that this package adds to those of ``suffixspec_index``."""


class ProposerSource(Protocol):
    """Makes the proposer of a namespace."""

    def __call__(self, namespace: str) -> Proposer:
        """A new proposer, which shares no drafts with others."""


class EngineProposers:
    """Makes proposers for a target model by a configuration. A draft model is loaded once, by the
    constructor, and serves all namespaces; their keys and values stay apart.

    Args:
        config: what to propose.
        target: the model that verifies.
        tokenizer: gives the target's tokenizer; asked for only where there is a draft model.
        cache_bytes: budget for the draft model's keys and values.

    Raises:
        ConfigError: as for :class:`DraftModelProposer`, :meth:`DraftModel.load` and
            :func:`~suffixspec_index.proposers.create_proposer`.
    """

    def __init__(
        self,
        config: SpeculativeConfig,
        target: TargetModel,
        tokenizer: Callable[[], Tokenizer],
        *,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self._config, self._target = config, target
        self._vocabulary: VocabularyMap | None = None
        self._draft: DraftModel | None = None
        if config.method == "draft_model" or (config.method == "hybrid" and config.model):
            self._tokenizer = tokenizer()
            self._draft = DraftModel.load(
                config,
                dtype=dtype_name(target.dtype),
                device=str(target.device),
                cache_bytes=cache_bytes,
            )
            self._vocabulary = self._model_proposer("").vocabulary

    def __call__(self, namespace: str) -> Proposer:
        """See :class:`ProposerSource`."""
        if self._config.method == "draft_model":
            return self._model_proposer(namespace)
        if self._draft is None:
            return create_proposer(self._config, vocab_size=self._target.vocab_size)
        cost = self._config.draft_token_cost
        if cost is None:
            cost = _size(self._draft.model) / _size(self._target)
        drafter = Member(self._model_proposer(namespace), token_cost=cost)
        return create_hybrid(self._config, vocab_size=self._target.vocab_size, drafter=drafter)

    def _model_proposer(self, namespace: str) -> DraftModelProposer:
        assert self._draft is not None
        return DraftModelProposer(
            self._config,
            self._draft,
            self._tokenizer,
            vocab_size=self._target.vocab_size,
            namespace=namespace,
            vocabulary=self._vocabulary,
        )


def only_unnamed(proposer: Proposer) -> ProposerSource:
    """A given proposer serves requests without a namespace and no others: it could carry what one
    namespace said into the drafts, and so the timing, of another."""

    def source(namespace: str) -> Proposer:
        if namespace:
            raise InputError(
                f"namespace: the engine's proposer was made for requests without a namespace, not "
                f"for {namespace!r}; give the request a proposer of its own, or the engine a "
                "function that makes one per namespace"
            )
        return proposer

    return source


class NamespaceProposers:
    """The proposers made so far. Thread-safe.

    Args:
        source: makes one for a namespace.
    """

    def __init__(self, source: ProposerSource) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._made: dict[str, Proposer] = {}

    def get(self, namespace: str) -> Proposer:
        """The proposer of a namespace. Raises what the source raises."""
        with self._lock:
            if namespace not in self._made:
                self._made[namespace] = self._source(namespace)
            return self._made[namespace]

    def known(self, namespace: str) -> Proposer | None:
        """The proposer of a namespace if it was made already."""
        return self._made.get(namespace)

    def drop(self, namespace: str) -> None:
        """Forget a namespace's proposer and all it knows; running requests keep it to their end."""
        with self._lock:
            self._made.pop(namespace, None)


def _size(model: TargetModel) -> int:
    """Bytes read per forward pass, which is what a step of few tokens costs. Layers that were
    reordered keep their weights outside of parameters, so the files' shapes are counted."""
    return model.weight_bytes
