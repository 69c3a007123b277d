"""The ground room: the suffix tree, drafts, proposers and sessions (numpy and numba only).

Names are imported when they are first used, because importing a kernel imports numba.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from suffixspec_index.acceptance import AcceptanceModel
    from suffixspec_index.index import IndexStatistics, SuffixIndex
    from suffixspec_index.index_config import IndexConfig
    from suffixspec_index.log import open_log
    from suffixspec_index.namespaces import NamespaceKey, Namespaces
    from suffixspec_index.sharing import Sharing, SharingConfig
    from suffixspec_index.snapshot import load_index, load_tree, save_index, save_tree
    from suffixspec_index.tree import SuffixTree, TreeStatistics

_LAZY = {
    "AcceptanceModel": "acceptance",
    "IndexConfig": "index_config",
    "IndexStatistics": "index",
    "NamespaceKey": "namespaces",
    "Namespaces": "namespaces",
    "Sharing": "sharing",
    "SharingConfig": "sharing",
    "SuffixIndex": "index",
    "SuffixTree": "tree",
    "TreeStatistics": "tree",
    "load_index": "snapshot",
    "load_tree": "snapshot",
    "open_log": "log",
    "save_index": "snapshot",
    "save_tree": "snapshot",
}

__all__ = [
    "AcceptanceModel",
    "IndexConfig",
    "IndexStatistics",
    "NamespaceKey",
    "Namespaces",
    "Sharing",
    "SharingConfig",
    "SuffixIndex",
    "SuffixTree",
    "TreeStatistics",
    "load_index",
    "load_tree",
    "open_log",
    "save_index",
    "save_tree",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"suffixspec_index.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'suffixspec_index' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
