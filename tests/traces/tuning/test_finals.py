from __future__ import annotations

import threading
from typing import Any

from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_traces.tuning.evaluate import Bench, Score
from suffixspec_traces.tuning.finals import timed_again
from suffixspec_traces.tuning.search import Trial, best_of
from suffixspec_traces.tuning.space import NGRAM, SUFFIX, Family
from suffixspec_traces.tuning.split import Parts
from tests.traces.tuning.talk import FLAT, VOCABULARY, talks


def trial(family: Family, place: int, ms: float, proposer: float) -> Trial:
    name = "num_speculative_tokens"
    values = family.starts[0] | {name: family.ladders[name][place]}
    return Trial(family, 1, place, values, ms, 1.0, proposer, 9.0, 2.0, sweep=False)


def test_a_disturbed_measurement_is_made_good() -> None:
    bench = Bench(Parts.split(talks(6)), FLAT, VOCABULARY)
    trials = [trial(SUFFIX, i, 5.0 + i / 10, 0.1) for i in range(4)]
    trials.append(trial(SUFFIX, 5, 4.0, 50.0))  # by far the best, but for its measured time
    trials.append(trial(NGRAM, 0, 7.0, 0.0))
    said: list[str] = []
    timed = timed_again(bench, 1, trials, progress=said.append)
    assert best_of(trials) is trials[0]
    best = best_of(timed)
    assert best is not None
    assert best.number == 5
    assert best.proposer_ms_per_token < 1
    assert [t.ms_per_token for t in timed] == [t.ms_per_token for t in trials]
    assert timed[-1].proposer_ms_per_token == 0.0  # the lesser counts
    assert said[-1].endswith(f"{len(said)} of {len(said)}")


def test_only_the_best_are_timed() -> None:
    asked: list[SpeculativeConfig] = []

    class Counting(Bench):
        def evaluate(self, config: SpeculativeConfig, *args: Any, **more: Any) -> Score | None:
            asked.append(config)
            return None if len(asked) == 3 else super().evaluate(config, *args, **more)

    bench = Counting(Parts.split(talks(6)), FLAT, VOCABULARY)
    trials = [trial(SUFFIX, i, 5.0 + i, 0.1) for i in range(12)]
    timed = timed_again(bench, 1, trials, stop=threading.Event())
    assert len(asked) == 3  # and it ends when it is stopped
    assert [t.number for t in timed] == list(range(12))
    assert asked[0] == trials[0].config
