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

    def window(
        self, tier: str, now: float, tenants: frozenset[str] | None = None
    ) -> dict[str, Any]:
        """The columns of a tier, oldest first, the running bucket left out.

        Args:
            tier: one of :data:`TIERS` by name.
            now: epoch seconds.
            tenants: labels to count; ``None``: all.

        Returns:
            ``start`` (epoch s of the first bucket), ``seconds`` per bucket, ``total`` (a list per
            count), ``sources`` and ``tenants`` (the same, by label; only what was active), and
            ``gauges`` (``None`` where nothing was sampled). O(buckets x tenants).
        """
        spec, ring = self.tiers[tier], self._rings[tier]
        last = int(now // spec.seconds)
        first = last - spec.buckets + 1
        total = [[0] * (spec.buckets - 1) for _ in range(_WIDTH)]
        by_tenant: dict[str, list[list[int]]] = {}
        gauges: dict[str, list[float | None]] = {}
        for at, number in enumerate(range(first, last)):
            bucket = ring[number % spec.buckets]
            if bucket.number != number:
                continue
            for tenant, row in bucket.rows.items():
                if tenants is not None and tenant not in tenants:
                    continue
                columns = by_tenant.setdefault(
                    tenant, [[0] * (spec.buckets - 1) for _ in range(len(Count))]
                )
                for column in range(_WIDTH):
                    total[column][at] += row[column]
                for column in range(len(Count)):
                    columns[column][at] = row[column]
            for key, value in bucket.gauges.items():
                gauges.setdefault(key, [None] * (spec.buckets - 1))[at] = value
        return {
            "start": first * spec.seconds,
            "seconds": spec.seconds,
            "total": _named(total),
            "sources": _sources(total),
            "tenants": {tenant: _named(columns) for tenant, columns in sorted(by_tenant.items())},
            "gauges": gauges,
        }

    def _bucket(self, tier: str, at: float) -> _Bucket:
        spec, ring = self.tiers[tier], self._rings[tier]
        number = int(at // spec.seconds)
        bucket = ring[number % spec.buckets]
        if bucket.number < number:
            bucket = ring[number % spec.buckets] = _Bucket(number)
        return bucket  # a clock that was put back counts into a newer bucket


def _named(columns: list[list[int]]) -> dict[str, list[int]]:
    return {count.name.lower(): columns[count] for count in Count}


def _sources(columns: list[list[int]]) -> dict[str, dict[str, list[int]]]:
    named = {}
    for place, label in enumerate(SOURCE_LABELS):
        drafted, accepted = columns[len(Count) + 2 * place : len(Count) + 2 * place + 2]
        if any(drafted):
            named[label] = {"drafted": drafted, "accepted": accepted}
    return named
