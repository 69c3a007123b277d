"""The packed attention against each branch of each request's tree computed alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from suffixspec_engine.attention import PackedRow, PackedStep  # noqa: E402
from suffixspec_engine.cache import SequenceCache  # noqa: E402

if TYPE_CHECKING:
    from suffixspec_engine.models import TargetModel


def ancestors(parents: list[int], node: int) -> list[int]:
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


@pytest.mark.parametrize("seed", range(6))
def test_a_packed_step_equals_every_branch_alone(
    target: TargetModel, reference: Any, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rows: list[PackedRow] = []
    tokens: list[int] = []
    expected: list[Any] = []
    for _ in range(4):
        past = int(rng.integers(0, 40))
        context = rng.integers(0, 256, past + 1).tolist()
        size = int(rng.integers(0, 7))
        nodes = rng.integers(0, 256, size).tolist()
        parents = [int(rng.integers(-1, i)) for i in range(size)]
        cache = SequenceCache(target.shapes, target.dtype, target.device, 64)
        if past:
            cache.reserve(past)
            target.run(PackedStep([PackedRow(cache, 0, past, 0)]), context[:past], [past - 1])
            cache.commit(context[:past], range(past))
        cache.reserve(past + 1 + size)
        tree = np.array(parents, np.int32) if size else None
        rows.append(PackedRow(cache, len(tokens), 1 + size, past, tree))
        tokens += [context[-1], *nodes]
        with torch.inference_mode():
            for node in range(-1, size):
                branch = context + [nodes[i] for i in ancestors(parents, node)]
                expected.append(reference(torch.tensor([branch])).logits[0, -1])
    given = target.run(PackedStep(rows), tokens, np.arange(len(tokens)))
    torch.testing.assert_close(given, torch.stack(expected), rtol=1e-4, atol=1e-4)


def test_positions_follow_depth() -> None:
    cache = SequenceCache((), torch.float32, torch.device("cpu"), 8)
    tree = np.array([-1, -1, 0, 2], np.int32)
    step = PackedStep([PackedRow(cache, 0, 3, 7), PackedRow(cache, 3, 5, 2, tree)])
    assert step.position_ids().tolist() == [7, 8, 9, 2, 3, 3, 4, 5]
    assert step.num_tokens == 8
