"""The settings of one namespace's index."""

from __future__ import annotations

import math
from dataclasses import dataclass

from suffixspec_index.errors import ConfigError
from suffixspec_index.kernels.draft import MAX_NODES
from suffixspec_index.speculative_config import SpeculativeConfig

SESSION_DEPTH = 24
__all__ = ["MAX_NODES", "SESSION_DEPTH", "IndexConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexConfig:
    """Checked on construction.

    Attributes:
        depth: window length of the global tree, in tokens.
        session_depth: window length of each session's own tree. Matches longer than a tree is deep
            go on in the text, so little is gained by more; what a session said within its last
            ``session_depth`` tokens is found by scanning them.
        num_speculative_tokens: most tokens in a draft, 1 to 64.
        max_spec_factor, max_spec_offset: a match of ``m`` tokens allows ``factor * m + offset``.
        min_token_prob: a draft token's least probability of being accepted together with all
            before it.
        min_match_len: shortest match that a draft may rest on.
        tree: drafts are trees; otherwise paths.
        beyond_depth: long copies go on past the tree's depth.
        index_prompts: prompts and tool results enter the global tree too.
        max_cached_requests: sequences the global tree keeps; 0: no global tree.
        max_bytes: bytes of the whole namespace. The oldest is forgotten first.
        live_chunk: output of a running request is shared in pieces of this many tokens; 0: only
            when it is finished.
        learning_rate, learning_memory: of the acceptance model; a rate of 0 freezes it. The memory
            is the number of observations over which a cell's mean is taken.
    """

    depth: int = 64
    session_depth: int = SESSION_DEPTH
    num_speculative_tokens: int = 32
    max_spec_factor: float = math.inf
    max_spec_offset: float = 0.0
    min_token_prob: float = 0.1
    min_match_len: int = 1
    tree: bool = False
    beyond_depth: bool = True
    index_prompts: bool = False
    max_cached_requests: int = 1_000_000
    max_bytes: int = 1 << 30
    live_chunk: int = 256
    learning_rate: float = 0.012
    learning_memory: float = 80.0

    def __post_init__(self) -> None:
        self._within("depth", 2, 4096)
        self._within("session_depth", 2, 4096)
        self._within("num_speculative_tokens", 1, MAX_NODES)
        self._within("max_spec_factor", 0, math.inf, whole=False)
        self._within("max_spec_offset", -(1 << 30), 1 << 30, whole=False)
        self._within("min_token_prob", 0, 1, whole=False)
        self._within("min_match_len", 1, 1 << 30)
        self._within("max_cached_requests", 0, 1 << 40)
        self._within("max_bytes", 1 << 20, 1 << 50)
        self._within("live_chunk", 0, 1 << 30)
        self._within("learning_rate", 0, 1, whole=False)
        self._within("learning_memory", 1, 1 << 20, whole=False)

    def _within(self, name: str, low: float, high: float, *, whole: bool = True) -> None:
        value = getattr(self, name)
        kinds = int if whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds):
            kind = "an integer" if whole else "a number"
            raise ConfigError(f"{name}: must be {kind}, got {value!r}")
        if not low <= value <= high:  # also refuses NaN
            raise ConfigError(f"{name}: must be from {low:g} to {high:g}, got {value!r}")

    @staticmethod
    def from_speculative(config: SpeculativeConfig, **changes: object) -> IndexConfig:
        """The index settings that a speculative configuration asks for.

        Raises:
            ConfigError: a value is out of the index's range.
        """
        factor = config.suffix_decoding_max_spec_factor
        values: dict[str, object] = {
            "depth": max(config.suffix_decoding_max_tree_depth, 2),
            "session_depth": max(min(config.suffix_decoding_max_tree_depth, SESSION_DEPTH), 2),
            "num_speculative_tokens": min(config.num_speculative_tokens, MAX_NODES),
            "max_spec_factor": math.inf if factor is None else factor,
            "max_spec_offset": config.suffix_decoding_max_spec_offset,
            "min_token_prob": config.suffix_decoding_min_token_prob,
            "min_match_len": max(config.min_match_len, 1),
            "tree": config.draft_shape == "tree",
            "beyond_depth": config.allow_beyond_depth,
            "index_prompts": config.index_prompts,
            "max_cached_requests": config.suffix_decoding_max_cached_requests,
        }
        return IndexConfig(**(values | changes))  # type: ignore[arg-type]
