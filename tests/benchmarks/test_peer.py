"""The peer's replay for many settings at once equals each setting's own."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import peer
from benchmarks.data import Turns
from benchmarks.peer import PeerSettings

pytestmark = pytest.mark.skipif(
    not peer.available(), reason="arctic-inference is not installed (benchmarks/install_peer.sh)"
)


def sessions() -> list[Turns]:
    rng = np.random.default_rng(5)
    phrases = [rng.integers(0, 50, rng.integers(5, 40)).astype(np.int32) for _ in range(12)]
    made: list[Turns] = []
    for _ in range(4):
        history = rng.integers(0, 50, 30).astype(np.int32)
        turns = []
        for _ in range(3):
            output = np.concatenate([phrases[i] for i in rng.integers(0, 12, 4)])
            turns.append((history, output))
            history = np.concatenate([history, output, rng.integers(0, 50, 9).astype(np.int32)])
        made.append(turns)
    return made


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_side_by_side_equals_alone() -> None:
    settings = [
        PeerSettings(24, f, o, 0.1, 16, t)
        for f in (1.0, 4.0)
        for o in (0, 1)
        for t in (False, True)
    ]
    together = peer.frontier(sessions(), settings)
    for one, count in zip(settings, together, strict=True):
        alone, seconds = peer.replay_alone(sessions(), one)
        assert seconds > 0
        assert (alone.steps, alone.drafted, alone.accepted, alone.tokens, alone.by_size) == (
            count.steps,
            count.drafted,
            count.accepted,
            count.tokens,
            count.by_size,
        )
    assert together[0].tokens_per_step > 1.2


def test_settings_of_several_depths_are_refused() -> None:
    with pytest.raises(ValueError, match="one depth"):
        peer.frontier(sessions(), [PeerSettings(24), PeerSettings(64)])
