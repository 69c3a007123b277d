"""Proposers: one contract (:mod:`.base`), one file per method, and this registry at the door.

Methods are imported when they are first asked for, so that using one does not pay for the others.
Rooms above add theirs with :func:`register`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Set
from typing import cast

from numpy.typing import ArrayLike

from suffixspec_index.errors import ConfigError
from suffixspec_index.proposers.base import Proposer, RequestHandle
from suffixspec_index.speculative_config import METHODS, SpeculativeConfig
from suffixspec_index.tokens import as_forbidden_array, as_vocab_size

ProposerFactory = Callable[..., Proposer]
"""Called as ``factory(config, vocab_size=..., forbidden=...)``; ``forbidden`` is sorted int32."""

_BUILT_IN: dict[str, tuple[str, str]] = {
    "suffix": ("suffixspec_index.proposers.suffix", "SuffixProposer"),
    "ngram": ("suffixspec_index.proposers.ngram", "NgramProposer"),
    "prediction": ("suffixspec_index.proposers.prediction", "PredictionProposer"),
    "hybrid": ("suffixspec_index.proposers.hybrid", "create_hybrid"),
    "none": ("suffixspec_index.proposers.null", "NullProposer"),
}
_registered: dict[str, ProposerFactory] = {}


def register(method: str, factory: ProposerFactory) -> None:
    """Make ``factory`` the one that creates proposers for ``method``.

    Args:
        method: one of :data:`~suffixspec_index.speculative_config.METHODS`.
        factory: called as ``factory(config, vocab_size=..., forbidden=...)``.

    Raises:
        ConfigError: the configuration knows no such method, or it already has a factory.
    """
    if method not in METHODS:
        raise ConfigError(f"method: {method!r} is not one of {', '.join(METHODS)}")
    if method in _BUILT_IN or _registered.get(method, factory) is not factory:
        raise ConfigError(f"method: {method!r} is registered already")
    _registered[method] = factory


def available_methods() -> tuple[str, ...]:
    """The methods that :func:`create_proposer` can create now."""
    return (*_BUILT_IN, *sorted(_registered))


def create_proposer(
    config: SpeculativeConfig,
    *,
    vocab_size: int | None = None,
    forbidden_token_ids: ArrayLike | Set[int] = (),
) -> Proposer:
    """Create the proposer that ``config`` asks for.

    Args:
        config: what to propose.
        vocab_size: token ids are below it, in prompts, outputs and drafts; ``None``: unknown.
        forbidden_token_ids: ids that drafts never hold (special tokens, say): a draft ends before
            the first of them.

    Raises:
        ConfigError: the method is not available here, or the vocabulary size is out of range.
        TokenError: a forbidden id is not an integer or is negative.
    """
    factory = _factory(config)
    return factory(
        config,
        vocab_size=as_vocab_size(vocab_size),
        forbidden=as_forbidden_array(forbidden_token_ids, field="forbidden_token_ids"),
    )


def _factory(config: SpeculativeConfig) -> ProposerFactory:
    if config.method in _registered:
        return _registered[config.method]
    if config.method in _BUILT_IN:
        module, name = _BUILT_IN[config.method]
        return cast(ProposerFactory, getattr(importlib.import_module(module), name))
    raise ConfigError(
        f"method: {config.method!r} is not available in this version; available are "
        f"{', '.join(available_methods())}"
    )


__all__ = [
    "Proposer",
    "ProposerFactory",
    "RequestHandle",
    "available_methods",
    "create_proposer",
    "register",
]
