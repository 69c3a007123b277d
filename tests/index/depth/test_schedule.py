from __future__ import annotations

from suffixspec_index.depth import BatchSizeSchedule
from suffixspec_index.depth.schedule import PATIENCE
from suffixspec_index.speculative_config import SpeculativeConfig

CONFIG = SpeculativeConfig.from_dict(
    {
        "method": "suffix",
        "num_speculative_tokens": 8,
        "num_speculative_tokens_per_batch_size": [[1, 4, 8], [5, 16, 3], [17, 64, 0]],
    }
)


def test_ranges_are_honoured() -> None:
    for size, tokens in ((1, 8), (4, 8), (5, 3), (16, 3), (17, 0), (64, 0), (1000, 0)):
        assert BatchSizeSchedule(CONFIG).tokens_at(size) == tokens


def test_hovering_at_an_edge_never_flips() -> None:
    schedule = BatchSizeSchedule(CONFIG)
    seen = [schedule.tokens_at(16 + step % 2) for step in range(200)]
    assert set(seen) == {3}


def test_staying_a_little_outside_changes_in_time() -> None:
    schedule = BatchSizeSchedule(CONFIG)
    assert schedule.tokens_at(16) == 3
    seen = [schedule.tokens_at(17) for _ in range(PATIENCE + 2)]
    assert seen == [3] * (PATIENCE - 1) + [0] * 3
    assert schedule.tokens_at(16) == 0  # and the way back is as slow


def test_a_leap_changes_at_once() -> None:
    schedule = BatchSizeSchedule(CONFIG)
    assert [schedule.tokens_at(n) for n in (2, 40, 2)] == [8, 0, 8]
