"""One proposer per LoRA adapter: what one adapter says is no draft for another."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from suffixspec_engine.vllm.rows import LiveRequest
from suffixspec_engine.vllm.settings import PluginSettings
from suffixspec_index.draft import Draft, DraftBatch
from suffixspec_index.index import SuffixIndex
from suffixspec_index.index_config import IndexConfig
from suffixspec_index.namespaces import NamespaceKey
from suffixspec_index.proposers import create_proposer
from suffixspec_index.proposers.base import Proposer
from suffixspec_index.proposers.suffix import SuffixProposer
from suffixspec_index.warm_up import warm_up

_log = logging.getLogger(__name__)

Share = Callable[[NamespaceKey, SuffixIndex | None, Proposer], Proposer]
"""Puts a proposer that shares what it learns with other processes in another's place."""


class Adapters:
    """The proposers of a process, each with an index of its own.

    Args:
        settings: what to propose.
        key: the namespace without an adapter.
        vocab_size: of the model.
        share: see :data:`Share`; ``None``: nothing is shared.
    """

    def __init__(
        self,
        settings: PluginSettings,
        key: NamespaceKey,
        *,
        vocab_size: int,
        share: Share | None = None,
    ) -> None:
        self._settings = settings
        self._key = key
        self._vocab_size = vocab_size
        self._share = share
        self._proposers: dict[str, Proposer] = {}

    def proposer(self, adapter: str) -> Proposer:
        """The adapter's proposer, made at the first call."""
        found = self._proposers.get(adapter)
        if found is None:
            found = self._proposers[adapter] = self._create(adapter)
        return found

    def advance(self, gained: Sequence[tuple[LiveRequest, NDArray[np.int32]]]) -> None:
        """Tell requests what they gained; one call per adapter."""
        for adapter in dict.fromkeys(request.adapter for request, _ in gained):
            rows = [(r, tokens) for r, tokens in gained if r.adapter == adapter and len(tokens)]
            if rows:
                offsets = np.zeros(len(rows) + 1, np.int64)
                np.cumsum([len(tokens) for _, tokens in rows], out=offsets[1:])
                ids = np.concatenate([tokens for _, tokens in rows])
                handles = [request.handle for request, _ in rows]
                self.proposer(adapter).advance_batch(handles, ids, offsets)

    def propose(
        self,
        requests: Sequence[LiveRequest],
        limits: NDArray[np.int32],
        min_prob: float | None = None,
    ) -> DraftBatch:
        """A draft per request, at most ``limits`` long; one call per adapter."""
        drafts = [Draft.empty()] * len(requests)
        for adapter in dict.fromkeys(request.adapter for request in requests):
            asked = [i for i, r in enumerate(requests) if r.adapter == adapter and limits[i] > 0]
            if not asked:
                continue
            proposer = self.proposer(adapter)
            handles = [requests[i].handle for i in asked]
            if min_prob is not None and proposer.takes_min_prob:
                batch = cast(SuffixProposer, proposer).propose_batch(
                    handles, limits[asked], min_prob=min_prob
                )
            else:
                batch = proposer.propose_batch(handles, limits[asked])
            if len(asked) == len(requests):
                return batch
            for i, draft in zip(asked, batch, strict=True):
                drafts[i] = draft
        return DraftBatch.of(drafts)

    def end_session(self, session_id: str) -> None:
        """Forget a conversation's own memory, whichever adapter it had."""
        for proposer in self._proposers.values():
            proposer.end_session(session_id)

    def warm_up(self) -> None:
        """Compile or load the kernels, and make the proposer of the model itself."""
        if self._settings.speculative.method == "suffix":
            warm_up(lambda doing: _log.info("suffixspec: %s", doing))
        self.proposer("")

    def _create(self, adapter: str) -> Proposer:
        config = self._settings.speculative
        if config.method != "suffix":
            return create_proposer(config, vocab_size=self._vocab_size)
        index = SuffixIndex(
            IndexConfig.from_speculative(config, max_bytes=self._settings.max_bytes),
            vocab_size=self._vocab_size,
        )
        proposer: Proposer = SuffixProposer(config, index=index)
        if self._share is not None:
            proposer = self._share(replace(self._key, adapter=adapter), index, proposer)
        return proposer


def namespace_of(settings: PluginSettings, vllm_config: Any) -> NamespaceKey:
    """The namespace that this process drafts in; equal in every replica of the same model."""
    model = vllm_config.model_config
    name = getattr(model, "served_model_name", None) or model.model
    if isinstance(name, list):
        name = name[0]
    tokenizer = _fingerprint(model) if settings.log is not None else ""
    return NamespaceKey(settings.tenant, str(name), tokenizer)


def _fingerprint(model_config: Any) -> str:
    """The tokenizer's fingerprint; only sharing needs it, and it takes a second."""
    from vllm.tokenizers.registry import cached_tokenizer_from_config

    from suffixspec_index.fingerprint import tokenizer_fingerprint

    return tokenizer_fingerprint(cached_tokenizer_from_config(model_config).backend_tokenizer)
