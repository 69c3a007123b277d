"""The tuning report: what was tried, what came of it on held-out sessions, what to paste where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError, computed_field

from suffixspec_index.errors import InputError
from suffixspec_traces.report.model import CostInfo, Interval, SkippedRow

SCHEMA: Literal["suffixspec.tuning/1"] = "suffixspec.tuning/1"

Value = bool | int | float | str | None
Verdict = Literal["pays", "does not pay", "undecided"]
Role = Literal[
    "tuned",
    "tuned, paths only",
    "tuned, as vLLM has it",
    "best n-gram",
    "vLLM's defaults",
    "our defaults",
    "no speculation",
]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class JudgedRow(_Part):
    """A setting on the held-out part, its index warmed by the tuning part."""

    role: Role
    config: dict[str, object]
    tokens_per_step: float
    acceptance_rate: float | None
    wasted_per_token: float
    ms_per_token: float
    """Predicted, the proposer's measured time included."""
    proposer_ms_per_token: float
    speedup: Interval
    """Over no speculation, resampled over sessions."""
    gain_of_tuned: Interval
    """This setting's time over the tuned one's, on the same sessions: above 1, tuning gained."""
    extrapolated: bool
    """The cost model was measured only for smaller steps."""
    tuning_ms_per_token: float | None
    """On the tuning part, the proposer's time included; ``None`` where it was not tried there."""


class TrialRow(_Part):
    """A setting that was tried on the tuning part. ``number`` counts within the family."""

    family: str
    number: int
    values: dict[str, Value]
    ms_per_token: float
    """Predicted, the proposer's time left out: the first objective."""
    proposer_ms_per_token: float
    wasted_per_token: float
    tokens_per_step: float
    on_front: bool
    sweep: bool


class SensitivityPoint(_Part):
    """One value of a threshold, all others as in the reference."""

    value: Value
    ms_per_token: float
    wasted_per_token: float


class SensitivityRow(_Part):
    """A threshold: what other values of it cost."""

    threshold: str
    reference: Value
    points: list[SensitivityPoint]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def spread(self) -> float:
        """The slowest value's time over the fastest's, less 1."""
        times = [p.ms_per_token for p in self.points]
        return max(times) / min(times) - 1.0

    @computed_field  # type: ignore[prop-decorator]
    @property
    def best(self) -> Value:
        """The fastest value."""
        return min(self.points, key=lambda p: p.ms_per_token).value


class Paste(_Part):
    """A configuration to paste."""

    title: str
    where: str
    role: Role
    language: Literal["yaml", "toml", "json", "shell"]
    text: str


class ConcurrencyReport(_Part):
    """Everything about one number of requests at a time."""

    concurrency: int
    complete: bool
    """Every rival was judged."""
    verdict: Verdict
    sentence: str
    recommended: Role
    plain_ms_per_token: float
    rows: list[JudgedRow]
    trials: list[TrialRow]
    sensitivity: list[SensitivityRow]
    pastes: list[Paste]

    def row(self, role: Role) -> JudgedRow | None:
        """The row of a role; ``None`` where it was not judged."""
        return next((r for r in self.rows if r.role == role), None)


class PartInfo(_Part):
    """Size of a part of the sessions."""

    name: str
    sessions: int
    output_tokens: int


class TuningRun(_Part):
    """What was tuned on, and how."""

    suffixspec_version: str
    optuna_version: str
    paths: list[str]
    formats: dict[str, int]
    skipped: list[SkippedRow]
    tokenizer: dict[str, object]
    parts: list[PartInfo]
    trials_wanted: int
    """Per concurrency."""
    seed: int
    workers: int
    identity: str
    found_before: int
    """Trials that were in the storage when this run began."""
    ended: Literal["complete", "timeout", "interrupted"]
    bootstrap_samples: int
    machine: str


class TuningReport(_Part):
    """The report of ``suffixspec tune``."""

    schema_version: Literal["suffixspec.tuning/1"] = SCHEMA
    run: TuningRun
    cost_model: CostInfo
    concurrencies: list[ConcurrencyReport]

    def to_json(self) -> str:
        """Indented JSON, ending in a newline."""
        return self.model_dump_json(indent=2) + "\n"

    @staticmethod
    def load(path: Path) -> TuningReport:
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
            return TuningReport.model_validate(data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise InputError(f"report {path}: {where}: {first['msg']}") from error
