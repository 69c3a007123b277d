"""Proposers that run a model of their own."""

from suffixspec_engine.drafters.draft_model import (
    DraftModelProposer,
    DraftSampling,
    register_draft_model,
)
from suffixspec_engine.drafters.vocabulary import VocabularyMap

__all__ = ["DraftModelProposer", "DraftSampling", "VocabularyMap", "register_draft_model"]
