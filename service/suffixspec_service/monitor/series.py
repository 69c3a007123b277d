"""What happened lately: counts in ring buffers of 1 s, 10 s and 1 min, by tenant and source.

Rates are quotients of counts over the same stretch of time; they are never averaged. A request is
counted at its end.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.draft import Source
from suffixspec_service.monitor.records import RequestRecord

SOURCE_LABELS = tuple(source.label for source in Source if source is not Source.NONE)
_SOURCE_AT = {label: place for place, label in enumerate(SOURCE_LABELS)}


class Count(IntEnum):
    """Columns of a row of counts; behind them come ``drafted, accepted`` of each source."""

    REQUESTS = 0
    FAILED = 1
    OUTPUT_TOKENS = 2
    STEPS = 3
    DRAFT_STEPS = 4
    DRAFTED = 5
    ACCEPTED = 6


_WIDTH = len(Count) + 2 * len(SOURCE_LABELS)
_FINE = frozenset({"ok", "stop", "length", "tool_calls"})


@dataclass(frozen=True, slots=True)
class Tier:
    """A ring: ``buckets`` stretches of ``seconds``."""

    name: str
    seconds: int
    buckets: int


TIERS = (Tier("5m", 1, 300), Tier("1h", 10, 360), Tier("24h", 60, 1440))


@dataclass(slots=True)
class _Bucket:
    """One stretch of time. ``number`` says which; a bucket of an older round is empty."""

    number: int = -1
    rows: dict[str, array[int]] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)


class TimeSeries:
    """Rings of counts. Not thread-safe; the monitor's lock guards it.

    Memory: at most ``buckets x tenants`` rows of 200 bytes per tier, and only for tenants that
    were active then.
    """

    def __init__(self, tiers: Iterable[Tier] = TIERS) -> None:
        self.tiers = {tier.name: tier for tier in tiers}
        self._rings = {
            tier.name: [_Bucket() for _ in range(tier.buckets)] for tier in self.tiers.values()
        }

    def add(self, record: RequestRecord, tenant: str, at: float) -> None:
        """Count a record that ended ``at`` epoch seconds under the label ``tenant``. O(1)."""
        for name in self.tiers:
            rows = self._bucket(name, at).rows
            row = rows.get(tenant)
            if row is None:
                row = rows[tenant] = array("q", bytes(8 * _WIDTH))
            row[Count.REQUESTS] += 1
            row[Count.FAILED] += record.status not in _FINE
            row[Count.OUTPUT_TOKENS] += record.output_tokens
            row[Count.STEPS] += record.steps
            row[Count.DRAFT_STEPS] += record.steps_with_draft
            row[Count.DRAFTED] += record.drafted
            row[Count.ACCEPTED] += record.accepted
            for source, (drafted, accepted) in record.by_source.items():
                place = _SOURCE_AT.get(source)
                if place is not None:
                    row[len(Count) + 2 * place] += drafted
                    row[len(Count) + 2 * place + 1] += accepted

    def gauge(self, values: Mapping[str, float], at: float) -> None:
        """Note sampled values; a bucket keeps the highest of each."""
        for name in self.tiers:
            gauges = self._bucket(name, at).gauges
            for key, value in values.items():
                gauges[key] = max(value, gauges.get(key, value))

    def snapshot(self, tier: str, now: float) -> Snapshot:
        """The buckets of a tier, oldest first, the running one left out. O(buckets).

        What is in them does not change any more (unless the clock is put back), so it can be added
        up without a lock.
        """
        spec, ring = self.tiers[tier], self._rings[tier]
        last = int(now // spec.seconds)
        first = last - spec.buckets + 1
        found = [ring[number % spec.buckets] for number in range(first, last)]
        kept = [b if b.number == first + at else None for at, b in enumerate(found)]
        return Snapshot(spec, first * spec.seconds, kept)

    def _bucket(self, tier: str, at: float) -> _Bucket:
        spec, ring = self.tiers[tier], self._rings[tier]
        number = int(at // spec.seconds)
        bucket = ring[number % spec.buckets]
        if bucket.number < number:
            bucket = ring[number % spec.buckets] = _Bucket(number)
        return bucket  # a clock that was put back counts into a newer bucket


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A tier at one moment.

    Attributes:
        tier: which.
        start: epoch seconds of the first bucket.
        buckets: ``None`` where nothing happened.
    """

    tier: Tier
    start: int
    buckets: list[_Bucket | None]

    def window(self, tenants: frozenset[str] | None = None, *, fold: int = 1) -> dict[str, Any]:
        """Columns of counts. O(buckets x tenants).

        Args:
            tenants: labels to count; ``None``: all.
            fold: neighbouring buckets that are added up, the newest ones whole; the oldest that do
                not fill a column are left out.

        Returns:
            ``start`` (epoch s of the first column), ``seconds`` per column, ``total`` (a list per
            count), ``sources`` and ``tenants`` (the same, by label; only what was active), and
            ``gauges`` (the highest; ``None`` where nothing was sampled).
        """
        columns = len(self.buckets) // fold
        skipped = len(self.buckets) - columns * fold
        total = np.zeros((columns, _WIDTH), np.int64)
        by_tenant: dict[str, NDArray[np.int64]] = {}
        gauges: dict[str, list[float | None]] = {}
        for at, bucket in enumerate(self.buckets[skipped:]):
            if bucket is None:
                continue
            column = at // fold
            for tenant, row in bucket.rows.items():
                if tenants is not None and tenant not in tenants:
                    continue
                counts = np.frombuffer(row, np.int64)
                total[column] += counts
                own = by_tenant.get(tenant)
                if own is None:
                    own = by_tenant[tenant] = np.zeros((columns, len(Count)), np.int64)
                own[column] += counts[: len(Count)]
            for key, value in bucket.gauges.items():
                tops = gauges.setdefault(key, [None] * columns)
                top = tops[column]
                tops[column] = value if top is None else max(top, value)
        return {
            "start": self.start + skipped * self.tier.seconds,
            "seconds": self.tier.seconds * fold,
            "total": _named(total),
            "sources": _sources(total),
            "tenants": {tenant: _named(own) for tenant, own in sorted(by_tenant.items())},
            "gauges": gauges,
        }


def _named(columns: NDArray[np.int64]) -> dict[str, list[int]]:
    return {count.name.lower(): columns[:, count].tolist() for count in Count}


def _sources(columns: NDArray[np.int64]) -> dict[str, dict[str, list[int]]]:
    named = {}
    for place, label in enumerate(SOURCE_LABELS):
        at = len(Count) + 2 * place
        if columns[:, at].any():
            named[label] = {
                "drafted": columns[:, at].tolist(),
                "accepted": columns[:, at + 1].tolist(),
            }
    return named
