"""The search: one Optuna study per concurrency and family, advanced in turn.

Two objectives: predicted time per output token, and wasted tokens per output token. The studies
advance in proportion, so that a search that is stopped early knows something of each. When
their trials are done, the thresholds around the best setting of each concurrency are tried one by
one: that shows how sensitive each is, and finds what the search passed by.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from suffixspec_index.errors import ConfigError
from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_traces.tuning.evaluate import Score
from suffixspec_traces.tuning.space import FAMILIES, SPACE_VERSION, Family, Params, Values
from suffixspec_traces.tuning.storage import import_optuna
from suffixspec_traces.tuning.workers import Workers, result_of

if TYPE_CHECKING:
    import optuna

SearchProgress = Callable[[int, int, str], None]
"""Called with (trials done, trials planned, what is being done)."""

TOLERANCE = 0.005
"""Settings this close to the fastest count as equally fast; the least wasteful of them is taken."""

_SCORE = "score"  # user attributes of trials: what was measured besides the objectives,
_PLANNED = "planned"  # the places of a setting that was enqueued,
_SWEEP = "sweep"  # and whether that was to see how sensitive a threshold is


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """``trials`` is per concurrency, over all families; one-by-one trials come on top."""

    concurrencies: tuple[int, ...] = (1, 8, 64)
    trials: int = 60
    seed: int = 0
    sensitivity: bool = True

    def __post_init__(self) -> None:
        if not self.concurrencies:
            raise ConfigError("concurrency: give at least one")
        for n in self.concurrencies:
            if n < 1:
                raise ConfigError(f"concurrency: must be at least 1, got {n}")
        if len(set(self.concurrencies)) < len(self.concurrencies):
            raise ConfigError(f"concurrency: {list(self.concurrencies)} names one twice")
        least = sum(len(family.starts) for family in FAMILIES)
        if self.trials < least:
            raise ConfigError(
                f"trials: must be at least {least}, the settings that are always tried, "
                f"got {self.trials}"
            )

    def trials_of(self, family: Family) -> int:
        """Trials of a family: its share, but at least its starts; the first family has the rest."""
        if family is not FAMILIES[0]:
            return max(round(family.share * self.trials), len(family.starts))
        return self.trials - sum(self.trials_of(other) for other in FAMILIES[1:])


@dataclass(frozen=True, slots=True)
class Trial:
    """A setting that was tried on the tuning part.

    Attributes:
        ms_per_token: predicted, without the proposer's time: the first objective.
        wasted_per_token: the second objective.
        proposer_ms_per_token: measured.
        plain_ms_per_token: predicted without speculation.
        sweep: it was tried to see how sensitive a threshold is.
    """

    family: Family
    concurrency: int
    number: int
    values: Values
    ms_per_token: float
    wasted_per_token: float
    proposer_ms_per_token: float
    plain_ms_per_token: float
    tokens_per_step: float
    sweep: bool

    @property
    def config(self) -> SpeculativeConfig:
        """The setting."""
        return self.family.config(self.values)

    @property
    def total_ms_per_token(self) -> float:
        """The proposer's time included."""
        return self.ms_per_token + self.proposer_ms_per_token


class Halt(threading.Event):
    """Set when ``interrupt`` is, by :meth:`set`, or by itself when the time is over."""

    def __init__(
        self, interrupt: threading.Event | None = None, *, timeout_s: float | None = None
    ) -> None:
        super().__init__()
        if timeout_s is not None and not timeout_s > 0:
            raise ConfigError(f"timeout: must be above 0 seconds, got {timeout_s}")
        self._interrupt = interrupt
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s

    def is_set(self) -> bool:
        """Whether to stop."""
        return self.interrupted or self.timed_out

    @property
    def interrupted(self) -> bool:
        """Whether somebody said so."""
        return super().is_set() or (self._interrupt is not None and self._interrupt.is_set())

    @property
    def timed_out(self) -> bool:
        """Whether the time is over."""
        return self._deadline is not None and time.monotonic() >= self._deadline


@dataclass(slots=True)
class _Lane:
    """One study. ``wanted`` counts the search's trials, ``sweeps`` those that were enqueued."""

    study: optuna.Study
    family: Family
    concurrency: int
    wanted: int
    under_way: int = 0

    def finished(self) -> list[Trial]:
        """Its trials so far, those of other machines included, in the order of their numbers."""
        complete = import_optuna().trial.TrialState.COMPLETE
        trials = self.study.get_trials(deepcopy=False, states=(complete,))
        return [self._trial(t) for t in trials if _SCORE in t.user_attrs]

    def _trial(self, stored: optuna.trial.FrozenTrial) -> Trial:
        score = stored.user_attrs[_SCORE]
        ms, wasted = stored.values
        return Trial(
            family=self.family,
            concurrency=self.concurrency,
            number=stored.number,
            values=self.family.values(stored.params),
            ms_per_token=ms,
            wasted_per_token=wasted,
            proposer_ms_per_token=score["proposer_ms_per_token"],
            plain_ms_per_token=score["plain_ms_per_token"],
            tokens_per_step=score["tokens_per_step"],
            sweep=bool(stored.user_attrs.get(_SWEEP)),
        )

    def searched(self) -> int:
        """Finished trials of the search proper."""
        return sum(not t.sweep for t in self.finished())

    def waiting(self) -> int:
        """Enqueued trials that nobody has begun."""
        state = import_optuna().trial.TrialState.WAITING
        return len(self.study.get_trials(deepcopy=False, states=(state,)))

    def enqueue(self, values: Values, *, sweep: bool) -> None:
        """Have a setting tried, unless it was or is about to be."""
        params = self.family.params(values)
        states = import_optuna().trial.TrialState
        trials = self.study.get_trials(
            deepcopy=False, states=(states.COMPLETE, states.RUNNING, states.WAITING)
        )
        if all(t.user_attrs.get(_PLANNED, t.params) != params for t in trials):
            self.enqueue_params(params, sweep=sweep)

    def enqueue_params(self, params: Params, *, sweep: bool) -> None:
        """Have a setting tried."""
        self.study.enqueue_trial(params, user_attrs={_PLANNED: params, _SWEEP: sweep})


@dataclass(slots=True)
class _Running:
    lane: _Lane
    trial: optuna.Trial
    future: Future[Score | None] | None  # None: the setting is known already
    same: Trial | None = None


class Search:
    """See the module docstring.

    Args:
        workers: where trials run.
        storage: where they are kept; with the same ``identity`` a search goes on from it.
        identity: what the search is about (data, cost model); part of the studies' names.
        halt: ends the search early; what is under way is given up.
    """

    def __init__(
        self,
        workers: Workers,
        storage: optuna.storages.BaseStorage,
        identity: str,
        options: SearchOptions,
        halt: Halt,
        progress: SearchProgress | None = None,
    ) -> None:
        self.options = options
        self._workers = workers
        self._halt = halt
        self._progress = progress or (lambda done, planned, text: None)
        self._running: deque[_Running] = deque()
        self._lanes = [
            self._lane(storage, identity, n, family)
            for n in options.concurrencies
            for family in FAMILIES
        ]
        self.found_before = sum(len(lane.finished()) for lane in self._lanes)

    def run(self) -> None:
        """Search until the trials are done or ``halt`` is set."""
        self._advance("searching", lambda x: x.wanted - x.searched() - x.under_way)
        if not self.options.sensitivity or self._halt.is_set():
            return
        for n in self.options.concurrencies:
            best = self.reference(n)
            assert best is not None
            lane = next(x for x in self._lanes if x.concurrency == n and x.family is best.family)
            for values in best.family.neighbours(best.values):
                lane.enqueue(values, sweep=True)
        self._advance("one threshold at a time", lambda x: x.waiting())

    def trials(self, concurrency: int) -> list[Trial]:
        """All finished trials of a concurrency."""
        return [
            t for lane in self._lanes if lane.concurrency == concurrency for t in lane.finished()
        ]

    def reference(self, concurrency: int) -> Trial | None:
        """The best setting of the search proper, around which thresholds are tried one by one."""
        return best_of([t for t in self.trials(concurrency) if not t.sweep])

    # --- inside ----------------------------------------------------------------------------------

    def _lane(
        self,
        storage: optuna.storages.BaseStorage,
        identity: str,
        concurrency: int,
        family: Family,
    ) -> _Lane:
        optuna = import_optuna()
        study = optuna.create_study(
            storage=storage,
            study_name=f"{identity}-v{SPACE_VERSION}-{family.name}-at-{concurrency}",
            directions=["minimize", "minimize"],
            load_if_exists=True,
        )
        known = len(study.get_trials(deepcopy=False))
        # A search that goes on must not draw again what it drew before.
        study.sampler = optuna.samplers.TPESampler(
            seed=self.options.seed + 1000 * known, multivariate=True
        )
        lane = _Lane(study, family, concurrency, self.options.trials_of(family))
        if not known:
            for values in family.starts:
                lane.enqueue(values, sweep=False)
        return lane

    def _advance(self, text: str, left: Callable[[_Lane], int]) -> None:
        """Try settings until no lane has any left: always the lane that is furthest behind.

        What is left is asked anew each time, because other machines may be at it too.
        """
        planned = {id(lane): max(left(lane), 0) for lane in self._lanes}
        total, done = sum(planned.values()), 0
        self._progress(done, total, text)
        try:
            while True:
                room = len(self._running) < self._workers.width and not self._halt.is_set()
                lanes = {id(x): (x, left(x)) for x in self._lanes} if room else {}
                behind = [(n / max(planned[i], 1), x) for i, (x, n) in lanes.items() if n > 0]
                if behind:
                    self._begin(max(behind, key=lambda pair: pair[0])[1])
                elif self._running:
                    self._end(self._running.popleft())
                    done += 1
                    self._progress(min(done, total), total, text)
                else:
                    return
        finally:
            while self._running:
                self._give_up(self._running.popleft())

    def _begin(self, lane: _Lane) -> None:
        trial = lane.study.ask()
        values = lane.family.suggest(trial)
        same = next((t for t in lane.finished() if t.values == values), None)
        running = _Running(lane, trial, None, same)
        lane.under_way += 1
        self._running.append(running)
        if same is None:
            running.future = self._workers.submit(lane.family.config(values), lane.concurrency)

    def _end(self, running: _Running) -> None:
        found: Trial | Score | None = running.same
        if running.future is not None:
            found = result_of(running.future, self._halt)
        if found is None:
            self._give_up(running)
            return
        running.lane.under_way -= 1
        score = {
            "proposer_ms_per_token": found.proposer_ms_per_token,
            "plain_ms_per_token": found.plain_ms_per_token,
            "tokens_per_step": found.tokens_per_step,
        }
        running.trial.set_user_attr(_SCORE, score)
        running.lane.study.tell(running.trial, [found.ms_per_token, found.wasted_per_token])

    def _give_up(self, running: _Running) -> None:
        """A trial without a result; a setting that was enqueued stays so for the next run."""
        lane, attributes = running.lane, running.trial.user_attrs
        lane.under_way -= 1
        lane.study.tell(running.trial, state=import_optuna().trial.TrialState.FAIL)
        if _PLANNED in attributes:
            lane.enqueue_params(attributes[_PLANNED], sweep=attributes[_SWEEP])


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """The fastest, the proposer's time included; of those within :data:`TOLERANCE` of it the one
    that wastes least. ``None`` without trials."""
    if not trials:
        return None
    limit = min(t.total_ms_per_token for t in trials) * (1 + TOLERANCE)
    near = [t for t in trials if t.total_ms_per_token <= limit]
    return min(near, key=lambda t: (t.wasted_per_token, t.total_ms_per_token, t.number))


def pareto_front(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that no other beats in both objectives, fastest first. O(n log n)."""
    front: list[Trial] = []
    for trial in sorted(trials, key=lambda t: (t.ms_per_token, t.wasted_per_token)):
        if not front or trial.wasted_per_token < front[-1].wasted_per_token:
            front.append(trial)
    return front


def one_by_one(reference: Trial, trials: Sequence[Trial]) -> dict[str, list[Trial]]:
    """Threshold -> the trials that differ from the reference in it alone, in order of its value,
    the reference among them."""
    family = reference.family
    alike = [t for t in trials if t.family is family]
    found: dict[str, list[Trial]] = {}
    for name, ladder in family.ladders.items():
        if name in family.inert(reference.values):
            continue
        by_value: dict[int, Trial] = {ladder.index(reference.values[name]): reference}
        for trial in alike:
            if all(trial.values[k] == v for k, v in reference.values.items() if k != name):
                by_value.setdefault(ladder.index(trial.values[name]), trial)
        found[name] = [by_value[place] for place in sorted(by_value)]
    return found
