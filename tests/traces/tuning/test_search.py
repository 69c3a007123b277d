"""The search against a made-up world, in which the best setting is known."""

from __future__ import annotations

import time
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest

from suffixspec_index.errors import ConfigError
from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_traces.tuning.evaluate import Score
from suffixspec_traces.tuning.search import (
    Halt,
    Search,
    SearchOptions,
    Trial,
    best_of,
    one_by_one,
    pareto_front,
)
from suffixspec_traces.tuning.space import FAMILIES, NGRAM, SUFFIX
from suffixspec_traces.tuning.storage import open_storage
from suffixspec_traces.tuning.workers import Workers


class World(Workers):
    """Few tokens are best among many requests, many among few; waste grows with tokens."""

    def __init__(self, width: int = 1, stop_after: int | None = None) -> None:
        self.width = width
        self.asked: list[tuple[SpeculativeConfig, int]] = []
        self.halt = Halt()
        self.stop_after = stop_after

    def submit(self, config: SpeculativeConfig, concurrency: int) -> Future[Score | None]:
        future: Future[Score | None] = Future()
        if self.stop_after is not None and len(self.asked) >= self.stop_after:
            self.halt.set()
            future.set_result(None)
            return future
        self.asked.append((config, concurrency))
        tokens = config.num_speculative_tokens
        ms = 5 + abs(tokens - 32 / concurrency) / 8 + 0.01 * config.min_match_len
        ms += 1.0 if config.method == "ngram" else 0.0
        future.set_result(made(ms, tokens / 10))
        return future

    def close(self) -> None:
        """Nothing to close."""


def made(ms: float, wasted: float) -> Score:
    return Score(
        output_tokens=1000,
        steps=500,
        drafted=500 + round(1000 * wasted),
        accepted=500,
        largest_draft=4,
        plain_ms_per_token=8.0,
        ms_per_token=ms,
        proposer_ms_per_token=0.0,
        plain_ms=np.ones(2),
        spent_ms=np.ones(2),
    )


def searched(world: World, options: SearchOptions, file: Path | None = None) -> Search:
    search = Search(
        world, open_storage(None if file is None else str(file)), "test", options, world.halt
    )
    search.run()
    return search


def trial(ms: float, wasted: float, number: int = 0, proposer: float = 0.0) -> Trial:
    return Trial(NGRAM, 1, number, NGRAM.starts[0], ms, wasted, proposer, 8.0, 2.0, sweep=False)


def test_it_finds_what_suits_each_concurrency() -> None:
    search = searched(World(), SearchOptions((1, 8), trials=40))
    tokens = {}
    for n in (1, 8):
        best = best_of(search.trials(n))
        assert best is not None
        assert best.family is not NGRAM
        tokens[n] = best.config.num_speculative_tokens
    assert tokens[1] in (24, 32, 48)
    assert tokens[8] in (3, 4, 5)


def test_each_family_gets_its_share_and_thresholds_are_tried_one_by_one() -> None:
    search = searched(World(), SearchOptions((4,), trials=20))
    trials = search.trials(4)
    counts = {f.name: sum(t.family is f and not t.sweep for t in trials) for f in FAMILIES}
    assert counts == {"suffix": 12, "vllm-suffix": 4, "ngram": 4}
    reference = search.reference(4)
    assert reference is not None
    rows = one_by_one(reference, trials)
    assert set(rows) == set(reference.family.ladders) - reference.family.inert(reference.values)
    for name, tried in rows.items():
        assert reference in tried
        assert len(tried) >= 2
        for other in tried:
            different = [k for k, v in other.values.items() if v != reference.values[k]]
            assert different in ([], [name])


def test_without_sensitivity_only_the_search_runs() -> None:
    search = searched(World(), SearchOptions((4,), trials=12, sensitivity=False))
    assert len(search.trials(4)) == 12


@pytest.mark.parametrize("width", [1, 3])
def test_the_same_seed_gives_the_same_trials(width: int) -> None:
    worlds = [World(width), World(width), World(width)]
    for world, seed in zip(worlds, (1, 1, 2), strict=True):
        searched(world, SearchOptions((2,), trials=40, seed=seed))
    assert worlds[0].asked == worlds[1].asked != worlds[2].asked


def test_no_setting_is_decoded_twice() -> None:
    world = World()
    searched(world, SearchOptions((2,), trials=60))
    keys = [(str(c.to_dict()), n) for c, n in world.asked]
    assert len(keys) == len(set(keys))


def test_it_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    file = tmp_path / "journal"
    options = SearchOptions((1, 8), trials=12, sensitivity=False)
    first = World(stop_after=13)
    stopped = searched(first, options, file)
    assert sum(len(stopped.trials(n)) for n in (1, 8)) == 13
    assert all(len(stopped.trials(n)) >= 5 for n in (1, 8))  # both advanced
    second = World()
    search = searched(second, options, file)
    assert search.found_before == 13
    assert [sum(not t.sweep for t in search.trials(n)) for n in (1, 8)] == [12, 12]
    third = World()
    again = searched(third, options, file)
    assert third.asked == []
    assert [again.trials(n) for n in (1, 8)] == [search.trials(n) for n in (1, 8)]


def test_a_sweep_that_was_stopped_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "journal"
    options = SearchOptions((1,), trials=12)
    whole = len(searched(World(), options).trials(1))
    searched(World(stop_after=15), options, file)
    assert len(searched(World(), options, file).trials(1)) == whole


def test_more_trials_go_on_from_fewer(tmp_path: Path) -> None:
    file = tmp_path / "journal"
    options = SearchOptions((1,), trials=12, sensitivity=False)
    searched(World(), options, file)
    more = World()
    search = searched(more, SearchOptions((1,), trials=20, sensitivity=False), file)
    assert len(search.trials(1)) == 20
    assert len(more.asked) <= 8


def test_other_data_are_another_search(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "journal"))
    options = SearchOptions((1,), trials=11, sensitivity=False)
    for identity in ("one", "two"):
        search = Search(World(), storage, identity, options, Halt())
        assert search.found_before == 0
        search.run()


def test_a_fault_in_a_trial_is_not_hidden(tmp_path: Path) -> None:
    class Faulty(World):
        def submit(self, config: SpeculativeConfig, concurrency: int) -> Future[Score | None]:
            future: Future[Score | None] = Future()
            future.set_exception(RuntimeError("broken"))
            return future

    with pytest.raises(RuntimeError, match="broken"):
        searched(Faulty(3), SearchOptions((1,), trials=11))


def test_progress_reaches_its_end() -> None:
    said: list[tuple[int, int, str]] = []
    world = World()
    Search(
        world,
        open_storage(None),
        "test",
        SearchOptions((1,), trials=12),
        world.halt,
        lambda done, planned, text: said.append((done, planned, text)),
    ).run()
    assert said[0] == (0, 12, "searching")
    assert (12, 12, "searching") in said
    assert said[-1][0] == said[-1][1] > 0
    assert said[-1][2] == "one threshold at a time"


def test_the_best_is_the_fastest_and_of_equals_the_thriftiest() -> None:
    assert best_of([]) is None
    fast, thrifty, slow = trial(5.0, 3.0), trial(5.02, 1.0, 1), trial(5.2, 0.1, 2)
    assert best_of([fast, thrifty, slow]) is thrifty
    busy = trial(4.99, 0.5, 3, proposer=1.0)  # its proposer costs more than it gains
    assert best_of([busy, fast, thrifty, slow]) is thrifty


def test_the_front_holds_what_nothing_beats() -> None:
    a, b, c = trial(1.0, 3.0, 0), trial(2.0, 2.0, 1), trial(3.0, 1.0, 2)
    beaten = [trial(2.5, 2.0, 3), trial(1.0, 3.0, 4), trial(4.0, 4.0, 5)]
    assert pareto_front([c, *beaten[:1], a, b, *beaten[1:]]) == [a, b, c]


def test_time_and_interrupts_halt() -> None:
    interrupt = Halt()
    halt = Halt(interrupt, timeout_s=0.02)
    assert not halt.is_set()
    time.sleep(0.03)
    assert halt.timed_out
    assert not halt.interrupted
    interrupt.set()
    assert halt.interrupted
    with pytest.raises(ConfigError, match="timeout"):
        Halt(timeout_s=0)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"concurrencies": ()}, "concurrency"),
        ({"concurrencies": (0,)}, "concurrency"),
        ({"concurrencies": (2, 2)}, "concurrency"),
        ({"trials": 10}, "trials"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        SearchOptions(**options)  # type: ignore[arg-type]


def test_a_trial_knows_its_setting() -> None:
    assert trial(1, 1).config == NGRAM.config(NGRAM.starts[0])
    assert SUFFIX.title == "suffix"
