"""What was drafted and accepted: from an engine's counts, or from a server's ``/metrics``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_NAMES = {
    "spec_decode_num_drafts": "drafts",
    "spec_decode_num_draft_tokens": "drafted",
    "spec_decode_num_accepted_tokens": "accepted",
}
_PER_POSITION = "spec_decode_num_accepted_tokens_per_pos"


@dataclass(frozen=True, slots=True)
class SpeculationFigures:
    """Counts; they are added and subtracted like numbers.

    Attributes:
        drafts: steps of a request with a draft.
        drafted, accepted: draft tokens.
        per_position: how often the draft token at each position was accepted.
        steps: forward passes that gave a request output, with or without a draft; ``None``: not
            told.
        output_tokens: what those steps gave; ``None``: not told.
    """

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    per_position: tuple[int, ...] = ()
    steps: int | None = None
    output_tokens: int | None = None

    def __add__(self, other: SpeculationFigures) -> SpeculationFigures:
        return self._combined(other, 1)

    def __sub__(self, other: SpeculationFigures) -> SpeculationFigures:
        return self._combined(other, -1)

    def _combined(self, other: SpeculationFigures, sign: int) -> SpeculationFigures:
        longest = max(len(self.per_position), len(other.per_position))

        def at(row: tuple[int, ...], place: int) -> int:
            return row[place] if place < len(row) else 0

        def both(a: int | None, b: int | None) -> int | None:
            return None if a is None or b is None else a + sign * b

        return SpeculationFigures(
            self.drafts + sign * other.drafts,
            self.drafted + sign * other.drafted,
            self.accepted + sign * other.accepted,
            tuple(
                at(self.per_position, i) + sign * at(other.per_position, i) for i in range(longest)
            ),
            both(self.steps, other.steps),
            both(self.output_tokens, other.output_tokens),
        )

    @property
    def acceptance_rate(self) -> float:
        """Accepted of drafted tokens."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def acceptance_length(self) -> float:
        """vLLM's figure: 1 + accepted tokens per step with a draft."""
        return 1 + self.accepted / self.drafts if self.drafts else 1.0

    @property
    def tokens_per_step(self) -> float | None:
        """Output tokens per step, steps without a draft included; ``None``: not told."""
        if not self.steps or self.output_tokens is None:
            return None
        return self.output_tokens / self.steps

    def as_json(self) -> dict[str, Any]:
        """vLLM's result keys, its rate in percent; and ours for what it does not tell."""
        drafts = self.drafts or 1
        return {
            "spec_decode_acceptance_rate": 100 * self.acceptance_rate,
            "spec_decode_acceptance_length": self.acceptance_length,
            "spec_decode_num_drafts": self.drafts,
            "spec_decode_draft_tokens": self.drafted,
            "spec_decode_accepted_tokens": self.accepted,
            "spec_decode_per_position_acceptance_rates": [n / drafts for n in self.per_position],
            "tokens_per_step": self.tokens_per_step,
        }


def from_prometheus(lines: Iterable[str]) -> SpeculationFigures | None:
    """Counters of a metrics page, summed over all labels; ``None`` where it has none.

    The names are vLLM's behind any prefix, with or without ``_total``.
    """
    counts: Counter[str] = Counter()
    positions: Counter[int] = Counter()
    for line in lines:
        name, labels, value = _sample(line)
        key = name.rpartition(":")[2].removesuffix("_total")
        if key in _NAMES:
            counts[_NAMES[key]] += int(value)
        elif key == _PER_POSITION:
            place = labels.partition('position="')[2].partition('"')[0]
            if place.isdigit():
                positions[int(place)] += int(value)
    if not counts:
        return None
    depth = max(positions, default=-1) + 1
    return SpeculationFigures(
        **dict(counts), per_position=tuple(positions[i] for i in range(depth))
    )


def _sample(line: str) -> tuple[str, str, float]:
    """Name, labels and value of a line of the text format; no name for any other line."""
    head, _, value = line.strip().rpartition(" ")
    if not head or head.startswith("#"):
        return "", "", 0.0
    name, _, labels = head.partition("{")
    try:
        return name, labels, float(value)
    except ValueError:
        return "", "", 0.0
