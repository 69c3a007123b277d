"""Statistics: the distribution of what is said is the target's, with every method.

Seeds are fixed, so a test that passes always does. Each compares observed counts of whole output
sequences with their exact probabilities (chi-square; expected counts under 5 pooled).
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from suffixspec_engine.sampling import (
    Method,
    RowState,
    SamplingParams,
    draw_draft_token,
    verify,
)
from suffixspec_index.draft import Draft, Source
from tests.engine.sampling.hash_model import Drafter, HashModel, generate, path_draft

VOCAB = 5
LENGTH = 3
TRIALS = 3000


def _reference_rows(model: HashModel, params: SamplingParams, said: list[int]) -> NDArray[Any]:
    """The processed distribution, written down anew and slowly."""
    row = model.row([0, *said]).astype(np.float64)
    for token in set(said):
        row[token] -= params.presence_penalty + params.frequency_penalty * said.count(token)
    p = np.exp(row / params.temperature)
    p /= p.sum()
    p[p < params.min_p * p.max()] = 0
    p /= p.sum()
    if params.top_k > 0:
        p[np.argsort(-p)[params.top_k :]] = 0
        p /= p.sum()
    order = np.argsort(-p)
    total = 0.0
    for token in order:
        if total >= params.top_p:
            p[token] = 0
        total += p[token]
    result: NDArray[Any] = p / p.sum()
    return result


def _expected(model: HashModel, params: SamplingParams) -> dict[tuple[int, ...], float]:
    expected = {}
    for text in product(range(model.vocab_size), repeat=LENGTH):
        chance = 1.0
        for i, token in enumerate(text):
            chance *= float(_reference_rows(model, params, list(text[:i]))[token])
        expected[text] = chance
    return expected


def _chi_square_p(observed: NDArray[Any], expected: NDArray[Any]) -> float:
    statistic = float(((observed - expected) ** 2 / expected).sum())
    half = torch.tensor([(len(observed) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def _check(
    model: HashModel, params: SamplingParams, method: Method, drafter: Drafter
) -> tuple[float, int]:
    """The p-value, and how many draft tokens were accepted."""
    expected = _expected(model, params)
    counts = dict.fromkeys(expected, 0)
    rng = np.random.default_rng(11)
    accepted = 0
    for seed in range(TRIALS):
        run = generate(model, [0], params, drafter, seed=seed, rng=rng, method=method)
        counts[tuple(run.tokens)] += 1
        accepted += run.accepted
    impossible = [text for text, chance in expected.items() if chance == 0]
    assert not any(counts[text] for text in impossible)
    big = [text for text in expected if expected[text] * TRIALS >= 5]
    rest = TRIALS - sum(counts[t] for t in big)
    rest_expected = TRIALS * (1 - sum(expected[t] for t in big))
    observed = [counts[t] for t in big]
    wanted = [expected[t] * TRIALS for t in big]
    if rest_expected > 1e-6:
        observed.append(rest)
        wanted.append(rest_expected)
    return _chi_square_p(np.array(observed), np.array(wanted)), accepted


def _likely_tree(
    context: list[int], limit: int, rng: np.random.Generator, *, model: HashModel
) -> tuple[Draft, torch.Tensor | None]:
    """A deterministic tree: the two most probable tokens, and one after each."""
    if limit == 0:
        return Draft.empty(), None
    first = np.argsort(-model.row(context))[:2].tolist()
    tokens, parents = list(first), [-1, -1]
    if limit > 1:
        for index, token in enumerate(first):
            tokens.append(int(np.argmax(model.row([*context, token]))))
            parents.append(index)
    n = len(tokens)
    return Draft(
        np.array(tokens, np.int32),
        np.array(parents, np.int32),
        np.full(n, 0.5, np.float32),
        np.full(n, Source.GLOBAL, np.uint8),
    ), None


def _siblings_without_replacement(
    context: list[int], limit: int, rng: np.random.Generator, *, drafter: HashModel
) -> tuple[Draft, torch.Tensor | None]:
    """Three siblings drawn one after the other from a probabilistic drafter."""
    if limit == 0:
        return Draft.empty(), None
    q = drafter.softmax(context).astype(np.float64)
    tokens = rng.choice(len(q), size=3, replace=False, p=q / q.sum())
    draft = Draft(
        tokens.astype(np.int32),
        np.full(3, -1, np.int32),
        np.full(3, 0.3, np.float32),
        np.full(3, Source.DRAFT_MODEL, np.uint8),
    )
    return draft, torch.from_numpy(np.stack([q] * 3).astype(np.float32))


MODEL = HashModel(vocab_size=VOCAB, spread=1.2, salt="target")
DRAFTER = HashModel(vocab_size=VOCAB, spread=1.2, salt="draft")
DRAFTERS: dict[str, Callable[..., Any]] = {
    "probabilistic path": partial(path_draft, drafter=DRAFTER, length=3),
    "path of the model itself": partial(path_draft, drafter=MODEL, length=3),
    "deterministic tree": partial(_likely_tree, model=MODEL),
    "probabilistic siblings": partial(_siblings_without_replacement, drafter=DRAFTER),
}
CASES: list[tuple[Method, str]] = [
    ("coupled", "probabilistic path"),
    ("coupled", "deterministic tree"),
    ("standard", "probabilistic path"),
    ("standard", "path of the model itself"),
    ("standard", "deterministic tree"),
    ("standard", "probabilistic siblings"),
    ("block", "probabilistic path"),
    ("block", "path of the model itself"),
    ("block", "deterministic tree"),
]


@pytest.mark.parametrize(("method", "drafter"), CASES)
def test_output_is_distributed_as_the_target(method: Method, drafter: str) -> None:
    params = SamplingParams(max_tokens=LENGTH)
    p, accepted = _check(MODEL, params, method, DRAFTERS[drafter])
    assert p > 0.001
    assert accepted > 0


class FixedModel(HashModel):
    """The same distribution after every context of a length."""

    def __init__(self, *rows: list[float]) -> None:
        super().__init__(vocab_size=len(rows[0]))
        self._fixed = [np.log(np.array(row, np.float32)) for row in rows]

    def row(self, context: Sequence[int]) -> NDArray[np.float32]:
        return self._fixed[min(len(context), len(self._fixed)) - 1]


@pytest.mark.parametrize("method", ["standard", "block"])
def test_a_drafter_that_likes_the_wrong_token(method: Method) -> None:
    """Here a block's residual differs much from that of one token alone."""
    target = FixedModel([0.5, 0.4, 0.1], [0.6, 0.3, 0.1])
    drafter = FixedModel([0.9, 0.05, 0.05], [0.2, 0.2, 0.6])
    p, accepted = _check(
        target, SamplingParams(max_tokens=LENGTH), method, partial(path_draft, drafter=drafter)
    )
    assert p > 0.001
    assert accepted > 0


@pytest.mark.parametrize("salt", ["0", "1"])
def test_a_block_does_not_reuse_the_numbers_that_rejected_the_one_before(salt: str) -> None:
    # With these models, keying by position alone gives p below 1e-9.
    target = HashModel(vocab_size=3 - int(salt), spread=1.0, salt=f"t{salt}")
    drafter = HashModel(vocab_size=3 - int(salt), spread=1.0, salt=f"d{salt}")
    p, _ = _check(
        target, SamplingParams(max_tokens=LENGTH), "block", partial(path_draft, drafter=drafter)
    )
    assert p > 0.001


def test_siblings_of_a_drafter_that_likes_the_wrong_token() -> None:
    target = FixedModel([0.1, 0.2, 0.3, 0.4])
    drafter = FixedModel([0.6, 0.3, 0.07, 0.03])
    p, accepted = _check(
        target,
        SamplingParams(max_tokens=LENGTH),
        "standard",
        partial(_siblings_without_replacement, drafter=drafter),
    )
    assert p > 0.001
    assert accepted > 0


@pytest.mark.parametrize("method", ["standard", "block"])
def test_the_processed_distribution_is_the_target(method: Method) -> None:
    # sglang 33643: penalties must see each token of the accepted prefix.
    params = SamplingParams(
        max_tokens=LENGTH,
        temperature=0.8,
        top_k=4,
        top_p=0.93,
        min_p=0.02,
        presence_penalty=0.4,
        frequency_penalty=0.9,
    )
    p, accepted = _check(MODEL, params, method, DRAFTERS["probabilistic path"])
    assert p > 0.001
    assert accepted > 0


def test_a_drafter_equal_to_the_target_is_always_accepted() -> None:
    params = SamplingParams(max_tokens=LENGTH)
    rng = np.random.default_rng(0)
    methods: tuple[Method, ...] = ("standard", "block")
    for method in methods:
        for seed in range(50):
            run = generate(
                MODEL,
                [0],
                params,
                DRAFTERS["path of the model itself"],
                seed=seed,
                rng=rng,
                method=method,
            )
            assert run.accepted == LENGTH - 1


def test_block_accepts_at_least_as_much_as_standard() -> None:
    target = HashModel(vocab_size=VOCAB, spread=1.0, salt="b")
    params = SamplingParams(max_tokens=64)
    accepted = {}
    methods: tuple[Method, ...] = ("standard", "block")
    for method in methods:
        rng = np.random.default_rng(1)
        drafter = partial(path_draft, drafter=DRAFTER, length=6)
        steps = total = 0
        for seed in range(25):
            run = generate(target, [0], params, drafter, seed=seed, rng=rng, method=method)
            steps += len(run.verdicts)
            total += run.accepted
        accepted[method] = total / steps
    assert accepted["block"] > accepted["standard"] > 0


def test_sharing_the_targets_randomness_accepts_more() -> None:
    """The drafter of method ``coupled`` should draw with the target's own numbers."""

    def drafting(coupled: bool) -> int:
        agreed = 0
        for seed in range(400):
            q = DRAFTER.softmax([0])
            token = draw_draft_token(q, seed, 0, 0, coupled=coupled)
            draft = Draft.path([token], source=Source.DRAFT_MODEL)
            verdict = verify(
                MODEL.rows([0], draft), draft, RowState([0], seed=seed), SamplingParams()
            )
            agreed += len(verdict.accepted)
        return agreed

    assert drafting(True) > 1.2 * drafting(False)


@pytest.mark.parametrize("method", ["coupled", "standard", "block"])
def test_a_token_of_probability_zero_is_never_accepted(method: Method) -> None:
    # sglang 35771: u <= p/q accepts it where u is 0.
    logits = torch.zeros(3, VOCAB)
    logits[:, 2] = -torch.inf
    q = torch.zeros(2, VOCAB)
    q[:, 2] = 1.0
    draft = Draft.path([2, 2], source=Source.DRAFT_MODEL)
    for probs in (None, q, torch.full((2, VOCAB), 0.2)):
        for seed in range(200):
            state = RowState([0], seed=seed)
            verdict = verify(logits, draft, state, SamplingParams(), method, probs)
            assert verdict.accepted == ()
            assert len(verdict.token_ids) == 1
            assert verdict.token_ids[0] != 2


def test_truncation_gives_probability_zero_too() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0, -1.0]] * 2)
    draft = Draft.path([3], source=Source.DRAFT_MODEL)
    for params in (
        SamplingParams(top_k=2),
        SamplingParams(top_p=0.5),
        SamplingParams(min_p=0.3),
        SamplingParams(logit_bias={3: -100.0}),
    ):
        for seed in range(100):
            verdict = verify(
                logits, draft, RowState([0], seed=seed), params, "standard", torch.eye(5)[3][None]
            )
            assert verdict.accepted == ()
