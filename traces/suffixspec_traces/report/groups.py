"""Counting steps by group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from suffixspec_traces.replay.log import Step, StepLog
from suffixspec_traces.report.model import Counts, GroupRow

Longs = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Grouped:
    """Events of the steps of each group, ``(groups,)`` int64 each."""

    steps: Longs
    drafts: Longs
    output_tokens: Longs
    drafted: Longs
    accepted: Longs

    @staticmethod
    def of(log: StepLog, codes: Longs, groups: int) -> Grouped:
        """Count by the group ``codes`` gives each step. O(steps + groups)."""

        def total(values: NDArray[np.integer] | NDArray[np.bool_]) -> Longs:
            # bincount sums in float64, exact below 2**53
            return np.bincount(codes, values, groups).astype(np.int64)

        drafted = log.column(Step.DRAFTED)
        return Grouped(
            steps=np.bincount(codes, minlength=groups).astype(np.int64),
            drafts=total(drafted > 0),
            output_tokens=total(log.column(Step.GAINED)),
            drafted=total(drafted),
            accepted=total(log.column(Step.ACCEPTED)),
        )

    def counts(self, group: int) -> Counts:
        """One group as the report has it."""
        return Counts(
            steps=int(self.steps[group]),
            drafts=int(self.drafts[group]),
            output_tokens=int(self.output_tokens[group]),
            drafted=int(self.drafted[group]),
            accepted=int(self.accepted[group]),
        )

    def rows(self, labels: Sequence[str]) -> list[GroupRow]:
        """The groups that have steps."""
        return [
            GroupRow(group=label, counts=self.counts(g))
            for g, label in enumerate(labels)
            if self.steps[g]
        ]


def bucketed(values: NDArray[np.integer], edges: Sequence[int]) -> Longs:
    """The bucket of each value: bucket ``b`` runs from ``edges[b]`` to before ``edges[b + 1]``."""
    return np.searchsorted(np.asarray(edges), values, side="right").astype(np.int64) - 1


def bucket_labels(edges: Sequence[int]) -> list[str]:
    """``1``, ``2–4``, ``5+``."""
    labels = []
    for low, after in pairwise(edges):
        labels.append(str(low) if after == low + 1 else f"{low}–{after - 1}")
    return [*labels, f"{edges[-1]}+"]
