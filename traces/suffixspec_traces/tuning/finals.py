"""Finals: the best settings are timed again before one of them is taken.

How long a proposer takes is measured, and a trial that other work interrupted looks slower than it
is, which matters where many requests share a step. So the settings that may be the best are decoded
once more, one after the other in this process, and the lesser of their times counts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from suffixspec_traces.tuning.evaluate import Bench
from suffixspec_traces.tuning.search import Trial
from suffixspec_traces.tuning.space import FAMILIES, SUFFIX

_EACH = 3  # of a group, by either order


def timed_again(
    bench: Bench,
    concurrency: int,
    trials: Sequence[Trial],
    *,
    stop: threading.Event | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[Trial]:
    """The trials, those of the finalists with the proposer's time as measured again.

    Stopped on the way, the rest keep theirs.
    """
    finalists = _finalists(trials)
    timed: dict[tuple[str, int], Trial] = {}
    for i, trial in enumerate(finalists):
        if progress is not None:
            progress(f"timing again, {concurrency} at a time: {i + 1} of {len(finalists)}")
        score = bench.evaluate(trial.config, concurrency, stop=stop)
        if score is None:
            break
        least = min(trial.proposer_ms_per_token, score.proposer_ms_per_token)
        timed[_key(trial)] = replace(trial, proposer_ms_per_token=least)
    return [timed.get(_key(t), t) for t in trials]


def _finalists(trials: Sequence[Trial]) -> list[Trial]:
    """The best of every family, and of the paths: by time as measured, and by the predicted part
    alone, which finds those whose measurement was disturbed."""
    groups: list[Iterable[Trial]] = [
        [t for t in trials if t.family is family] for family in FAMILIES
    ]
    groups.append(t for t in trials if t.family is SUFFIX and t.values["draft_shape"] == "path")
    found: dict[tuple[str, int], Trial] = {}
    for group in groups:
        distinct = {str(t.values): t for t in group}.values()
        for order in (_total, _predicted):
            found |= {_key(t): t for t in sorted(distinct, key=order)[:_EACH]}
    return list(found.values())


def _key(trial: Trial) -> tuple[str, int]:
    return trial.family.name, trial.number


def _total(trial: Trial) -> float:
    return trial.total_ms_per_token


def _predicted(trial: Trial) -> float:
    return trial.ms_per_token
