"""Fields that several of OpenAI's requests share, with vLLM's beside them.

Types are taken as they are sent: ``"5"`` is no number. A field that is not known is an error, and
one that cannot be honoured takes only the value that asks for nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from suffixspec_engine.grammar import GrammarSpec
from suffixspec_engine.sampling import SamplingParams
from suffixspec_service.api.problems import ApiError

MAX_STOP_STRINGS = 16
MAX_TOP_LOGPROBS = 20
_MAX_SEED = 2**63

ShortText = Annotated[str, StringConstraints(max_length=512)]
SessionName = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Metadata = Annotated[dict[ShortText, ShortText], Field(max_length=16)]


class Wire(BaseModel):
    """A part of a request."""

    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(Wire):
    """``stream_options``."""

    include_usage: bool = False
    include_obfuscation: Literal[False] | None = None


class Speculation(Wire):
    """``speculative``: what this request wants of speculation."""

    num_speculative_tokens: int | None = Field(default=None, ge=0, le=1024)
    """Most draft tokens per step; 0: none."""
    priority: float | None = Field(default=None, gt=0, le=1000)
    """What this request's gains count against those of others, where draft tokens are scarce; 1
    is what others have."""


class StructuredOutputs(Wire):
    """vLLM's ``structured_outputs``; exactly one of them."""

    json_: dict[str, Any] | str | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = Field(default=None, min_length=1, max_length=1024)
    grammar: str | None = None
    json_object: Literal[True] | None = None


class SamplingFields(Wire):
    """How tokens are chosen, and what the answer carries beside them."""

    model: str
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, gt=0)
    logit_bias: dict[str, float] | None = Field(default=None, max_length=1024)
    seed: int | None = Field(default=None, ge=-_MAX_SEED, lt=_MAX_SEED)
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = Field(default=None, max_length=64)
    min_tokens: int | None = Field(default=None, ge=0)
    max_tokens: int | None = Field(default=None, ge=1)
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    n: int | None = Field(default=None, ge=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: ShortText | None = None
    metadata: Metadata | None = None
    speculative: Speculation | None = None
    include_metrics: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = Field(default=None, min_length=1, max_length=1024)
    guided_grammar: str | None = None

    def sampling(
        self, *, max_tokens: int | None, logprobs: int | None, choice: int = 0
    ) -> SamplingParams:
        """The parameters of one choice; each choice has a seed of its own.

        Raises:
            ConfigError, ApiError: a value is out of range; names the field.
        """
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(stop) > MAX_STOP_STRINGS:
            raise ApiError(
                f"stop: {len(stop)} strings are more than {MAX_STOP_STRINGS}", param="stop"
            )
        given = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repetition_penalty": self.repetition_penalty,
            "logit_bias": self.logit_bias,
            "min_tokens": self.min_tokens,
            "stop_token_ids": tuple(self.stop_token_ids) if self.stop_token_ids else None,
            "ignore_eos": self.ignore_eos,
            "include_stop_str_in_output": self.include_stop_str_in_output,
        }
        return SamplingParams(
            **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
            stop=tuple(stop),
            seed=None if self.seed is None else self.seed + choice,
            max_tokens=max_tokens,
            logprobs=logprobs,
        )

    def structure(self) -> GrammarSpec | None:
        """What ``structured_outputs`` or a ``guided_...`` field asks for; ``None``: nothing.

        Raises:
            ApiError: more than one thing is asked for.
            InputError: it is not valid.
        """
        inner = self.structured_outputs
        asked: dict[str, GrammarSpec] = {}
        for prefix, source in (("guided_", self), ("structured_outputs.", inner)):
            for kind in ("json", "regex", "choice", "grammar", "json_object"):
                attribute = f"guided_{kind}" if source is self else kind
                if source is inner and kind == "json":
                    attribute = "json_"
                value = getattr(source, attribute, None)
                if value is not None:
                    asked[prefix + kind] = _spec(kind, value)
        if len(asked) > 1:
            names = " and ".join(asked)
            raise ApiError(f"{names}: give only one of them", param=next(iter(asked)))
        return next(iter(asked.values()), None)

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def max_draft(self) -> int | None:
        """Most draft tokens per step, if the request says."""
        return self.speculative.num_speculative_tokens if self.speculative else None

    @property
    def draft_priority(self) -> float:
        """As ``GenerationRequest.priority``."""
        given = self.speculative.priority if self.speculative else None
        return 1.0 if given is None else given

    def check_choices(self, most: int) -> int:
        """``n``, within what the service allows.

        Raises:
            ApiError: it is more.
        """
        n = self.n or 1
        if n > most:
            raise ApiError(f"n: {n} is more than the {most} that are allowed", param="n")
        if self.stream_options is not None and not self.stream:
            raise ApiError(
                "stream_options: only with 'stream': true; leave it out", param="stream_options"
            )
        return n


def _spec(kind: str, value: Any) -> GrammarSpec:
    if kind == "json_object":
        return GrammarSpec.json_object()
    made: GrammarSpec = getattr(GrammarSpec, kind)(value)
    return made
