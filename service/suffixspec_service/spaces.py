"""Spaces: for each namespace a caller uses, the proposer that drafts in it and its index.

The tenant comes from the caller's key, so nobody can name another's namespace. A space is made
when it is first asked for and stays; ``max_namespaces`` bounds how many one tenant can make.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from suffixspec_index.errors import ConfigError, LimitExceededError
from suffixspec_index.fingerprint import tokenizer_fingerprint
from suffixspec_index.index import IndexStatistics, SuffixIndex
from suffixspec_index.index_config import IndexConfig
from suffixspec_index.namespaces import NamespaceKey, Namespaces
from suffixspec_index.proposers import create_proposer
from suffixspec_index.proposers.base import Proposer
from suffixspec_index.proposers.hybrid import HybridProposer
from suffixspec_index.proposers.members import Member
from suffixspec_index.proposers.prediction import PredictionProposer
from suffixspec_index.proposers.suffix import SuffixProposer
from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_service.callers import Tenant

if TYPE_CHECKING:
    from suffixspec_engine.models import TargetModel

Share = Callable[[NamespaceKey, SuffixIndex | None, Proposer], Proposer]
"""Called for each new space; returns the proposer to use instead, which also shares what it
learns with other processes."""

ProposerOf = Callable[[str], Proposer | None]
"""Gives the proposer of a namespace by its digest, where drafting needs a model."""


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """Whose tokens a space holds.

    Attributes:
        name: what requests call the model.
        tokenizer: a fingerprint: equal ids mean equal texts only where it is equal.
        vocab_size: ids are below it; ``None``: unknown.
        max_model_len: most tokens of prompt and output; ``None``: unknown.
    """

    name: str
    tokenizer: str
    vocab_size: int | None = None
    max_model_len: int | None = None

    @classmethod
    def of(cls, model: TargetModel, name: str | None = None) -> ModelIdentity:
        """The identity of a loaded model; without a tokenizer, its name stands for that."""
        backend = getattr(model.tokenizer, "backend_tokenizer", None)
        return cls(
            name=name or model.name,
            tokenizer=tokenizer_fingerprint(backend) if backend is not None else model.name,
            vocab_size=model.vocab_size,
            max_model_len=model.max_model_len,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """What drafts in one namespace.

    Attributes:
        key: the namespace.
        model: whose tokens.
        proposer: drafts for its requests; thread-safe, so HTTP and gRPC use the same one.
        predictive: drafts for requests that carry a prediction: from that, and otherwise as
            ``proposer`` (but for method ``draft_model``: that and predictions together is what
            ``hybrid`` is for).
        index: the suffix index, where the method has one.
    """

    key: NamespaceKey
    model: ModelIdentity
    proposer: Proposer
    predictive: Proposer
    index: SuffixIndex | None


class Spaces:
    """The spaces of a process. Thread-safe.

    Args:
        speculative: what is proposed, in every space.
        model: whose tokens, where a request names no other; ``None``: each must name one.
        max_namespaces: of one tenant.
        proposer_of: of the engine that serves ``model``; asked where the method runs a draft
            model, which is loaded once and keeps namespaces apart.
        share: see :data:`Share`.
    """

    def __init__(
        self,
        speculative: SpeculativeConfig,
        model: ModelIdentity | None = None,
        *,
        max_namespaces: int = 16,
        proposer_of: ProposerOf | None = None,
        share: Share | None = None,
    ) -> None:
        self.speculative = speculative
        self.model = model
        self._suffix = _suffix_part(speculative)
        self.namespaces = Namespaces(
            IndexConfig.from_speculative(self._suffix) if self._suffix is not None else None
        )
        self._max_namespaces = max_namespaces
        self._proposer_of = proposer_of
        self._share = share
        self._lock = threading.Lock()
        self._spaces: dict[NamespaceKey, Space] = {}

    def of(self, tenant: Tenant, adapter: str = "", *, model: ModelIdentity | None = None) -> Space:
        """The tenant's space for a model; made at the first call, which takes about a millisecond.

        Args:
            tenant: who asks.
            adapter: the LoRA adapter or the like; empty: none.
            model: whose tokens; ``None``: those of the model that is served.

        Raises:
            ConfigError: no model is named, and none is served; or the method runs a draft model
                and the tokens are not those of the model that is served.
            InputError: the namespace has another vocabulary size.
            LimitExceededError: the tenant has as many namespaces as it may.
        """
        model = model or self.model
        if model is None:
            raise ConfigError("model: this service runs no model of its own; name the engine's")
        key = NamespaceKey(tenant.name, model.name, model.tokenizer, adapter)
        with self._lock:
            space = self._spaces.get(key)
            if space is None or space.model.vocab_size != model.vocab_size:
                self._check_number(key)
                space = self._make(key, model, tenant.limits.index_bytes)
                self._spaces[key] = space
            return space

    def all(self, tenant: str | None = None) -> list[Space]:
        """Every space, or those of one tenant, in order of creation."""
        with self._lock:
            spaces = list(self._spaces.values())
        return [space for space in spaces if tenant is None or space.key.tenant == tenant]

    def statistics(self, tenant: str | None = None) -> dict[NamespaceKey, IndexStatistics]:
        """Sizes of the indexes, of all or of one tenant."""
        return {
            space.key: space.index.statistics()
            for space in self.all(tenant)
            if space.index is not None
        }

    @property
    def live_requests(self) -> int:
        """Requests that have begun in an index and not ended."""
        return sum(found.requests for found in self.statistics().values())

    @property
    def nbytes(self) -> int:
        """Allocated bytes of all indexes."""
        return self.namespaces.nbytes

    def _check_number(self, key: NamespaceKey) -> None:
        if key in self._spaces:
            return
        held = sum(other.tenant == key.tenant for other in self._spaces)
        if held >= self._max_namespaces:
            raise LimitExceededError(
                f"model: {key.model!r} would be namespace {held + 1} of this caller, who may have "
                f"{self._max_namespaces}; use fewer models and adapters",
                retry_after=3600,
            )

    def _make(self, key: NamespaceKey, model: ModelIdentity, max_bytes: int | None) -> Space:
        size = model.vocab_size
        with_model = self._of_engine(key, model)
        index: SuffixIndex | None = None
        proposer: Proposer
        if self._suffix is not None:
            index = self.namespaces.get_or_create(key, vocab_size=size, max_bytes=max_bytes)
            proposer = SuffixProposer(self._suffix, index=index)
            if isinstance(with_model, HybridProposer):
                proposer = _over(with_model, proposer, size)
        else:
            proposer = with_model or create_proposer(self.speculative, vocab_size=size)
        if self._share is not None:
            proposer = self._share(key, index, proposer)
        if isinstance(with_model, HybridProposer):
            return Space(key, model, proposer, proposer, index)
        return Space(key, model, proposer, self._predictive(proposer, index, size), index)

    def _of_engine(self, key: NamespaceKey, model: ModelIdentity) -> Proposer | None:
        """The engine's proposer, where the method runs a draft model."""
        config = self.speculative
        if config.method != "draft_model" and not (config.method == "hybrid" and config.model):
            return None
        served = self.model
        if self._proposer_of is None or served is None:
            raise ConfigError(
                f"method: {config.method!r} with a draft model needs an engine in this service; "
                "serve a model, or use method 'suffix'"
            )
        if (model.tokenizer, model.vocab_size) != (served.tokenizer, served.vocab_size):
            raise ConfigError(
                f"model: {model.name!r} has another tokenizer than {served.name!r}, which the "
                "draft model of this service drafts for"
            )
        return self._proposer_of(key.digest)

    def _predictive(
        self, proposer: Proposer, index: SuffixIndex | None, size: int | None
    ) -> Proposer:
        """Per step the better of prediction and index. A hybrid's members are its own, so the
        index gets another proposer; what it learns is the index's, and shared as before."""
        if self.speculative.method in ("prediction", "hybrid") and self._suffix is None:
            return proposer
        prediction = PredictionProposer(SpeculativeConfig(method="prediction"), vocab_size=size)
        members = [Member(prediction, needs_prediction=True)]
        if index is not None and self._suffix is not None:
            members.insert(0, Member(SuffixProposer(self._suffix, index=index)))
        elif self.speculative.method == "ngram":
            members.append(Member(create_proposer(self.speculative, vocab_size=size)))
        return HybridProposer(members, vocab_size=size)


def _suffix_part(config: SpeculativeConfig) -> SpeculativeConfig | None:
    """The configuration of the index, where the method is one or has one."""
    if config.method == "suffix":
        return config
    if config.method == "hybrid":
        return replace(config, method="suffix", model=None, use_heterogeneous_vocab=False)
    return None


def _over(hybrid: HybridProposer, suffix: SuffixProposer, size: int | None) -> HybridProposer:
    """A hybrid with the index of the space, whose budget the tenant's limits set, in the place of
    the one that it was made with."""
    members = [
        Member(suffix) if isinstance(member.proposer, SuffixProposer) else member
        for member in hybrid.members
    ]
    return HybridProposer(members, vocab_size=size)
