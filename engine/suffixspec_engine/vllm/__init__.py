"""suffixspec inside vLLM: the drafts of our index, verified by vLLM.

    vllm serve MODEL --speculative-config '{"method": "custom_class",
        "model": "suffixspec_engine.vllm.SuffixSpecProposer", "num_speculative_tokens": 16}'

Settings of ours go into ``--additional-config``; see :class:`.settings.PluginSettings`. Nothing
here imports torch, and vLLM itself is only looked at where it has been imported already.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from suffixspec_engine.vllm.proposer import SuffixSpecProposer

__all__ = ["SuffixSpecProposer"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.proposer"), name)
