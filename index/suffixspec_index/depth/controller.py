"""The dynamic rule: depths of a whole step by expected gain against time.

Depths follow from three things: the drafts' probabilities, calibrated by what came true; the cost
of a longer step; and the going rate, which says what time is worth. A request whose drafts keep
coming to nothing is drafted for ever more rarely where drafting itself takes time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.config_values import as_integer, as_real
from suffixspec_index.depth.allocation import allocate
from suffixspec_index.depth.backoff import BackOff
from suffixspec_index.depth.base import DepthRule, StepPlan
from suffixspec_index.depth.calibration import MEMORY, DraftCalibration
from suffixspec_index.depth.costs import CostCurves, Floats, StepCost
from suffixspec_index.depth.rates import GoingRates
from suffixspec_index.depth.schedule import BatchSizeSchedule
from suffixspec_index.draft import DraftBatch
from suffixspec_index.kernels import depth as kernels

_LEAST_PROB = 0.01  # a draft token less probable than this is not worth the proposer's time
_DEEPEST = 64
_Experience = tuple[DraftCalibration, NDArray[np.int64]]  # of a namespace, and its rows
_COSTLY = 0.005  # of a plain step: drafting a token for every request; above, drafts are foreseen


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthSettings:
    """How depths are chosen.

    Attributes:
        load: requests that a step is taken to hold at least; for replays, which may have fewer
            sessions in flight than the load they stand for.
        longest_wait: most steps that a request is left without drafts before the next probe.
        balance_fade: per step, of what a request's own acceptance is judged by.
        own_acceptance: whether a request's own recent acceptance scales its probabilities.
    """

    load: int = 1
    longest_wait: int = 32
    balance_fade: float = 0.97
    own_acceptance: bool = True

    def __post_init__(self) -> None:
        as_integer(self.load, "load", minimum=1)
        as_integer(self.longest_wait, "longest_wait", minimum=0)
        as_real(self.balance_fade, "balance_fade", minimum=0.0, maximum=1.0)


class DepthController(DepthRule):
    """See the module docstring. Not thread-safe: it belongs to one engine or replay.

    Args:
        cost: what a step takes.
        settings: see :class:`DepthSettings`.
        schedule: bounds draft lengths by batch size as well; ``None``: nothing does.
        calibration: experience to go on from.

    Attributes:
        rates: the going rates.
        calibration: what sources' claims are worth.
        chosen, offered: draft tokens verified and drafted so far.
    """

    def __init__(
        self,
        cost: StepCost,
        settings: DepthSettings | None = None,
        *,
        schedule: BatchSizeSchedule | None = None,
        calibration: DraftCalibration | None = None,
    ) -> None:
        self.settings = settings or DepthSettings()
        self.rates = GoingRates()
        self.calibration = calibration or DraftCalibration()
        self.offered = self.chosen = 0
        self._schedule = schedule
        self._curves = CostCurves(cost)
        self._backoff = BackOff(self.settings.longest_wait)
        self._slots: dict[int, int] = {}
        self._free: list[int] = []
        self._balance: Floats = np.zeros((16, 2))
        self._survived: Floats = np.zeros((_DEEPEST, 2))
        self._draft_ms = 0.0  # per draft token, lately
        self._step: _Step | None = None

    # --- a step, in the order of the calls -------------------------------------------------------

    def plan(
        self,
        requests: Sequence[int],
        *,
        context_tokens: float,
        tokens: int | None = None,
        limits: Sequence[int] | NDArray[np.integer[Any]] | None = None,
        weights: Sequence[float] | None = None,
    ) -> StepPlan:
        """See :meth:`.base.DepthRule.plan`. O(rows)."""
        n = len(requests)
        rows = max(n, 1)
        load = max(self.settings.load, rows)
        scale = load / rows
        base = load if tokens is None else max(round(tokens * scale), 1)
        context = context_tokens * scale
        most = _DEEPEST * rows if limits is None else int(np.sum(limits))
        plain = max(float(self._curves.curve(load, context, load, 0)[0][0]), 1e-9)
        furthest = int(most * scale) + 1
        curve, slopes = self._curves.curve(base, context, load, furthest)
        rate = self.rates.speedup(load) * load / plain
        slots = np.array([self._slot(r) for r in requests], np.int64)
        trust, heaviest = np.ones(n), 1.0
        if self.settings.own_acceptance:
            trust = _trust(self._balance[slots])
        if weights is not None:
            relative = np.asarray(weights, np.float64) / np.mean(weights)
            trust, heaviest = trust * relative, float(relative.max())
        self._step = _Step(slots, load, scale, plain, curve, rate, trust)
        floor = min(max(rate * float(slopes[furthest]) / heaviest, _LEAST_PROB), 1.0)
        return StepPlan(self._limits(self._step, limits, n), floor)

    def choose(
        self, drafts: DraftBatch, experience: Sequence[DraftCalibration] | None = None
    ) -> DraftBatch:
        """The part of the drafts that is worth verifying, with calibrated probabilities.
        O(n log n) in the draft tokens."""
        step = self._step
        assert step is not None
        n = len(drafts.token_ids)
        step.offered, step.probs = drafts, drafts.probs
        if not n:
            return drafts
        step.experience = _grouped(experience or [self.calibration] * len(step.slots))
        step.probs = _calibrated(drafts, step.experience)
        judged = DraftBatch(
            drafts.offsets,
            drafts.token_ids,
            drafts.parents,
            step.probs,
            drafts.sources,
            drafts.match_lens,
        )
        chosen = allocate(judged, step.trust, step.curve, step.rate, scale=step.scale)
        step.chosen = len(chosen.token_ids)
        self.offered += n
        self.chosen += step.chosen
        self._backoff.count(step.slots, drafts.offsets, chosen.offsets)
        return chosen

    def claims(self, chosen: DraftBatch) -> NDArray[np.float32]:
        """See :meth:`.base.DepthRule.claims`."""
        offered = None if self._step is None else self._step.offered
        if offered is None or not len(chosen.token_ids):
            return chosen.probs
        found = kernels.origins(
            offered.offsets,
            offered.token_ids,
            offered.parents,
            chosen.offsets,
            chosen.token_ids,
            chosen.parents,
        )
        claimed: NDArray[np.float32] = offered.probs[found]
        return claimed

    def learn(
        self,
        token_ids: NDArray[np.int32],
        offsets: NDArray[np.int64],
        *,
        propose_ms: float = 0.0,
    ) -> None:
        """See :meth:`.base.DepthRule.learn`. O(draft tokens)."""
        step, self._step = self._step, None
        assert step is not None
        if step.offered is None:
            return
        for tables, rows in step.experience:
            kernels.learn(
                rows,
                step.offered.offsets,
                step.offered.token_ids,
                step.offered.parents,
                step.probs,
                step.offered.probs,
                step.offered.sources,
                step.offered.match_lens,
                step.slots,
                tables.coarse,
                tables.fine,
                self._balance,
                self._survived,
                self.settings.balance_fade,
                MEMORY,
                offsets,
                token_ids,
            )
        drafted = len(step.offered.token_ids)
        if drafted:
            self._draft_ms += 0.05 * (propose_ms / drafted - self._draft_ms)
        added = float(step.curve[min(round(step.scale * step.chosen), len(step.curve) - 1)])
        added -= float(step.curve[0])
        spent_ms = step.plain_ms + added + step.scale * propose_ms
        gained = step.scale * float(offsets[-1])
        self.rates.learn(step.load, gained, step.load * spent_ms / step.plain_ms)
        self._backoff.price(propose_ms * step.scale / step.plain_ms)

    def forget(self, request: int) -> None:
        """A request has ended; its number may be used again. Unknown ones are ignored."""
        slot = self._slots.pop(request, None)
        if slot is not None:
            self._balance[slot] = 0.0
            self._backoff.forget(slot)
            self._free.append(slot)

    # --- looking ---------------------------------------------------------------------------------

    def acceptance(self, request: int) -> float | None:
        """Of what was expected of a request's drafts lately, the share that came true; ``None``
        where nothing was expected."""
        slot = self._slots.get(request)
        if slot is None or self._balance[slot, kernels.B_EXPECTED] <= 0.0:
            return None
        expected, came = self._balance[slot]
        return float(came / expected)

    # --- inside ----------------------------------------------------------------------------------

    def _slot(self, request: int) -> int:
        slot = self._slots.get(request)
        if slot is None:
            if not self._free:
                used = len(self._slots)
                if used >= len(self._balance):
                    self._balance = np.concatenate([self._balance, np.zeros_like(self._balance)])
                self._free.append(used)
            slot = self._free.pop()
            self._slots[request] = slot
        return slot

    def _limits(
        self, step: _Step, limits: Sequence[int] | NDArray[np.integer[Any]] | None, n: int
    ) -> NDArray[np.int64]:
        given = np.full(n, _DEEPEST, np.int64)
        if limits is not None:
            given = np.minimum(given, np.asarray(limits, np.int64))
        if self._schedule is not None and n:
            given = np.minimum(given, self._schedule.tokens_at(n))
        if self._draft_ms * step.load > _COSTLY * step.plain_ms:
            given = np.minimum(given, self._foreseen(step))
        return self._backoff.limits(step.slots, given)

    def _foreseen(self, step: _Step) -> int:
        """The depth to draft to where drafting itself takes time: what it is expected to bring by
        what came true lately, against drafting and verifying it. At least 1."""
        survived = (self._survived[:, 0] + 1.0) / (self._survived[:, 1] + 1.5)
        survived = np.minimum.accumulate(survived)
        depths = np.arange(1, _DEEPEST + 1)
        rows = len(step.slots)
        sizes = np.minimum(np.round(step.scale * rows * depths), len(step.curve) - 1)
        extra = (step.curve[sizes.astype(np.int64)] - step.curve[0]) / (step.scale * rows)
        net = np.cumsum(survived) - step.rate * (extra + self._draft_ms * step.scale * depths)
        return max(int(net.argmax()) + 2, 1)  # one further, so that its chances stay known


@dataclass(slots=True)
class _Step:
    """The step under way."""

    slots: NDArray[np.int64]
    load: int
    scale: float
    plain_ms: float
    curve: Floats
    rate: float
    trust: Floats
    offered: DraftBatch | None = None
    probs: NDArray[np.float32] | None = None
    chosen: int = 0
    experience: list[_Experience] = field(default_factory=list)


def _grouped(experience: Sequence[DraftCalibration]) -> list[_Experience]:
    """The rows of each namespace."""
    rows: dict[int, list[int]] = {}
    for row, tables in enumerate(experience):
        rows.setdefault(id(tables), []).append(row)
    return [(experience[own[0]], np.array(own, np.int64)) for own in rows.values()]


def _calibrated(drafts: DraftBatch, experience: Sequence[_Experience]) -> NDArray[np.float32]:
    """Probabilities of all draft tokens, each by its namespace's experience. O(n · namespaces)."""
    probs = experience[0][0].probabilities(drafts)
    for tables, rows in experience[1:]:
        other = tables.probabilities(drafts)
        for row in rows.tolist():
            own = slice(int(drafts.offsets[row]), int(drafts.offsets[row + 1]))
            probs[own] = other[own]
    return probs


def _trust(balance: Floats) -> Floats:
    """A request's factor on its probabilities: what came true over what was expected, not above 1,
    with four draft tokens' worth of good faith."""
    faith = 4.0
    ratio = (balance[:, kernels.B_CAME] + faith) / (balance[:, kernels.B_EXPECTED] + faith)
    trust: Floats = np.minimum(ratio, 1.0)
    return trust
