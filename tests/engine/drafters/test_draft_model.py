"""The draft model as proposer, with tiny random models and tokenizers made here."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from suffixspec_engine.drafters import DraftModel, DraftModelProposer, VocabularyMap
from suffixspec_engine.models import prepare_model
from suffixspec_engine.sampling import RowState, SamplingParams, verify
from suffixspec_index.draft import Source
from suffixspec_index.errors import ConfigError, TokenError, UnknownRequestError
from suffixspec_index.proposers.drawing import DraftSampling, DrawingProposer
from suffixspec_index.speculative_config import SpeculativeConfig

TEXTS = ["the cat sat on the mat", "a hat for the bat", "that is what the rat sat at"]
OTHERS = ["she sells sea shells", "the shells she sells", "thick thistle sticks: é ü 🙂"]


def make_tokenizer(texts: Sequence[str], size: int = 300) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=["<|end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return tokenizer


def make_model(vocab_size: int, seed: int = 0, **kwargs: Any) -> Any:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        initializer_range=0.4,
        **kwargs,
    )
    model: Any = LlamaForCausalLM(config)
    return model.eval()


TOKENIZER = make_tokenizer(TEXTS)
SIZE = TOKENIZER.get_vocab_size()


def load(model: Any, tokenizer: Tokenizer = TOKENIZER, **options: Any) -> DraftModel:
    return DraftModel(prepare_model(copy.deepcopy(model), name="tiny"), tokenizer, **options)


def make(
    model: Any, tokenizer: Tokenizer = TOKENIZER, *, draft: DraftModel | None = None, **kwargs: Any
) -> DraftModelProposer:
    options = {
        key: kwargs.pop(key)
        for key in ("num_speculative_tokens", "use_heterogeneous_vocab", "parallel_drafting")
        if key in kwargs
    }
    options.setdefault("num_speculative_tokens", 5)
    config = SpeculativeConfig(method="draft_model", model="tiny", **options)
    kwargs.setdefault("vocab_size", SIZE)
    return DraftModelProposer(config, draft or load(model, tokenizer), TOKENIZER, **kwargs)


def greedy(model: Any, context: list[int], count: int, size: int = SIZE) -> list[int]:
    """What the model says, read anew each time."""
    ids = list(context)
    for _ in range(count):
        with torch.inference_mode():
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1, :size].argmax()))
    return ids[len(context) :]


def draw(
    proposer: DraftModelProposer, request: int, limit: int, sampling: DraftSampling
) -> tuple[Any, Any]:
    assert isinstance(proposer, DrawingProposer)
    return proposer.propose_drawn([request], [limit], [sampling])[0]


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model(SIZE)


def test_drafts_are_what_the_model_says_through_acceptance_and_rejection(model: Any) -> None:
    proposer = make(model)
    context = TOKENIZER.encode("the cat sat").ids
    request = proposer.begin("s", context)
    for gained in (None, 3, 0, 5, 1):
        if gained is not None:
            accepted = proposer.propose(request).token_ids.tolist()[:gained]
            tokens = [*accepted, 7]  # the target adds its own
            proposer.advance(request, tokens)
            context = [*context, *tokens]
        draft = proposer.propose(request)
        assert draft.token_ids.tolist() == greedy(model, context, 5)
        assert draft.source is Source.DRAFT_MODEL
        assert (np.diff(draft.probs) <= 0).all()
        draft.check_integrity()
    proposer.finish(request)


def test_only_new_tokens_are_read(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    forward = type(model).forward

    def counting(self: Any, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        read.append(input_ids.shape[1])
        return forward(self, input_ids=input_ids, **kwargs)

    proposer = make(model)
    monkeypatch.setattr(type(model), "forward", counting)
    context = TOKENIZER.encode("the cat sat on the mat, that is what").ids
    request = proposer.begin("s", context)
    tokens = proposer.propose(request, 2).token_ids.tolist()
    assert read == [len(context), 1]
    proposer.advance(request, [*tokens, 9])
    read.clear()
    proposer.propose(request, 1)
    assert read == [2]  # the last draft token, whose keys were not needed before, and the new one
    proposer.finish(request)
    read.clear()
    longer = [*context, *tokens, 9, 8, 7]
    request = proposer.begin("s", longer)
    proposer.propose(request, 1)
    assert read == [2]
    proposer.finish(request, keep=False)
    read.clear()
    proposer.propose(proposer.begin("s", longer), 1)
    assert read == [len(longer)]


def test_limits(model: Any) -> None:
    proposer = make(model)
    request = proposer.begin("s", [1, 2, 3], max_tokens=4)
    assert len(proposer.propose(request)) == 4
    assert len(proposer.propose(request, 2)) == 2
    assert len(proposer.propose(request, 0)) == 0
    proposer.advance(request, [5, 6, 7])
    assert len(proposer.propose(request)) == 1
    assert len(proposer.propose(proposer.begin("t", [1] * 126))) == 2  # the model's own length
    assert len(proposer.propose(proposer.begin("u", [1] * 140))) == 0
    assert len(proposer.propose(proposer.begin("v", []))) == 0
    with pytest.raises(UnknownRequestError):
        proposer.propose(999)
    with pytest.raises(TokenError):
        proposer.begin("s", [SIZE])


def test_forbidden_tokens_are_not_drafted(model: Any) -> None:
    said = greedy(model, [1, 2, 3], 5)
    proposer = make(model, forbidden=[said[2]])
    request = proposer.begin("s", [1, 2, 3])
    ids = proposer.propose(request).token_ids.tolist()
    assert ids == said[: said.index(said[2])]
    for seed in range(20):
        draft, rows = draw(proposer, request, 3, DraftSampling(1.0, seed, 0, False))
        assert rows is not None
        assert said[2] not in draft.token_ids
        assert float(rows[:, said[2]].max()) == 0.0


def test_padded_vocabularies_of_one_tokenizer_are_accepted() -> None:
    # vllm 7252, 10913; transformers 45307: rejected, or a crash.
    padded = make_model(SIZE + 40, seed=3)
    for target_size in (SIZE, SIZE + 64):
        proposer = make(padded, vocab_size=target_size)
        draft = proposer.propose(proposer.begin("s", [4, 5, 6]))
        assert draft.token_ids.tolist() == greedy(padded, [4, 5, 6], 5, SIZE)


def test_another_tokenizer_is_refused_unless_asked_for(model: Any) -> None:
    # sglang 23838: silently accepted.
    other = make_tokenizer(OTHERS)
    with pytest.raises(ConfigError, match="use_heterogeneous_vocab"):
        make(make_model(other.get_vocab_size()), other)
    make(make_model(other.get_vocab_size()), other, use_heterogeneous_vocab=True)


def test_sliding_windows_draft_right() -> None:
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(1)
    config = MistralConfig(
        vocab_size=SIZE,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        initializer_range=0.4,
        sliding_window=8,
    )
    model: Any = MistralForCausalLM(config)
    proposer = make(model)
    context = TOKENIZER.encode("that is what the rat sat at on the mat").ids
    request = proposer.begin("s", context)
    for _ in range(3):
        draft = proposer.propose(request).token_ids.tolist()
        assert draft == greedy(model, context, 5)
        context = [*context, *draft[:2], 7]
        proposer.advance(request, [*draft[:2], 7])


@pytest.mark.parametrize("text", ["the shells sat", "é🙂 that <|end|> thistle", "x" * 40])
def test_other_vocabularies_read_the_same_text(text: str) -> None:
    # transformers 46124, 46936: BOS every round, space clean-up, partial UTF-8.
    other = make_tokenizer(OTHERS)
    mapping = VocabularyMap(
        TOKENIZER,
        other,
        target_size=SIZE,
        draft_size=other.get_vocab_size(),
        heterogeneous=True,
    )
    ids = TOKENIZER.encode(text).ids
    translated = mapping.to_draft(ids)
    assert other.decode(translated, skip_special_tokens=False) == text
    assert translated == [d for i in ids for d in mapping.to_draft([i])]  # never changes later
    shared = mapping.shared
    for draft_id in shared.tolist():
        target_id = int(mapping.to_target[draft_id])
        assert TOKENIZER.id_to_token(target_id) == other.id_to_token(draft_id)
    assert len(shared) >= 257  # all bytes and the special token


def test_another_vocabulary_drafts_right_through_rounds() -> None:
    """Each round, what the draft model says of the text read anew (46124, 46936: stale positions, a
    BOS in every round)."""
    tokenizer = make_tokenizer(OTHERS, 280)
    model = make_model(tokenizer.get_vocab_size(), seed=4)
    proposer = make(model, tokenizer, use_heterogeneous_vocab=True)
    mapping = proposer.vocabulary
    context = TOKENIZER.encode("the cat sat").ids
    request = proposer.begin("s", context)
    for gained in (2, 0, 4, 1):
        draft = proposer.propose(request, 4).token_ids.tolist()
        ids, expected = mapping.to_draft(context), []
        for _ in range(4):
            with torch.inference_mode():
                logits = model(input_ids=torch.tensor([ids])).logits[0, -1, mapping.shared]
            ids.append(int(mapping.shared[int(logits.argmax())]))
            expected.append(int(mapping.to_target[ids[-1]]))
        assert draft == expected
        tokens = [*draft[:gained], *TOKENIZER.encode(" hat").ids]
        context = [*context, *tokens]
        proposer.advance(request, tokens)


@pytest.mark.parametrize("heterogeneous", [False, True])
def test_drawn_drafts_carry_their_distribution(model: Any, heterogeneous: bool) -> None:
    tokenizer = make_tokenizer(OTHERS, 280) if heterogeneous else TOKENIZER
    draft_model = make_model(tokenizer.get_vocab_size(), seed=5)
    proposer = make(draft_model, tokenizer, use_heterogeneous_vocab=heterogeneous)
    request = proposer.begin("s", TOKENIZER.encode("the cat").ids)
    counts = np.zeros(SIZE)
    for seed in range(600):
        draft, rows = draw(proposer, request, 1, DraftSampling(0.9, seed, 0, False))
        assert rows is not None
        counts[draft.token_ids[0]] += 1
        q = rows[0].double().numpy()
    assert q.sum() == pytest.approx(1.0, abs=1e-5)
    likely = q > 0.02
    spread = np.sqrt(600 * q * (1 - q))
    assert (np.abs(counts - 600 * q)[likely] < 4 * spread[likely]).all()
    assert counts[q == 0].sum() == 0


def test_coupled_drafts_of_the_target_itself_are_always_accepted(model: Any) -> None:
    proposer = make(model)
    context = TOKENIZER.encode("a hat").ids
    request = proposer.begin("s", context)
    params = SamplingParams(temperature=0.8)
    for seed in range(10):
        state = RowState(context, seed=seed)
        draft, _ = draw(proposer, request, 4, DraftSampling(0.8, seed, 0, True))
        ids = [*context, *draft.token_ids.tolist()]
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([ids])).logits[0, len(context) - 1 :]
        assert verify(logits, draft, state, params).accepted == (0, 1, 2, 3)


def test_a_folder_is_loaded(model: Any, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    fast: Any = PreTrainedTokenizerFast
    fast(tokenizer_object=TOKENIZER).save_pretrained(tmp_path)
    config = SpeculativeConfig(method="draft_model", model=str(tmp_path), num_speculative_tokens=3)
    draft = DraftModel.load(config)
    proposer = DraftModelProposer(config, draft, TOKENIZER, vocab_size=SIZE)
    tokens = proposer.propose(proposer.begin("s", [4, 5, 6])).token_ids
    assert tokens.tolist() == greedy(model, [4, 5, 6], 3)


def test_what_cannot_be_done_is_said(model: Any, tmp_path: Path) -> None:
    def config(**changes: Any) -> SpeculativeConfig:
        values: dict[str, Any] = {"model": str(tmp_path / "none"), "num_speculative_tokens": 3}
        values |= changes
        return SpeculativeConfig(method="draft_model", **values)

    with pytest.raises(ConfigError, match="does not exist"):
        DraftModel.load(config())
    with pytest.raises(ConfigError, match="draft_tensor_parallel_size: 2, but"):
        DraftModel.load(config(draft_tensor_parallel_size=2))
    with pytest.raises(ConfigError, match="num_speculative_tokens: missing"):
        make(model, num_speculative_tokens=0)
    with pytest.raises(ConfigError, match="parallel_drafting: the model 'tiny'"):
        make(model, parallel_drafting=True)


def test_a_failed_forward_pass_leaves_the_request_usable(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposer = make(model)
    request = proposer.begin("s", [1, 2, 3])
    proposer.propose(request)
    proposer.advance(request, [4])

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(type(model), "forward", fail)
        with pytest.raises(RuntimeError):
            proposer.propose(request)
    assert proposer.propose(request).token_ids.tolist() == greedy(model, [1, 2, 3, 4], 5)


CONTEXTS = [TOKENIZER.encode(text).ids for text in (*TEXTS, "the cat", "a")]


def mixed(seed: int) -> list[DraftSampling | None]:
    """Greedy requests and drawn ones."""
    return [
        None if (i + seed) % 3 == 0 else DraftSampling(0.9, seed + i, i, i % 2 == 0)
        for i in range(len(CONTEXTS))
    ]


@pytest.mark.parametrize("seed", range(3))
def test_a_batch_drafts_what_each_request_drafts_alone(model: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    together, alone = make(model), make(model)
    requests = [together.begin(f"{i}", context) for i, context in enumerate(CONTEXTS)]
    singles = [alone.begin(f"{i}", context) for i, context in enumerate(CONTEXTS)]
    for _ in range(4):
        limits = rng.integers(0, 6, len(requests)).tolist()
        drawn = together.propose_drawn(requests, limits, mixed(seed))
        for i, (draft, rows) in enumerate(drawn):
            ((other, other_rows),) = alone.propose_drawn(
                [singles[i]], [limits[i]], [mixed(seed)[i]]
            )
            assert draft.token_ids.tolist() == other.token_ids.tolist()
            assert len(draft) == limits[i]
            np.testing.assert_allclose(draft.probs, other.probs, rtol=1e-4)
            if rows is not None:
                torch.testing.assert_close(rows, other_rows, rtol=1e-4, atol=1e-6)
            gained = [*draft.token_ids.tolist()[: int(rng.integers(0, 4))], 3]
            together.advance(requests[i], gained)
            alone.advance(singles[i], gained)


def test_a_step_costs_one_pass_per_drafted_token(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    forward = type(model).forward

    def counting(self: Any, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        read.append(input_ids.shape[1])
        return forward(self, input_ids=input_ids, **kwargs)

    proposer = make(model)
    requests = [proposer.begin(f"{i}", context) for i, context in enumerate(CONTEXTS)]
    monkeypatch.setattr(type(model), "forward", counting)
    proposer.propose_batch(requests, [3, 1, 2, 3, 0])
    assert read == [sum(map(len, CONTEXTS[:4])), 3, 2]


def test_a_long_prompt_is_read_over_several_steps(model: Any) -> None:
    proposer = make(model, draft=load(model, read_at_once=30))
    long = proposer.begin("long", [5] * 70)
    short = proposer.begin("short", [4, 5, 6])
    lengths = [[len(draft) for draft in proposer.propose_batch([short, long])] for _ in range(3)]
    assert lengths == [[5, 0], [5, 0], [5, 5]]
    assert proposer.propose(long).token_ids.tolist() == greedy(model, [5] * 70, 5)


def test_short_memory_costs_drafts_not_requests(model: Any) -> None:
    draft = load(model, cache_bytes=300 * 2 * 2 * 16 * 4)  # one request's tokens and room ahead
    proposer = make(model, draft=draft)
    requests = [proposer.begin(f"{i}", [i + 1, 2, 3]) for i in range(2)]
    assert [len(one) for one in proposer.propose_batch(requests)] == [5, 0]
    draft.cache.check_integrity()
    proposer.finish(requests[0])
    assert proposer.propose(requests[1]).token_ids.tolist() == greedy(model, [2, 2, 3], 5)
    draft.cache.check_integrity()


def test_keys_and_values_stay_in_their_namespace(model: Any) -> None:
    draft = load(model)
    context = [1 + i % 7 for i in range(60)]
    one, other = (make(model, draft=draft, namespace=name) for name in ("a", "b"))
    request = one.begin("s", context)
    expected = one.propose(request).token_ids.tolist()
    one.finish(request)
    for proposer, known in ((other, 0), (one, 59)):
        request = proposer.begin("s", context)
        before = [cache.length for cache in draft.cache._idle.values()]
        opened = draft.cache.open(
            "a" if proposer is one else "b", "another", np.array(context, np.int32), 80
        )
        assert opened is not None
        assert opened.length == known
        draft.cache.drop(opened)
        assert before
        assert proposer.propose(request).token_ids.tolist() == expected
        proposer.finish(request, keep=False)


@pytest.mark.parametrize("drawn", [False, True])
def test_parallel_drafting_asks_masks_in_one_pass(
    drawn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mask = SIZE
    adapted = make_model(SIZE + 1, seed=9, pard_token=mask)
    passes: list[int] = []
    proposer = make(adapted, parallel_drafting=True)
    forward = type(adapted).forward

    def counting(self: Any, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        passes.append(input_ids.shape[1])
        return forward(self, input_ids=input_ids, **kwargs)

    requests = [proposer.begin(f"{i}", context) for i, context in enumerate(CONTEXTS)]
    contexts = [list(context) for context in CONTEXTS]
    sampling = DraftSampling(0.8, 3, 0, False) if drawn else None
    for _ in range(3):
        passes.clear()
        with monkeypatch.context() as patch:
            patch.setattr(type(adapted), "forward", counting)
            drafts = proposer.propose_drawn(requests, [4] * 5, [sampling] * 5)
        assert len(passes) == 1
        for i, (draft, rows) in enumerate(drafts):
            ids = [*contexts[i], mask, mask, mask]
            with torch.inference_mode():
                logits = adapted(input_ids=torch.tensor([ids])).logits[0, -4:, :SIZE]
            if sampling is None:
                assert draft.token_ids.tolist() == logits.argmax(-1).tolist()
            else:
                torch.testing.assert_close(rows, (logits / 0.8).softmax(-1), rtol=1e-4, atol=1e-6)
            gained = [*draft.token_ids.tolist()[:2], 7]
            contexts[i] += gained
            proposer.advance(requests[i], gained)
