"""suffixspec: speculation for agentic LLM workloads, centred on suffix trees.

The public face. What is heavy to import (anything that compiles kernels) is imported when it is
first used.

>>> import suffixspec
>>> config = suffixspec.SpeculativeConfig(method="ngram", num_speculative_tokens=4)
>>> proposer = suffixspec.create_proposer(config, vocab_size=1000)
>>> request = proposer.begin("session", [5, 6, 7, 8, 9, 5, 6, 7, 8, 9])
>>> proposer.propose(request).token_ids.tolist()
[5, 6, 7, 8]
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any

from suffixspec_index.errors import (
    CapacityError,
    ConfigError,
    InputError,
    IntegrityError,
    LookupFailure,
    MissingDependencyError,
    NoCompletionsError,
    SnapshotCorruptError,
    SnapshotError,
    SnapshotFormatError,
    SuffixSpecError,
    TokenError,
    TokenizerError,
    TraceError,
    TraceFormatError,
    UnknownNamespaceError,
    UnknownRequestError,
    UnknownSessionError,
)

if TYPE_CHECKING:
    from suffixspec.settings import LoadedSettings, Settings, load_settings
    from suffixspec_index.acceptance import AcceptanceModel
    from suffixspec_index.draft import Draft, DraftBatch, Source
    from suffixspec_index.index import IndexStatistics, SuffixIndex
    from suffixspec_index.index_config import IndexConfig
    from suffixspec_index.log import open_log
    from suffixspec_index.namespaces import NamespaceKey, Namespaces
    from suffixspec_index.proposers import (
        Proposer,
        RequestHandle,
        available_methods,
        create_proposer,
        register,
    )
    from suffixspec_index.sharing import Sharing, SharingConfig
    from suffixspec_index.snapshot import load_index, load_tree, save_index, save_tree
    from suffixspec_index.speculative_config import METHODS, SpeculativeConfig
    from suffixspec_index.tree import SuffixTree, TreeStatistics

    __version__: str

_LAZY = {
    "AcceptanceModel": "suffixspec_index.acceptance",
    "Draft": "suffixspec_index.draft",
    "DraftBatch": "suffixspec_index.draft",
    "IndexConfig": "suffixspec_index.index_config",
    "IndexStatistics": "suffixspec_index.index",
    "LoadedSettings": "suffixspec.settings",
    "METHODS": "suffixspec_index.speculative_config",
    "NamespaceKey": "suffixspec_index.namespaces",
    "Namespaces": "suffixspec_index.namespaces",
    "Proposer": "suffixspec_index.proposers",
    "RequestHandle": "suffixspec_index.proposers",
    "Settings": "suffixspec.settings",
    "Sharing": "suffixspec_index.sharing",
    "SharingConfig": "suffixspec_index.sharing",
    "Source": "suffixspec_index.draft",
    "SpeculativeConfig": "suffixspec_index.speculative_config",
    "SuffixIndex": "suffixspec_index.index",
    "SuffixTree": "suffixspec_index.tree",
    "TreeStatistics": "suffixspec_index.tree",
    "available_methods": "suffixspec_index.proposers",
    "create_proposer": "suffixspec_index.proposers",
    "load_index": "suffixspec_index.snapshot",
    "load_settings": "suffixspec.settings",
    "load_tree": "suffixspec_index.snapshot",
    "open_log": "suffixspec_index.log",
    "register": "suffixspec_index.proposers",
    "save_index": "suffixspec_index.snapshot",
    "save_tree": "suffixspec_index.snapshot",
}

__all__ = [
    "METHODS",
    "AcceptanceModel",
    "CapacityError",
    "ConfigError",
    "Draft",
    "DraftBatch",
    "IndexConfig",
    "IndexStatistics",
    "InputError",
    "IntegrityError",
    "LoadedSettings",
    "LookupFailure",
    "MissingDependencyError",
    "NamespaceKey",
    "Namespaces",
    "NoCompletionsError",
    "Proposer",
    "RequestHandle",
    "Settings",
    "Sharing",
    "SharingConfig",
    "SnapshotCorruptError",
    "SnapshotError",
    "SnapshotFormatError",
    "Source",
    "SpeculativeConfig",
    "SuffixIndex",
    "SuffixSpecError",
    "SuffixTree",
    "TokenError",
    "TokenizerError",
    "TraceError",
    "TraceFormatError",
    "TreeStatistics",
    "UnknownNamespaceError",
    "UnknownRequestError",
    "UnknownSessionError",
    "__version__",
    "available_methods",
    "create_proposer",
    "load_index",
    "load_settings",
    "load_tree",
    "open_log",
    "register",
    "save_index",
    "save_tree",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.metadata.version("suffixspec")
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'suffixspec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
