"""Spaces: one fingerprint everywhere, draft models through the engine, purging what it keeps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from suffixspec_engine.models import TargetModel
from suffixspec_index.errors import ConfigError
from suffixspec_index.proposers.hybrid import HybridProposer
from suffixspec_index.proposers.members import Member
from suffixspec_index.proposers.ngram import NgramProposer
from suffixspec_index.proposers.prediction import PredictionProposer
from suffixspec_index.proposers.suffix import SuffixProposer
from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_service.callers import Tenant
from suffixspec_service.config import Limits
from suffixspec_service.spaces import ModelIdentity, Spaces
from suffixspec_traces.tokenizers import load_tokenizer

ANNE, BOB = Tenant("anne"), Tenant("bob", limits=Limits(index_bytes=1 << 22))
SERVED = ModelIdentity("served", "tok", vocab_size=100)
WITH_MODEL = SpeculativeConfig(method="hybrid", model="draft", num_speculative_tokens=4)


def test_the_fingerprint_is_that_of_the_traces(smollm2_target: TargetModel) -> None:
    identity = ModelIdentity.of(smollm2_target, "m")
    assert identity.tokenizer == load_tokenizer("smollm2").fingerprint
    assert identity.name == "m"


def test_without_a_tokenizer_the_name_tells_models_apart(tiny_target: TargetModel) -> None:
    bare = replace(tiny_target, tokenizer=None)
    assert ModelIdentity.of(bare, "m").tokenizer == bare.name


class Engine:
    """As much of an engine as spaces need: hybrids with an index of their own, as it makes them."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def proposer_of(self, namespace: str) -> HybridProposer:
        self.asked.append(namespace)
        config = SpeculativeConfig(
            method="ngram", num_speculative_tokens=4, prompt_lookup_min=2, prompt_lookup_max=4
        )
        drafter = NgramProposer(config)
        prediction = PredictionProposer(SpeculativeConfig(method="prediction"))
        return HybridProposer(
            [
                Member(SuffixProposer()),
                Member(prediction, needs_prediction=True),
                Member(drafter, token_cost=0.1),
            ]
        )


def test_a_hybrid_with_a_model_drafts_from_the_space_s_own_index() -> None:
    engine = Engine()
    spaces = Spaces(WITH_MODEL, SERVED, proposer_of=engine.proposer_of)
    anne, bob = spaces.of(ANNE), spaces.of(BOB)
    assert engine.asked == [anne.key.digest, bob.key.digest]
    assert isinstance(anne.proposer, HybridProposer)
    assert [member.proposer.name for member in anne.proposer.members] == [
        "suffix",
        "prediction",
        "ngram",
    ]
    assert anne.predictive is anne.proposer
    assert bob.index is not None
    assert bob.index.config.max_bytes == 1 << 22
    assert anne.index is not None
    anne.index.ingest(np.arange(20, dtype=np.int32))
    request = anne.proposer.begin("s", [3, 4, 5, 6])
    assert anne.proposer.propose(request).token_ids[:2].tolist() == [7, 8]
    anne.proposer.finish(request)
    assert bob.index.statistics().tokens == 0


def test_a_draft_model_drafts_for_its_own_tokens_only() -> None:
    spaces = Spaces(WITH_MODEL, SERVED, proposer_of=Engine().proposer_of)
    spaces.of(ANNE, model=ModelIdentity("other name", "tok", vocab_size=100))
    with pytest.raises(ConfigError, match="another tokenizer"):
        spaces.of(ANNE, model=ModelIdentity("other", "other tok", vocab_size=100))
    with pytest.raises(ConfigError, match="needs an engine"):
        Spaces(WITH_MODEL).of(ANNE, model=SERVED)
