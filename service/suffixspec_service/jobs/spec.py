"""What a job is asked to do, checked before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator

import suffixspec_traces
from suffixspec_index.errors import ConfigError
from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_traces.cost import DEFAULT_COST_MODEL, cost_model_names

REPLAYABLE = ("suffix", "hybrid", "ngram", "prediction", "none")
"""Methods that a recording can be decoded with: those without a model."""

_NGRAM = {"num_speculative_tokens": 8, "prompt_lookup_min": 2, "prompt_lookup_max": 5}


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    samples: tuple[str, ...] = ()
    """Recorded traces that come with suffixspec, by name."""
    traces: tuple[str, ...] = ()
    """Traces that were uploaded before, by id."""
    tokenizer: str = "smollm2"
    """One of those that this service offers."""
    cost_model: str = DEFAULT_COST_MODEL
    """What a verify step costs: an included model."""
    skip_invalid: bool = False
    """Skip and count what cannot be read."""
    limit_sessions: Annotated[int, Field(ge=1)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0

    @field_validator("cost_model")
    @classmethod
    def _known_cost_model(cls, value: str) -> str:
        if value not in cost_model_names():
            raise ValueError(f"no included cost model {value!r}; GET /v1/speculation/jobs/options")
        return value

    def check_sources(self) -> None:
        """Raise :class:`ConfigError` where there is nothing to read."""
        if not self.samples and not self.traces:
            raise ConfigError("samples: name samples, or upload traces and give their ids")


class ReplaySpec(_Spec):
    """Decode recorded sessions with one or several methods."""

    kind: Literal["replay"] = "replay"
    methods: Annotated[
        tuple[str | dict[str, Any], ...], Field(min_length=1, max_length=8, validate_default=True)
    ] = ("suffix", "ngram", "none")
    """Names, or speculative configurations as vLLM takes them."""
    concurrency: Annotated[int, Field(ge=1, le=256)] | None = None
    """Sessions in flight; none: as recorded."""
    limit_tokens: Annotated[int, Field(ge=1)] | None = None

    @field_validator("methods")
    @classmethod
    def _replayable(cls, value: tuple[str | dict[str, Any], ...]) -> Any:
        labelled(value)
        return value


class TuningSpec(_Spec):
    """Search the thresholds that suit recorded sessions."""

    kind: Literal["tuning"] = "tuning"
    concurrency: Annotated[
        tuple[Annotated[int, Field(ge=1, le=1024)], ...], Field(min_length=1, max_length=4)
    ] = (1, 8)
    trials: Annotated[int, Field(ge=20, le=500)] = 40
    """Per concurrency."""
    timeout_s: Annotated[float, Field(gt=0, le=24 * 3600)] | None = None
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.3
    trial_tokens: Annotated[int, Field(ge=1)] | None = 100_000
    sensitivity: bool = True


JobSpec = Annotated[ReplaySpec | TuningSpec, Field(discriminator="kind")]
JOB_SPEC: TypeAdapter[ReplaySpec | TuningSpec] = TypeAdapter(JobSpec)


def labelled(methods: tuple[str | dict[str, Any], ...]) -> list[tuple[str, SpeculativeConfig]]:
    """The configurations to replay, each with a label of its own: the method's name, numbered
    where it comes again.

    Raises:
        ConfigError: a method is unknown or needs a model, or a setting is wrong.
    """
    found: list[tuple[str, SpeculativeConfig]] = []
    for given in methods:
        values: dict[str, Any] = dict(given) if isinstance(given, dict) else {"method": given}
        if values == {"method": "ngram"}:
            values |= _NGRAM
        config = SpeculativeConfig.from_dict(values)
        if config.method not in REPLAYABLE or config.model is not None:
            with_model = " with a model" if config.model is not None else ""
            raise ConfigError(
                f"methods: {config.method!r}{with_model} cannot be replayed; use "
                f"{', '.join(REPLAYABLE)}"
            )
        if any(config == other for _, other in found):
            raise ConfigError(f"methods: the configuration of {config.method!r} is given twice")
        before = sum(other.method == config.method for _, other in found)
        label = config.method if not before else f"{config.method} {before + 1}"
        found.append((label, config))
    return found


def sample_files() -> dict[str, Path]:
    """The recorded traces that lie beside the package, by name; none where it was installed
    without them."""
    folder = Path(suffixspec_traces.__file__).parents[1] / "samples"
    return {path.name.split(".")[0]: path for path in sorted(folder.glob("*.jsonl.gz"))}
