"""Compiling what drafting needs before the first request, not during it, and saying so.

The index's kernels are compiled once per machine and version, which takes a minute, and then loaded
from disk in a fifth of a second (:mod:`suffixspec_index.warm_up`). Nobody should look at a silent
program for a minute.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from suffixspec_index.proposers import create_proposer
from suffixspec_index.proposers.base import Proposer
from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_index.warm_up import is_cold, warm_up

Progress = Callable[[str], None]
"""Called with what is being done."""

_log = logging.getLogger(__name__)
_lock = threading.Lock()
_warm: set[str] = set()  # methods whose kernels this process has


def warm_up_drafting(config: SpeculativeConfig, progress: Progress | None = None) -> None:
    """Make sure that no request waits for a compiler. Costs something once per process and method.

    Args:
        config: what will draft; only its own kernels are compiled.
        progress: called before each stage; ``None``: a warning in the log says so where compiling
            takes long.
    """
    with _lock:
        for method in _methods(config):
            if method in _warm:
                continue
            if method == "suffix":
                if progress is None and is_cold():
                    _log.warning(
                        "compiling the suffix index's kernels: about a minute, once per machine"
                    )
                warm_up(progress)
            if progress is not None:
                progress(f"warming up method {method}")
            _exercise(create_proposer(_small(method)))
            _warm.add(method)


def _methods(config: SpeculativeConfig) -> tuple[str, ...]:
    """Those with kernels of their own."""
    if config.method == "hybrid":
        return ("suffix", "prediction")
    return (config.method,) if config.method in ("suffix", "ngram", "prediction") else ()


def _small(method: str) -> SpeculativeConfig:
    return SpeculativeConfig(method=method, num_speculative_tokens=4)


def _exercise(proposer: Proposer) -> None:
    """Each call once, alone and in a batch."""
    request = proposer.begin("warm-up", [1, 2, 1, 2, 3], prediction=[1, 2, 3, 4], max_tokens=8)
    proposer.propose(request)
    proposer.propose_batch([request])
    proposer.advance(request, [1])
    proposer.advance_batch([request], [2, 5], [0, 2])
    proposer.finish(request)
