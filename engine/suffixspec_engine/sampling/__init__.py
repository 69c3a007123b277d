"""Sampling: how a step's logits and a draft become tokens, without changing what is said.

:mod:`.contract` holds the types that the engine passes around; everything else is behind
``verify`` and ``verify_batch``.
"""

from suffixspec_engine.sampling.contract import (
    Detokenizer,
    FinishReason,
    GrammarMatcher,
    Method,
    RowState,
    TokenLogprobs,
    Verdict,
)
from suffixspec_engine.sampling.params import SamplingParams

__all__ = [
    "Detokenizer",
    "FinishReason",
    "GrammarMatcher",
    "Method",
    "RowState",
    "SamplingParams",
    "TokenLogprobs",
    "Verdict",
]
