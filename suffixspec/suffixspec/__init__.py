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
    from suffixspec_index.draft import Draft, DraftBatch, Source
    from suffixspec_index.proposers import (
        Proposer,
        RequestHandle,
        available_methods,
        create_proposer,
        register,
    )
    from suffixspec_index.speculative_config import METHODS, SpeculativeConfig

    __version__: str

_LAZY = {
    "Draft": "suffixspec_index.draft",
    "DraftBatch": "suffixspec_index.draft",
    "LoadedSettings": "suffixspec.settings",
    "METHODS": "suffixspec_index.speculative_config",
    "Proposer": "suffixspec_index.proposers",
    "RequestHandle": "suffixspec_index.proposers",
    "Settings": "suffixspec.settings",
    "Source": "suffixspec_index.draft",
    "SpeculativeConfig": "suffixspec_index.speculative_config",
    "available_methods": "suffixspec_index.proposers",
    "create_proposer": "suffixspec_index.proposers",
    "load_settings": "suffixspec.settings",
    "register": "suffixspec_index.proposers",
}

__all__ = [
    "METHODS",
    "CapacityError",
    "ConfigError",
    "Draft",
    "DraftBatch",
    "InputError",
    "IntegrityError",
    "LoadedSettings",
    "LookupFailure",
    "MissingDependencyError",
    "NoCompletionsError",
    "Proposer",
    "RequestHandle",
    "Settings",
    "SnapshotCorruptError",
    "SnapshotError",
    "SnapshotFormatError",
    "Source",
    "SpeculativeConfig",
    "SuffixSpecError",
    "TokenError",
    "TokenizerError",
    "TraceError",
    "TraceFormatError",
    "UnknownNamespaceError",
    "UnknownRequestError",
    "UnknownSessionError",
    "__version__",
    "available_methods",
    "create_proposer",
    "load_settings",
    "register",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.metadata.version("suffixspec")
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'suffixspec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
