"""Proposers that run a model of their own."""

from suffixspec_engine.drafters.draft_model import DraftModelProposer
from suffixspec_engine.drafters.draft_runner import DraftModel
from suffixspec_engine.drafters.vocabulary import VocabularyMap

__all__ = ["DraftModel", "DraftModelProposer", "VocabularyMap"]
