"""Drafting inside the engine: draft models, hybrids, namespaces, and how drafts are verified. None
of it changes what is said."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

from suffixspec_engine import warming
from suffixspec_engine.engine import Engine
from suffixspec_engine.engine_config import EngineConfig
from suffixspec_engine.sampling import SamplingParams
from suffixspec_index.draft import Source
from suffixspec_index.errors import ConfigError, InputError
from suffixspec_index.proposers import create_proposer
from suffixspec_index.proposers.hybrid import HybridProposer
from suffixspec_index.speculative_config import SpeculativeConfig
from tests.engine.conftest import VOCABULARY, write_tiny_llama
from tests.engine.oracles import Broken, TreeOracle
from tests.engine.said import Ids, random_prompt, said

if TYPE_CHECKING:
    from suffixspec_engine.models import TargetModel

LENGTHS = [3, 50, 17, 1, 90, 8]
SUFFIX = {"method": "suffix", "suffix_decoding_min_token_prob": 0.0}


def greedy(max_tokens: int = 24, **changes: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, **changes)


def sampled(count: int, max_tokens: int = 15) -> list[SamplingParams]:
    return [
        SamplingParams(
            temperature=(0.0, 0.9, 1.1)[i % 3], max_tokens=max_tokens, seed=i, top_p=0.95
        )
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def prompts() -> list[Ids]:
    return [random_prompt(seed, length) for seed, length in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def truth(reference: Any, prompts: list[Ids]) -> list[list[int]]:
    return [said(reference, prompt, 24) for prompt in prompts]


@pytest.fixture(scope="module")
def other_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model with the same tokenizer: it is wrong about half of the time, or more."""
    folder = tmp_path_factory.mktemp("other-llama")
    return write_tiny_llama(folder, num_hidden_layers=2, hidden_size=24)


def drafted_by(folder: Path, method: str, **changes: Any) -> dict[str, Any]:
    return {"method": method, "model": str(folder), "num_speculative_tokens": 4} | changes


@pytest.mark.parametrize("drafter", ["itself", "another"])
@pytest.mark.parametrize("method", ["draft_model", "hybrid"])
@pytest.mark.parametrize("drawing", ["greedy", "probabilistic"])
def test_texts_are_those_without_drafts(
    target: TargetModel,
    tiny_llama: Path,
    other_llama: Path,
    prompts: list[Ids],
    truth: list[list[int]],
    drafter: str,
    method: str,
    drawing: str,
) -> None:
    folder = tiny_llama if drafter == "itself" else other_llama
    speculative = drafted_by(folder, method, draft_sample_method=drawing, draft_token_cost=0.05)
    config = EngineConfig(max_running=4, max_prefill_tokens=40, prefill_chunk=7)
    params = sampled(len(prompts))
    with Engine(target) as plain:
        expected = [o.token_ids.tolist() for o in plain.generate(prompts, params)]
    with Engine(target, speculative=speculative, config=config) as engine:
        for _ in range(2):
            outputs = engine.generate(prompts, greedy())
            assert [o.token_ids.tolist() for o in outputs] == truth
            outputs = engine.generate(prompts, params)
            assert [o.token_ids.tolist() for o in outputs] == expected
        engine.check_integrity()
        assert engine.metrics.proposer_failures == 0
        sources = engine.metrics.counts.by_source
        assert sources["draft_model"].drafted
        if method == "hybrid":
            assert sources["session"].accepted + sources["global"].accepted
            hybrid = engine.proposer
            assert isinstance(hybrid, HybridProposer)
            assert [one.failures for one in hybrid.statistics()] == [0, 0, 0]


@pytest.mark.parametrize("verification", ["standard", "block"])
def test_a_perfect_drawn_draft_is_accepted_by_rejection_sampling(
    target: TargetModel, tiny_llama: Path, prompts: list[Ids], verification: str
) -> None:
    for method in ("draft_model", "hybrid"):
        speculative = drafted_by(
            tiny_llama,
            method,
            draft_sample_method="probabilistic",
            rejection_sample_method=verification,
            draft_token_cost=0.01,
        )
        params = [SamplingParams(temperature=0.9, max_tokens=15, seed=i) for i in range(6)]
        with Engine(target, speculative=speculative) as engine:
            engine.generate(prompts, params)
            counts = engine.metrics.counts.by_source["draft_model"]
            assert counts.accepted > 0.9 * counts.drafted > 20


def test_synthetic_acceptance_is_refused_with_the_reason(target: TargetModel) -> None:
    config = SUFFIX | {
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_length": 2.0,
    }
    with pytest.raises(ConfigError, match="would not be the model's"):
        Engine(target, speculative=config)


def test_a_hybrid_uses_a_prediction_where_there_is_one(
    target: TargetModel, prompts: list[Ids], truth: list[list[int]]
) -> None:
    with Engine(target, speculative={"method": "hybrid"}) as engine:
        outputs = []
        for prompt, tokens in zip(prompts, truth, strict=True):
            stream = engine.stream(prompt, greedy(), prediction=tokens)
            outputs.append(stream.output().token_ids.tolist())
        assert outputs == truth
        assert engine.metrics.counts.by_source["prediction"].accepted > 30


def test_a_hybrid_goes_on_without_a_broken_member(
    target: TargetModel,
    other_llama: Path,
    prompts: list[Ids],
    truth: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from suffixspec_engine.drafters import DraftModel

    def fail(*args: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(DraftModel, "read", fail)
    speculative = drafted_by(other_llama, "hybrid", draft_token_cost=0.01, dynamic=False)
    with Engine(target, speculative=speculative) as engine:
        for _ in range(2):
            outputs = engine.generate(prompts, greedy())
            assert [o.token_ids.tolist() for o in outputs] == truth
        assert engine.metrics.proposer_failures == 0
        assert engine.metrics.counts.accepted > 20
        hybrid = engine.proposer
        assert isinstance(hybrid, HybridProposer)
        assert hybrid.statistics()[2].failures == 2 * len(prompts)


def test_namespaces_share_no_drafts(target: TargetModel) -> None:
    prompt = random_prompt(5, 60)
    with Engine(target, speculative=SUFFIX) as engine:

        def drafts_of_others(namespace: str) -> int:
            stream = engine.stream(prompt, greedy(30), namespace=namespace)
            return int((stream.output().sources == Source.GLOBAL).sum())

        assert drafts_of_others("a") == 0
        assert drafts_of_others("a") > 0
        assert drafts_of_others("b") == 0
        assert drafts_of_others("") == 0
        assert engine.proposer_of("a") is engine.proposer_of("a")
        assert engine.proposer_of("a") is not engine.proposer_of("b")
        engine.drop_namespace("a")
        engine.drop_namespace("never seen")
        assert drafts_of_others("a") == 0
        engine.check_integrity()


def test_a_proposer_given_to_the_engine_is_for_no_namespace(target: TargetModel) -> None:
    prompt = random_prompt(5, 20)
    given = create_proposer(SpeculativeConfig(), vocab_size=VOCABULARY)
    with Engine(target, proposer=given) as engine:
        assert engine.generate([prompt], greedy(3))[0].finish_reason == "length"
        with pytest.raises(InputError, match="function that makes one per namespace"):
            engine.stream(prompt, greedy(3), namespace="a")
        own = create_proposer(SpeculativeConfig(), vocab_size=VOCABULARY)
        stream = engine.stream(prompt, greedy(3), namespace="a", proposer=own)
        assert stream.output().finish_reason == "length"
    made: list[str] = []

    def source(namespace: str) -> TreeOracle:
        made.append(namespace)
        return TreeOracle({tuple(prompt.tolist()): []}, VOCABULARY)

    with Engine(target, proposer=source) as engine:
        for namespace in ("a", "b", "a"):
            engine.stream(prompt, greedy(3), namespace=namespace).output()
            engine.end_session("s", namespace=namespace)
        assert made == ["", "a", "b"]
    with Engine(target, proposer=Broken("begin")) as engine:
        assert engine.proposer_of("") is engine.proposer


def test_compiling_is_announced(
    target: TargetModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(warming, "_warm", set())
    said_so: list[str] = []
    Engine(target, speculative={"method": "hybrid"}, progress=said_so.append).close()
    assert any("proposing" in text for text in said_so)
    assert any("prediction" in text for text in said_so)
    said_so.clear()
    Engine(target, speculative={"method": "hybrid"}, progress=said_so.append).close()
    assert said_so == []
    monkeypatch.setattr(warming, "_warm", set())
    monkeypatch.setattr(warming, "is_cold", lambda: True)
    with caplog.at_level(logging.WARNING):
        Engine(target, speculative=SUFFIX).close()
    assert "once per machine" in caplog.text


@pytest.mark.parametrize("drawing", ["greedy", "probabilistic"])
def test_another_vocabulary_changes_nothing(
    target: TargetModel,
    tmp_path: Path,
    prompts: list[Ids],
    truth: list[list[int]],
    drawing: str,
) -> None:
    # transformers 46124, 46936: BOS every round, stale positions, pieces of characters.
    folder = write_other_vocabulary(tmp_path)
    with pytest.raises(ConfigError, match="use_heterogeneous_vocab"):
        Engine(target, speculative=drafted_by(folder, "draft_model"))
    for method in ("draft_model", "hybrid"):
        speculative = drafted_by(
            folder,
            method,
            use_heterogeneous_vocab=True,
            draft_sample_method=drawing,
            draft_token_cost=0.01,
        )
        with Engine(target, speculative=speculative) as engine:
            outputs = engine.generate(prompts, greedy())
            assert [o.token_ids.tolist() for o in outputs] == truth
            params = sampled(len(prompts))
            with Engine(target) as plain:
                expected = plain.generate(prompts, params)
            outputs = engine.generate(prompts, params)
            assert [o.token_ids.tolist() for o in outputs] == [
                o.token_ids.tolist() for o in expected
            ]
            assert engine.metrics.counts.by_source["draft_model"].drafted
            assert engine.metrics.proposer_failures == 0


def write_other_vocabulary(folder: Path) -> Path:
    """A model whose tokenizer has the bytes in another order, and pairs of letters."""
    import transformers
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    write_tiny_llama(folder, num_hidden_layers=1, vocab_size=300)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), reverse=True)
    pairs = [("a", "b"), ("t", "h"), ("e", "r")]
    vocabulary = {letter: i for i, letter in enumerate([*alphabet, *map("".join, pairs)])}
    backend = Tokenizer(models.BPE(vocabulary, pairs))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken("<|begin|>", special=True)])
    fast: Any = transformers.PreTrainedTokenizerFast
    fast(tokenizer_object=backend, bos_token="<|begin|>").save_pretrained(folder)
    return folder
