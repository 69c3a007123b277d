"""What happened, counted as it happened: per request, in total, and where the time went."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from suffixspec_index.draft import Draft, Source


@dataclass(slots=True)
class SourceCounts:
    """Tokens of one source."""

    drafted: int = 0
    accepted: int = 0


@dataclass(slots=True)
class SpeculationCounts:
    """Steps and tokens, of a request or of all.

    Attributes:
        steps: forward passes that gave the request output tokens.
        draft_steps: of them, those with a draft.
        drafted, accepted: draft tokens; a tree counts all its nodes.
        output_tokens: tokens gained.
        acceptance_histogram: ``[n]``: steps with a draft of which ``n`` tokens were accepted.
        accepted_per_position: ``[d]``: how often a draft token at depth ``d`` was accepted.
        by_source: what each source drafted, by its label.
    """

    steps: int = 0
    draft_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    output_tokens: int = 0
    acceptance_histogram: list[int] = field(default_factory=list)
    accepted_per_position: list[int] = field(default_factory=list)
    by_source: dict[str, SourceCounts] = field(default_factory=dict)

    def count(self, draft: Draft, accepted: Sequence[int], gained: int) -> None:
        """Count one step. O(draft)."""
        self.steps += 1
        self.output_tokens += gained
        if not len(draft):
            return
        self.draft_steps += 1
        self.drafted += len(draft)
        self.accepted += len(accepted)
        _grow(self.acceptance_histogram, len(accepted) + 1)[len(accepted)] += 1
        positions = _grow(self.accepted_per_position, len(accepted))
        for depth in range(len(accepted)):
            positions[depth] += 1
        kept = set(accepted)
        for node, source in enumerate(draft.sources.tolist()):
            counts = self.by_source.setdefault(Source(source).label, SourceCounts())
            counts.drafted += 1
            counts.accepted += node in kept

    @property
    def tokens_per_step(self) -> float:
        """Output tokens per forward pass, steps without a draft included."""
        return self.output_tokens / self.steps if self.steps else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """vLLM's figure: 1 + accepted tokens per step *with* a draft."""
        return 1 + self.accepted / self.draft_steps if self.draft_steps else 1.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted of drafted tokens."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Counts and ratios as JSON values."""
        return dataclasses.asdict(self) | {
            "tokens_per_step": self.tokens_per_step,
            "mean_acceptance_length": self.mean_acceptance_length,
            "acceptance_rate": self.acceptance_rate,
        }


@dataclass(slots=True)
class RequestMetrics(SpeculationCounts):
    """One request.

    Attributes:
        prompt_tokens: of them ``cached_tokens`` did not have to be computed.
        queued_at, started_at, first_token_at, finished_at: ``time.perf_counter`` seconds; 0 until
            it happens.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    queued_at: float = 0.0
    started_at: float = 0.0
    first_token_at: float = 0.0
    finished_at: float = 0.0

    @property
    def time_to_first_token(self) -> float:
        """Seconds from submission to the first output token; 0 if there was none."""
        return self.first_token_at - self.queued_at if self.first_token_at else 0.0


@dataclass(slots=True)
class PartSeconds:
    """Where the engine's time went, in seconds.

    Attributes:
        prefill, verify: in the model, for prompts and for output; a step with both is shared out
            by tokens.
        propose: making drafts and telling proposers what was accepted.
        sample: from logits to tokens.
        total: of all steps; what is in none of the parts is scheduling, packing and streaming.
    """

    prefill: float = 0.0
    verify: float = 0.0
    propose: float = 0.0
    sample: float = 0.0
    total: float = 0.0

    @property
    def outside_model(self) -> float:
        """Share of the time that the model did not use, in [0, 1]."""
        return 1 - (self.prefill + self.verify) / self.total if self.total else 0.0

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Add the time spent within to a part."""
        start = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, part, getattr(self, part) + time.perf_counter() - start)


@dataclass(slots=True)
class EngineMetrics:
    """Totals since the engine began.

    Attributes:
        counts: over all requests.
        seconds: by part.
        steps: forward passes.
        prompt_tokens, cached_tokens: of finished requests, and of them taken from the cache.
        requests: finished ones by finish reason.
        proposer_failures: drafts that were not made because a proposer raised.
    """

    counts: SpeculationCounts = field(default_factory=SpeculationCounts)
    seconds: PartSeconds = field(default_factory=PartSeconds)
    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    requests: dict[str, int] = field(default_factory=dict)
    proposer_failures: int = 0

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return dataclasses.asdict(self) | {
            "counts": self.counts.to_dict(),
            "seconds": dataclasses.asdict(self.seconds)
            | {"outside_model": self.seconds.outside_model},
        }


def _grow(counts: list[int], length: int) -> list[int]:
    counts.extend([0] * (length - len(counts)))
    return counts
