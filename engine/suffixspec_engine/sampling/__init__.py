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
from suffixspec_engine.sampling.randomness import draw_draft_token
from suffixspec_engine.sampling.stopping import IncrementalDetokenizer
from suffixspec_engine.sampling.verify import verify, verify_batch

__all__ = [
    "Detokenizer",
    "FinishReason",
    "GrammarMatcher",
    "IncrementalDetokenizer",
    "Method",
    "RowState",
    "SamplingParams",
    "TokenLogprobs",
    "Verdict",
    "draw_draft_token",
    "verify",
    "verify_batch",
]
