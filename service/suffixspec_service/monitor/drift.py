"""Notices when a namespace's acceptance falls below its own past.

Draft tokens are no independent trials: those of one request, and requests of one session, share
their fate. So evidence is gathered into blocks of whole requests, and a block's acceptance is
compared with what blocks of this namespace used to be, their own spread included. A one-sided
CUSUM (Page, "Continuous inspection schemes", Biometrika 1954) over the standardised blocks decides:
it waits longer for a small drop and less long for a large one, and testing after every block does
not add up to false alarms as repeated two-window tests do. Standardised blocks are clipped, so one
strange session cannot raise an alarm alone; and a drop must matter, not only be significant.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class DriftConfig:
    """When an alarm is raised, and when it clears.

    Attributes:
        block_requests, block_drafted: a block ends with the request that gives it at least so many
            requests and so many draft tokens.
        baseline_blocks: blocks before anything is tested.
        memory_blocks: the baseline's length: older blocks fade with this time constant.
        delay_blocks: a block enters the baseline so many blocks later, so that a drop is not
            measured against itself.
        slack: what a block may lie below the baseline, in standard deviations, without counting.
        clip: most that one block counts, in standard deviations.
        threshold: the sum at which an alarm is raised.
        least_drop: how far acceptance must lie below the baseline for an alarm, absolute.
        clear_drop: an alarm clears when acceptance lies no further below the baseline than this.
        recent_blocks: blocks of the rolling figure.
        clear_blocks: blocks that are looked at before an alarm clears.
        adopt_blocks: blocks after which a lower level becomes the new baseline.
        prior_sd, prior_blocks: spread of blocks that is assumed until as many were seen.
    """

    block_requests: int = 8
    block_drafted: int = 400
    baseline_blocks: int = 10
    memory_blocks: int = 100
    delay_blocks: int = 6
    slack: float = 1.0
    clip: float = 3.0
    threshold: float = 8.0
    least_drop: float = 0.1
    clear_drop: float = 0.05
    recent_blocks: int = 4
    clear_blocks: int = 8
    adopt_blocks: int = 150
    prior_sd: float = 0.08
    prior_blocks: float = 10.0


@dataclass(frozen=True, slots=True)
class DriftEvent:
    """An alarm that was raised, or one that ended.

    Attributes:
        kind: ``"raised"``; ``"cleared"``: acceptance came back; ``"adopted"``: it stayed low so
            long that this is the new normal.
        at: epoch seconds.
        baseline, recent: acceptance then, in [0, 1].
    """

    kind: Literal["raised", "cleared", "adopted"]
    at: float
    baseline: float
    recent: float


@dataclass(slots=True)
class _Baseline:
    """Exponentially fading mean, variance and autocovariance of blocks."""

    blocks: int = 0
    weight: float = 0.0
    mean: float = 0.0
    variance: float = 0.0
    covariance: float = 0.0
    last: float | None = None

    def add(self, rate: float, memory: int) -> None:
        """West's incremental form of the weighted variance; the covariance is that of neighbours,
        around the mean as it was when each came."""
        self.blocks += 1
        fade = 1.0 - 1.0 / memory
        self.weight = self.weight * fade + 1.0
        share = 1.0 / self.weight
        difference = rate - self.mean
        if self.last is not None:
            self.covariance += share * (difference * (self.last - self.mean) - self.covariance)
        self.last = rate
        self.mean += share * difference
        self.variance = (1.0 - share) * (self.variance + share * difference * difference)

    def long_run_factor(self, prior_blocks: float) -> float:
        """How much larger the variance of sums of blocks is than it were if blocks did not hang
        together (requests of one session do): (1 + r) / (1 - r) of a first-order process, with the
        correlation ``r`` shrunk towards 0 while few blocks are known."""
        if self.variance <= 0.0:
            return 1.0
        trust = self.weight / (self.weight + prior_blocks)
        correlation = min(0.8, max(0.0, trust * self.covariance / self.variance))
        return (1.0 + correlation) / (1.0 - correlation)


class DriftDetector:
    """Watches one namespace. Not thread-safe."""

    def __init__(self, config: DriftConfig | None = None) -> None:
        self.config = config or DriftConfig()
        self.alarm_since: float | None = None
        self.history: deque[tuple[float, float]] = deque(maxlen=240)
        """Of the latest blocks: when each ended, and its acceptance."""
        self._base = _Baseline()
        self._requests = self._drafted = self._accepted = 0
        self._recent: deque[tuple[int, int]] = deque(maxlen=self.config.clear_blocks)
        self._pending: deque[float] = deque()
        self._sum = 0.0
        self._alarm_blocks = 0

    @property
    def alarmed(self) -> bool:
        """Whether acceptance is below its past."""
        return self.alarm_since is not None

    @property
    def baseline(self) -> float | None:
        """Acceptance of the past; ``None`` until there is enough of it."""
        return self._base.mean if self._base.blocks >= self.config.baseline_blocks else None

    @property
    def recent(self) -> float | None:
        """Acceptance over the latest blocks, and the one that is being gathered."""
        blocks = self._latest(self.config.recent_blocks)
        drafted = sum(d for d, _ in blocks) + self._drafted
        accepted = sum(a for _, a in blocks) + self._accepted
        return accepted / drafted if drafted else None

    def add(self, drafted: int, accepted: int, at: float) -> DriftEvent | None:
        """Count one finished request. O(1).

        Args:
            drafted, accepted: its draft tokens; a request without any tells nothing.
            at: epoch seconds.

        Returns:
            What it led to.
        """
        if drafted <= 0:
            return None
        self._requests += 1
        self._drafted += drafted
        self._accepted += accepted
        config = self.config
        if self._requests < config.block_requests or self._drafted < config.block_drafted:
            return None
        block = (self._drafted, self._accepted)
        self._requests = self._drafted = self._accepted = 0
        self._recent.append(block)
        rate = block[1] / block[0]
        self.history.append((at, rate))
        return self._alarmed_block(rate, at) if self.alarmed else self._quiet_block(rate, block, at)

    def _quiet_block(self, rate: float, block: tuple[int, int], at: float) -> DriftEvent | None:
        config = self.config
        if self._base.blocks >= config.baseline_blocks:
            below = (self._base.mean - rate) / self._spread(block[0])
            below = max(-config.clip, min(config.clip, below))
            self._sum = max(0.0, self._sum + below - config.slack)
            recent = self._level(config.recent_blocks)
            if self._sum > config.threshold and self._base.mean - recent >= config.least_drop:
                self.alarm_since, self._alarm_blocks = at, 0
                self._pending.clear()  # they may belong to the drop
                return DriftEvent("raised", at, self._base.mean, recent)
        self._pending.append(rate)
        # While something seems to be going on, the baseline stands still: else a slow or small fall
        # would widen it, and be hidden by it.
        suspected = self._sum > config.threshold / 4
        delay = config.memory_blocks if suspected else config.delay_blocks
        while len(self._pending) > delay or self._base.blocks < config.baseline_blocks:
            self._base.add(self._pending.popleft(), config.memory_blocks)
            if not self._pending:
                break
        return None

    def _alarmed_block(self, rate: float, at: float) -> DriftEvent | None:
        """The baseline stands still while there is an alarm."""
        config = self.config
        self._alarm_blocks += 1
        self._pending.append(rate)
        if len(self._pending) > config.memory_blocks:
            self._pending.popleft()
        recent, baseline = self._level(config.clear_blocks), self._base.mean
        whole = self._alarm_blocks >= config.clear_blocks  # no block before the alarm counts
        if whole and baseline - recent <= config.clear_drop:
            self._end_alarm()
            return DriftEvent("cleared", at, baseline, recent)
        if self._alarm_blocks >= config.adopt_blocks:
            self._base = _Baseline()
            for old in self._pending:
                self._base.add(old, config.memory_blocks)
            self._end_alarm()
            return DriftEvent("adopted", at, baseline, recent)
        return None

    def _end_alarm(self) -> None:
        self.alarm_since = None
        self._sum = 0.0
        self._pending.clear()

    def _latest(self, count: int) -> list[tuple[int, int]]:
        return list(self._recent)[-count:]

    def _level(self, count: int) -> float:
        blocks = self._latest(count)
        return sum(a for _, a in blocks) / sum(d for d, _ in blocks)

    def _spread(self, drafted: int) -> float:
        """Standard deviation of a new block: the past's, shrunk towards the assumed one, never
        below what independent tokens would have, and widened where blocks hang together."""
        config, base = self.config, self._base
        known = min(base.weight, base.blocks)
        prior = config.prior_blocks
        pooled = (known * base.variance + prior * config.prior_sd**2) / (known + prior)
        binomial = base.mean * (1.0 - base.mean) / drafted
        widened = max(pooled, binomial) * base.long_run_factor(prior)
        return math.sqrt(widened * (1.0 + 1.0 / known))
