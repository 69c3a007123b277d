"""Learned acceptance: probabilities in drafts predict what the verifier will accept."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest

from suffixspec_index.acceptance import AcceptanceModel
from suffixspec_index.errors import SnapshotCorruptError
from suffixspec_index.index import SuffixIndex
from suffixspec_index.index_config import IndexConfig


def synthetic_source(seed: int) -> Callable[[], list[int]]:
    """Outputs of an agent that repeats itself imperfectly: phrases from a stock, each token of
    which is replaced now and then, with noise between them."""
    rng = random.Random(seed)
    stock = [[rng.randrange(200) for _ in range(rng.randrange(6, 25))] for _ in range(40)]
    shares = [rng.choice([0.02, 0.1, 0.3]) for _ in stock]

    def output() -> list[int]:
        tokens: list[int] = []
        while len(tokens) < 120:
            which = min(int(rng.paretovariate(0.8)) - 1, len(stock) - 1)
            tokens += [
                rng.randrange(200) if rng.random() < shares[which] else t for t in stock[which]
            ]
            tokens += [rng.randrange(200) for _ in range(rng.randrange(4))]
        return tokens

    return output


def play(
    index: SuffixIndex, output: Callable[[], list[int]], turns: int
) -> list[tuple[float, int]]:
    """Decode outputs as a greedy verifier would; returns (probability, accepted) of every drafted
    token."""
    seen: list[tuple[float, int]] = []
    for number in range(turns):
        handle = index.begin(f"s{number % 10}", [number % 7])
        tokens, at = output(), 0
        while at < len(tokens):
            draft = index.propose(handle)
            accepted = draft.accepted_by(tokens[at:])
            hits = set(accepted)
            seen += [(float(p), int(i in hits)) for i, p in enumerate(draft.probs)]
            gained = tokens[at : at + len(accepted) + 1]
            index.advance_batch(
                [handle], np.array(gained, np.int32), np.array([0, len(gained)], np.int64)
            )
            at += len(gained)
        index.finish(handle)
    return seen


def calibration_error(seen: list[tuple[float, int]], bins: int = 15) -> float:
    """Expected calibration error: mean gap between probability and frequency, over equal bins."""
    p, hit = np.array(seen).T
    which = np.minimum((p * bins).astype(int), bins - 1)
    gaps = [
        abs(p[which == b].mean() - hit[which == b].mean()) * (which == b).mean()
        for b in range(bins)
        if (which == b).any()
    ]
    return float(sum(gaps))


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("min_token_prob", [0.0, 0.1])
def test_probabilities_are_calibrated_after_training(tree: bool, min_token_prob: float) -> None:
    index = SuffixIndex(
        IndexConfig(tree=tree, min_token_prob=min_token_prob, num_speculative_tokens=12)
    )
    output = synthetic_source(5)
    before = calibration_error(play(index, output, 8))
    play(index, output, 150)
    seen = play(index, output, 120)
    assert len(seen) > 3000
    assert calibration_error(seen) < 0.05
    assert calibration_error(seen) < before or before < 0.05
    index.check_integrity()


def test_training_pays() -> None:
    """Of two indexes that draft alike many tokens, the trained one wastes fewer of them."""
    shares = []
    for rate in (0.0, 0.012):
        index = SuffixIndex(IndexConfig(learning_rate=rate, min_token_prob=0.35))
        output = synthetic_source(6)
        play(index, output, 150)
        seen = play(index, output, 60)
        shares.append(sum(hit for _, hit in seen) / len(seen))
    assert shares[1] > shares[0] - 0.02
    assert shares[1] > 0.5


def test_a_rate_of_zero_freezes() -> None:
    model = AcceptanceModel.new()
    index = SuffixIndex(IndexConfig(learning_rate=0.0), model=model)
    before = model.to_bytes()
    play(index, synthetic_source(7), 12)
    assert model.to_bytes() == before


def test_learning_changes_and_purging_resets() -> None:
    index = SuffixIndex(IndexConfig())
    play(index, synthetic_source(7), 6)
    assert index.model.to_bytes() != AcceptanceModel.new().to_bytes()
    index.purge()
    assert index.model.to_bytes() == AcceptanceModel.new().to_bytes()


@pytest.mark.parametrize("rate", [0.012, 0.3, 1.0])
def test_nothing_becomes_infinite(rate: float) -> None:
    """Input made to mislead: what has always been right turns wrong, again and again."""
    index = SuffixIndex(IndexConfig(learning_rate=rate, learning_memory=1.0, tree=True))
    rng = random.Random(9)
    for number in range(60):
        handle = index.begin("s", [1, 2, 3] * (1 + number % 3))
        for step in range(40):
            draft = index.propose(handle)
            draft.check_integrity()
            assert np.isfinite(draft.probs).all()
            wrong = rng.randrange(5) if step % 20 < 10 or not len(draft) else None
            tokens = draft.token_ids[:3].tolist() if wrong is None else [wrong]
            index.advance_batch(
                [handle], np.array(tokens, np.int32), np.array([0, len(tokens)], np.int64)
            )
        index.finish(handle)
    for table in (index.model.cells, index.model.odds, index.model.weights):
        assert np.isfinite(table).all()
    assert math.isfinite(float(np.abs(index.model.weights).max()))
    index.check_integrity()


def test_a_model_goes_on_in_another_index() -> None:
    first = SuffixIndex(IndexConfig())
    play(first, synthetic_source(5), 120)
    model = AcceptanceModel.from_bytes(first.model.to_bytes())
    second = SuffixIndex(IndexConfig(), model=model)
    fresh = SuffixIndex(IndexConfig())
    seen = play(second, synthetic_source(5), 40)
    assert calibration_error(seen) < calibration_error(play(fresh, synthetic_source(5), 40)) + 0.02


def test_bytes_come_back() -> None:
    index = SuffixIndex(IndexConfig())
    play(index, synthetic_source(3), 5)
    data = index.model.to_bytes()
    assert len(data) == index.model.nbytes
    assert AcceptanceModel.from_bytes(data).to_bytes() == data


def test_damaged_bytes_are_refused() -> None:
    data = AcceptanceModel.new().to_bytes()
    with pytest.raises(SnapshotCorruptError, match="bytes, expected"):
        AcceptanceModel.from_bytes(data[:-4])
    with pytest.raises(SnapshotCorruptError, match="not finite"):
        AcceptanceModel.from_bytes(np.float32("nan").tobytes() + data[4:])


def test_old_experience_fades() -> None:
    """Text that used to come true and no longer does is believed less, and soon."""
    output, noise = synthetic_source(1), random.Random(2)
    index = SuffixIndex()
    play(index, output, 60)

    def broken() -> list[int]:  # the same phrases, each cut off by noise after three tokens
        tokens = output()
        return [noise.randrange(200) if i % 4 == 3 else t for i, t in enumerate(tokens)]

    first, later = play(index, broken, 10), play(index, broken, 60)[-2000:]
    assert calibration_error(later) < 0.08
    overrated, now = (float(np.mean([p - hit for p, hit in seen])) for seen in (first, later))
    assert overrated > 0.05
    assert abs(now) < overrated / 2
