"""Structured output, with SmolLM2's tokenizer."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from suffixspec_engine.grammar import (
    Constrained,
    GrammarCompiler,
    GrammarSpec,
    Matcher,
    constrain,
)
from suffixspec_engine.sampling import Method, RowState, SamplingParams, verify, verify_batch
from suffixspec_index.draft import Draft, Source
from suffixspec_index.errors import InputError, IntegrityError
from suffixspec_traces.tokenizers import load_tokenizer

END = 2  # <|im_end|>
PAD = 64  # columns that the model has beyond the tokenizer's vocabulary

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["alpha", "beta"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "kind", "count"],
    "additionalProperties": False,
}
GOOD = '{"name":"Bob","kind":"alpha","count":31}'


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer("smollm2").backend


@pytest.fixture(scope="module")
def vocab(tokenizer: Tokenizer) -> int:
    return int(tokenizer.get_vocab_size()) + PAD


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer, vocab: int) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, vocab_size=vocab, eos_token_ids=[END, 0])


@pytest.fixture
def matcher(compiler: GrammarCompiler) -> Matcher:
    return compiler.compile(GrammarSpec.json(SCHEMA, any_whitespace=False))


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def path(ids: list[int], source: Source = Source.SESSION) -> Draft:
    return Draft.path(ids, source=source)


def accept_all(matcher: Matcher, ids: list[int]) -> bool:
    return all(matcher.accept(token) for token in ids)


# The matcher


@pytest.mark.parametrize(
    ("spec", "good", "bad"),
    [
        (GrammarSpec.json(SCHEMA, any_whitespace=False), GOOD, '{"name":3'),
        (GrammarSpec.json(json.dumps(SCHEMA)), GOOD.replace(",", ", "), '{"nome"'),
        (GrammarSpec.json_object(), '{"a": [1, null]}', "[1]"),
        (GrammarSpec.json(), "[1, 2]", "x"),
        (GrammarSpec.regex(r"[0-9]{3}-[a-z]+"), "123-abc", "12-"),
        (GrammarSpec.choice(["yes", 'n"o', "maybe\n"]), 'n"o', "yep"),
        (GrammarSpec.grammar('start: "a" | "(" start ")"'), "((a))", "((b"),
        (GrammarSpec.grammar('root ::= "x" [0-9]+'), "x12", "12"),
    ],
)
def test_each_kind_of_grammar(
    compiler: GrammarCompiler, tokenizer: Tokenizer, spec: GrammarSpec, good: str, bad: str
) -> None:
    matcher = compiler.compile(spec)
    assert accept_all(matcher, ids_of(tokenizer, good))
    assert matcher.accepting
    assert matcher.accept(END)
    assert matcher.complete
    assert not accept_all(compiler.compile(spec), ids_of(tokenizer, bad))


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: GrammarSpec.json("{"), "json"),
        (lambda: GrammarSpec.json([1]), "json"),  # type: ignore[arg-type]
        (lambda: GrammarSpec.json({"type": "nonsense"}), "json"),
        (lambda: GrammarSpec.regex("("), "regex"),
        (lambda: GrammarSpec.choice([]), "choice"),
        (lambda: GrammarSpec.choice(["a", ""]), "choice"),
        (lambda: GrammarSpec.choice("yes"), "choice"),
        (lambda: GrammarSpec.grammar("start: (("), "grammar"),
    ],
)
def test_bad_grammars_are_refused_with_the_reason(
    compiler: GrammarCompiler, make: Any, kind: str
) -> None:
    with pytest.raises(InputError, match=f"^{kind}: "):
        compiler.compile(make())


def test_no_end_of_sequence_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match="eos_token_ids"):
        GrammarCompiler(tokenizer, vocab_size=100, eos_token_ids=[])


def test_the_mask_is_what_is_accepted(matcher: Matcher, tokenizer: Tokenizer, vocab: int) -> None:
    rng = np.random.default_rng(0)
    for token in [*ids_of(tokenizer, GOOD), END]:
        mask = matcher.allowed(vocab)
        assert mask is not None
        assert mask.shape == (vocab,)
        assert not mask[-PAD:].any()
        for probe in [token, *rng.integers(0, vocab, 20).tolist()]:
            assert matcher.accept(probe) == mask[probe]
            if mask[probe]:
                matcher.rollback(1)
        assert matcher.accept(token)


def test_rollback_over_every_boundary(
    compiler: GrammarCompiler, tokenizer: Tokenizer, vocab: int
) -> None:
    marker = ids_of(tokenizer, "</think>")
    spec = GrammarSpec.json(SCHEMA).after(marker).then_anything()
    matcher = compiler.compile(spec)
    text = [*ids_of(tokenizer, "hm"), *marker, *ids_of(tokenizer, GOOD), *ids_of(tokenizer, "ok")]
    masks = []
    for token in text:
        masks.append(matcher.allowed(vocab))
        assert matcher.accept(token)
    assert masks[0] is None
    assert matcher.allowed(vocab) is None
    for n in range(1, len(text) + 1):
        matcher.rollback(n)
        assert matcher.num_accepted == len(text) - n
        mask, before = matcher.allowed(vocab), masks[len(text) - n]
        assert (mask is None) == (before is None)
        assert mask is None or before is None or (mask == before).all()
        assert accept_all(matcher, text[len(text) - n :])
    with pytest.raises(IntegrityError):
        matcher.rollback(len(text) + 1)


def test_a_rejected_token_leaves_the_matcher_usable(matcher: Matcher, tokenizer: Tokenizer) -> None:
    for bad in (-1, 10**9, END, *ids_of(tokenizer, "x")):
        assert not matcher.accept(bad)
    assert accept_all(matcher, ids_of(tokenizer, GOOD))


# Drafts


def test_drafts_are_cut_at_the_first_forbidden_token(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    # sglang 17576; vllm 53777, 47885.
    matcher = compiler.compile(GrammarSpec.regex("[a-c ]+"))
    good = ids_of(tokenizer, "a b c")
    draft = path([*good, *ids_of(tokenizer, " x y")])
    cut = constrain(draft, matcher)
    assert cut.draft.token_ids.tolist() == good
    assert cut.origin.tolist() == list(range(len(good)))
    assert matcher.num_accepted == 0
    kept = constrain(draft, matcher, drawn=True)
    assert kept.draft.token_ids.tolist() == draft.token_ids.tolist()[: len(good) + 1]


def test_trees_are_cut_by_branch(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    matcher = compiler.compile(GrammarSpec.regex("[a-c]{4}"))
    a, b, c, x = (ids_of(tokenizer, t)[0] for t in "abcx")
    draft = Draft(
        np.array([a, x, b, c, x, a], np.int32),
        np.array([-1, -1, -1, 0, 0, 1], np.int32),
        np.array([0.5, 0.3, 0.2, 0.4, 0.1, 0.2], np.float32),
        np.full(6, Source.GLOBAL, np.uint8),
        match_len=7,
    )
    cut = constrain(draft, matcher).draft
    cut.check_integrity()
    spelled = set(zip(cut.parents.tolist(), cut.token_ids.tolist(), strict=True))
    assert spelled == {(-1, a), (0, c), (-1, b)}
    assert cut.match_len == 7


def test_forced_tokens_become_drafts(matcher: Matcher, tokenizer: Tokenizer) -> None:
    start = constrain(Draft.empty(), matcher, limit=8)
    assert tokenizer.decode(start.draft.token_ids.tolist()) == '{"name'
    assert start.draft.source is Source.FORCED
    assert start.draft.probs.tolist() == [1.0] * len(start.draft)
    assert len(constrain(Draft.empty(), matcher, limit=1).draft) == 1
    assert len(constrain(Draft.empty(), matcher, limit=0).draft) == 0
    # A draft that goes on as forced keeps what it says after it; at its end more is forced.
    prefix = ids_of(tokenizer, '{"name":"Bob"')
    longer = constrain(path(prefix), matcher, limit=30).draft
    assert longer.token_ids.tolist()[: len(prefix)] == prefix
    assert tokenizer.decode(longer.token_ids.tolist()).startswith('{"name":"Bob","kind')
    assert longer.is_path
    assert Source(int(longer.sources[-1])) is Source.FORCED
    # One that contradicts it is replaced.
    wrong = constrain(path(ids_of(tokenizer, '{"nonsense')), matcher, limit=8).draft
    assert tokenizer.decode(wrong.token_ids.tolist()) == '{"name'


def test_a_grammar_that_starts_inside_a_draft(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    # vllm 34650, 36138: the boundary was missed.
    marker = ids_of(tokenizer, "</think>")
    matcher = compiler.compile(GrammarSpec.json(SCHEMA, any_whitespace=False).after(marker))
    before = [*ids_of(tokenizer, "I see."), *marker]
    cut = constrain(path([*before, *ids_of(tokenizer, "Well")]), matcher, limit=30).draft
    ids = cut.token_ids.tolist()
    assert ids[: len(before)] == before
    assert tokenizer.decode(ids[len(before) :]) == '{"name'
    whole = [*before, *ids_of(tokenizer, GOOD)]
    assert constrain(path(whole), matcher).draft.token_ids.tolist() == whole


def test_a_grammar_that_ends_inside_a_draft(matcher: Matcher, tokenizer: Tokenizer) -> None:
    good = ids_of(tokenizer, GOOD)
    cut = constrain(path([*good, *ids_of(tokenizer, "\nBye")]), matcher).draft
    assert cut.token_ids.tolist() == good
    ended = constrain(path([*good, END]), matcher).draft
    assert ended.token_ids.tolist() == [*good, END]


def test_probabilities_of_a_constrained_draft(matcher: Matcher, tokenizer: Tokenizer) -> None:
    ids = ids_of(tokenizer, '{"name":"Bob"')
    probs = torch.rand(len(ids), 50000)
    fitted: Constrained = constrain(path(ids), matcher, limit=20, drawn=True)
    rows = fitted.probs(probs)
    for row, origin, token in zip(rows, fitted.origin, fitted.draft.token_ids, strict=True):
        one_hot = torch.zeros(50000)
        one_hot[int(token)] = 1.0
        assert torch.equal(row, one_hot if origin < 0 else probs[int(origin)])
    assert (fitted.origin[:2] == -1).all()  # forced, so proposed whatever was drawn


# Verification under a grammar


def _logits(context: list[int], vocab: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    rng = np.random.default_rng([len(context), *context[-2:]])
    row: np.ndarray[Any, np.dtype[np.float32]] = rng.standard_normal(vocab, dtype=np.float32)
    return row * 3


def _steps(
    compiler: GrammarCompiler,
    spec: GrammarSpec,
    vocab: int,
    params: SamplingParams,
    seed: int,
    drafts: Iterator[Draft] | None,
    method: Method = "coupled",
) -> tuple[list[int], int]:
    matcher = compiler.compile(spec)
    state = RowState([5], seed=seed, eos_token_ids=frozenset({END, 0}))
    accepted = 0
    while True:
        context = [5, *state.output_token_ids]
        draft = Draft.empty()
        if drafts is not None:
            limit = state.draft_limit(params)
            draft = constrain(next(drafts), matcher, limit=min(limit, 6)).draft
            if len(draft) > limit:
                draft = Draft.empty()
        paths: list[list[int]] = [context]
        for token, parent in zip(draft.token_ids.tolist(), draft.parents.tolist(), strict=True):
            paths.append([*paths[parent + 1], token])
        logits = torch.from_numpy(np.stack([_logits(p, vocab) for p in paths]))
        position = matcher.num_accepted
        verdict = verify(logits, draft, state, params, method, None, matcher)
        assert matcher.num_accepted == position
        state.commit(verdict, matcher)
        assert matcher.num_accepted == position + len(verdict.token_ids)
        accepted += len(verdict.accepted)
        if verdict.finished:
            return state.output_token_ids, accepted


def _drafts_from(texts: list[list[int]]) -> Iterator[Draft]:
    rng = np.random.default_rng(3)
    while True:
        ids = texts[int(rng.integers(0, len(texts)))]
        start = int(rng.integers(0, len(ids)))
        yield path(ids[start : start + 5])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("seed", [1, 2])
def test_output_fits_and_does_not_depend_on_drafts(
    compiler: GrammarCompiler, tokenizer: Tokenizer, vocab: int, temperature: float, seed: int
) -> None:
    params = SamplingParams(temperature=temperature, max_tokens=60)
    spec = GrammarSpec.json(SCHEMA, any_whitespace=False)
    run = partial(_steps, compiler, spec, vocab, params, seed)
    plain, _ = run(None)
    assert plain[-1] in (END, 0)
    value = json.loads(tokenizer.decode(plain))
    assert list(value) == ["name", "kind", "count"]
    drafts = _drafts_from([plain, ids_of(tokenizer, GOOD)])
    drafted, accepted = run(drafts)
    assert drafted == plain
    assert accepted > 0
    for method in ("standard", "block"):
        other, _ = run(drafts, method)
        assert set(json.loads(tokenizer.decode(other))) == {"name", "kind", "count"}


def test_min_tokens_yields_to_a_grammar_that_is_complete(
    compiler: GrammarCompiler, tokenizer: Tokenizer, vocab: int
) -> None:
    params = SamplingParams(temperature=0, min_tokens=8, max_tokens=20)
    text, _ = _steps(compiler, GrammarSpec.choice(["yes"]), vocab, params, 0, None)
    assert tokenizer.decode(text) == "yes"
    assert text[-1] in (END, 0)


def test_grammars_apply_to_their_own_rows(
    compiler: GrammarCompiler, tokenizer: Tokenizer, vocab: int
) -> None:
    matcher = compiler.compile(GrammarSpec.choice(["yes", "no"]))
    logits = torch.from_numpy(np.stack([_logits([1], vocab)] * 3))
    params = SamplingParams(temperature=0)
    verdicts = verify_batch(
        logits,
        [Draft.empty()] * 3,
        [RowState([1])] * 3,
        [params] * 3,
        grammars={1: matcher},
    )
    free = int(logits[0].argmax())
    assert [v.token_ids[0] == free for v in verdicts] == [True, False, True]
    assert tokenizer.decode(list(verdicts[1].token_ids))[0] in "yn"


def test_a_forbidden_token_that_was_drawn_is_rejected_not_cut(
    compiler: GrammarCompiler, tokenizer: Tokenizer, vocab: int
) -> None:
    """Cutting a drawn draft before a forbidden token would favour tokens the drafter likes less."""
    a, b, x = (ids_of(tokenizer, t)[0] for t in "abx")
    spec = GrammarSpec.regex("[ab]")
    logits = torch.full((2, vocab), -100.0)
    logits[:, [a, b, x]] = torch.tensor([0.8, 0.2, 1.0]).log()  # so "a" has 0.8 of what is allowed
    q = torch.zeros(1, vocab)
    q[0, [a, b, x]] = torch.tensor([0.5, 0.0, 0.5])
    rng = np.random.default_rng(0)
    methods: list[Method] = ["standard", "block"]
    for method in methods:
        matcher = compiler.compile(spec)
        hits = 0
        for seed in range(800):
            draft = path([a if rng.random() < 0.5 else x], Source.DRAFT_MODEL)
            fitted = constrain(draft, matcher, drawn=True)
            verdict = verify(
                logits[: 1 + len(fitted.draft)],
                fitted.draft,
                RowState([1], seed=seed),
                SamplingParams(),
                method,
                fitted.probs(q),
                matcher,
            )
            hits += verdict.token_ids[0] == a
        assert abs(hits / 800 - 0.8) < 0.05  # 3.5 standard deviations
