"""The replay report: every figure, named and versioned, with a JSON form that reads back.

Counts are counts of events; rates are quotients of the counts beside them, and are ``None`` where
nothing was counted. The words are those of the documentation: a *step* is one forward pass of the
target model for one request, with or without a draft.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError, computed_field

from suffixspec_index.errors import InputError

SCHEMA: Literal["suffixspec.replay/1"] = "suffixspec.replay/1"


def rate(part: float, whole: float) -> float | None:
    """``part / whole``, ``None`` where there is no whole."""
    return part / whole if whole else None


class _Part(BaseModel):
    # Derived figures are written for readers of the JSON; on reading they are computed again.
    model_config = ConfigDict(frozen=True, extra="ignore")


class Counts(_Part):
    """The events of a group of steps, and the rates that follow."""

    steps: int
    drafts: int
    """Steps with a draft."""
    output_tokens: int
    drafted: int
    """Draft tokens (nodes, where drafts are trees)."""
    accepted: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def wasted(self) -> int:
        """Drafted and not accepted."""
        return self.drafted - self.accepted

    @computed_field  # type: ignore[prop-decorator]
    @property
    def tokens_per_step(self) -> float | None:
        """Output tokens over all steps, steps without a draft included."""
        return rate(self.output_tokens, self.steps)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def drafted_per_step(self) -> float | None:
        """Draft tokens over all steps."""
        return rate(self.drafted, self.steps)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted."""
        return rate(self.accepted, self.drafted)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def vllm_mean_acceptance_length(self) -> float | None:
        """vLLM's figure: 1 + accepted / drafts. Steps without a draft are left out there."""
        return None if not self.drafts else 1.0 + self.accepted / self.drafts


class Interval(_Part):
    """A figure with its bootstrap interval over sessions."""

    value: float | None
    low: float | None
    high: float | None


class PositionRow(_Part):
    """Acceptance at one depth of the draft (1: the first token)."""

    position: int
    drafted: int
    reached: int
    """Steps in which all tokens before were accepted and one was drafted here."""
    accepted: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def conditional_acceptance(self) -> float | None:
        """Accepted over reached."""
        return rate(self.accepted, self.reached)


class GroupRow(_Part):
    """The counts of one group: a match length, a turn, a tool, a workload."""

    group: str
    counts: Counts


class SourceRow(_Part):
    """Draft tokens by where they came from."""

    source: str
    drafted: int
    accepted: int
    output_share: float
    """Accepted tokens of this source over all output tokens."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def wasted(self) -> int:
        """Drafted and not accepted."""
        return self.drafted - self.accepted

    @computed_field  # type: ignore[prop-decorator]
    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted."""
        return rate(self.accepted, self.drafted)


class CurvePoint(_Part):
    """One stretch of the cold-to-warm curve, in the order in which sessions started."""

    first_session: int
    last_session: int
    output_tokens: int
    steps: int
    cumulative_output_tokens: int
    cumulative_steps: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def tokens_per_step(self) -> float | None:
        """Of this stretch."""
        return rate(self.output_tokens, self.steps)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def cumulative_tokens_per_step(self) -> float | None:
        """From the beginning to the end of this stretch."""
        return rate(self.cumulative_output_tokens, self.cumulative_steps)


class SessionRow(_Part):
    """One session."""

    id: str
    source: str
    turns: int
    counts: Counts


class Distribution(_Part):
    """Quantiles over sessions."""

    sessions: int
    mean: float
    minimum: float
    p10: float
    p25: float
    median: float
    p75: float
    p90: float
    maximum: float


class ReliabilityBin(_Part):
    """Draft tokens whose predicted probability fell in ``[low, high)``."""

    low: float
    high: float
    drafted: int
    accepted: int
    mean_probability: float | None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted."""
        return rate(self.accepted, self.drafted)


class Calibration(_Part):
    """How well the proposer's probabilities predict acceptance."""

    brier_score: float | None
    """Mean squared difference of probability and outcome; 0 is perfect."""
    expected_calibration_error: float | None
    """Mean absolute difference of the bins, weighted by their tokens."""
    bins: list[ReliabilityBin]


class CalibrationBefore(_Part):
    """The same draft tokens by the probabilities that they had before anything was learned."""

    basis: Literal["as claimed", "ratios of counts", "ratios of counts and as claimed"]
    """What the proposer said; or, for tokens of suffix trees, whose probabilities are learned where
    they are made, ratios of counts as SuffixDecoding has them."""
    before: Calibration
    after: Calibration
    """As they were judged: the learned probabilities of these tokens."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def draft_tokens(self) -> int:
        """How many tokens both were taken from; a sample, where counting all would take long."""
        return sum(row.drafted for row in self.before.bins)


class Timing(_Part):
    """Time in the proposer, in nanoseconds, and the speed of the replay."""

    propose_ns: int
    advance_ns: int
    begin_ns: int
    finish_ns: int
    propose_ns_p50: int | None
    propose_ns_p99: int | None
    wall_s: float
    output_tokens_per_s: float | None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def total_ns(self) -> int:
        """All calls together; this is what the prediction charges."""
        return self.propose_ns + self.advance_ns + self.begin_ns + self.finish_ns


class SpeedupRow(_Part):
    """Predicted time per output token at a concurrency."""

    concurrency: int
    plain_ms_per_token: float
    ms_per_token: float
    proposer_ms_per_token: float
    speedup: float
    extrapolated: bool
    """The cost model was measured only for smaller steps."""


class CostInfo(_Part):
    """The cost model behind the prediction."""

    name: str
    kind: str
    provenance: str


class MethodReport(_Part):
    """Everything about one method."""

    label: str
    config: dict[str, object]
    partial: bool
    sessions_completed: int
    totals: Counts
    tokens_per_step: Interval
    acceptance_rate: Interval
    speedup: Interval
    by_position: list[PositionRow]
    by_match_length: list[GroupRow]
    by_source: list[SourceRow]
    by_turn: list[GroupRow]
    by_tool: list[GroupRow]
    by_workload: list[GroupRow]
    speedup_by_workload: dict[str, float]
    cold_to_warm: list[CurvePoint]
    sessions: list[SessionRow]
    session_tokens_per_step: Distribution | None
    calibration: Calibration
    calibration_before: CalibrationBefore | None = None
    timing: Timing
    predicted: list[SpeedupRow]

    def predicted_at(self, concurrency: int) -> SpeedupRow | None:
        """The prediction at one concurrency."""
        return next((row for row in self.predicted if row.concurrency == concurrency), None)


class SkippedRow(_Part):
    """A line of a trace that was skipped on request."""

    path: str
    line: int | None
    reason: str


class RunInfo(_Part):
    """What was replayed, and how."""

    suffixspec_version: str
    paths: list[str]
    formats: dict[str, int]
    skipped: list[SkippedRow]
    tokenizer: dict[str, object]
    order: str
    seed: int | None
    concurrency: int
    sessions: int
    turns: int
    prompt_tokens: int
    output_tokens: int
    bootstrap_samples: int
    bootstrap_seed: int
    machine: str


class ReplayReport(_Part):
    """A replay of one or more methods over the same sessions in the same order."""

    schema_version: Literal["suffixspec.replay/1"] = SCHEMA
    run: RunInfo
    cost_model: CostInfo
    methods: list[MethodReport]

    @property
    def partial(self) -> bool:
        """Whether any method was stopped before the end."""
        return any(m.partial for m in self.methods)

    def method(self, label: str) -> MethodReport:
        """The report of one method.

        Raises:
            InputError: no such method.
        """
        for method in self.methods:
            if method.label == label:
                return method
        known = ", ".join(m.label for m in self.methods)
        raise InputError(f"report: no method {label!r}; it has {known}")

    def to_json(self) -> str:
        """Indented JSON, ending in a newline."""
        return self.model_dump_json(indent=2) + "\n"

    @staticmethod
    def load(path: Path) -> ReplayReport:
        """Read a report that :meth:`to_json` wrote.

        Raises:
            InputError: the file cannot be read, or is no report of this version.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"report {path}: cannot be read: {error}") from error
        version = data.get("schema_version") if isinstance(data, dict) else None
        if version != SCHEMA:
            raise InputError(f"report {path}: schema_version is {version!r}, this reads {SCHEMA!r}")
        try:
            return ReplayReport.model_validate(data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise InputError(f"report {path}: {where}: {first['msg']}") from error
