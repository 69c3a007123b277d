"""What is tuned: three families of settings, each a grid of values to try.

Every threshold has an ordered list of values, close to evenly spaced in effect. Optuna sees the
place in the list, so that it knows which values are neighbours, a setting is tried only once, and
what comes out can be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from suffixspec_index.speculative_config import SpeculativeConfig

Value = bool | int | float | str | None
Values = dict[str, Value]
"""Threshold -> value."""

Params = dict[str, int]
"""Threshold -> place in its list: what Optuna stores."""

SPACE_VERSION = 1  # change it with the lists: places in older storages would mean other values


class Suggests(Protocol):
    """The one method of an Optuna trial that is needed here."""

    def suggest_int(self, name: str, low: int, high: int) -> int:
        """A number from ``low`` to ``high``, inclusive."""


@dataclass(frozen=True)
class Family:
    """Settings that are tuned together.

    Attributes:
        name: short, part of the names of studies.
        title: as reports say it.
        ladders: threshold -> values to try, in order.
        fixed: keys of the configuration that are the same for all.
        starts: settings to try first.
        share: of the trials.
    """

    name: str
    title: str
    ladders: Mapping[str, tuple[Value, ...]]
    fixed: Mapping[str, Value]
    starts: tuple[Values, ...]
    share: float

    def suggest(self, trial: Suggests) -> Values:
        """Let a trial choose."""
        return self.values(
            {name: trial.suggest_int(name, 0, len(v) - 1) for name, v in self.ladders.items()}
        )

    def values(self, params: Mapping[str, int]) -> Values:
        """From places to values."""
        return {name: self.ladders[name][params[name]] for name in self.ladders}

    def params(self, values: Mapping[str, Value]) -> Params:
        """From values to places. Raises ``ValueError`` for a value that is not in the list."""
        return {name: ladder.index(values[name]) for name, ladder in self.ladders.items()}

    def config(self, values: Mapping[str, Value]) -> SpeculativeConfig:
        """The configuration that these values stand for."""
        given = dict(self.fixed) | dict(values)
        span = given.pop("prompt_lookup_span", None)
        if isinstance(span, int):
            low = given["prompt_lookup_min"]
            assert isinstance(low, int)
            given["prompt_lookup_max"] = low + span
        return SpeculativeConfig.from_dict(given)

    def inert(self, values: Mapping[str, Value]) -> frozenset[str]:
        """Thresholds that have no effect beside these values."""
        inert = set()
        if values.get("dynamic"):  # the size follows from costs
            inert.add("suffix_decoding_min_token_prob")
        if values.get("suffix_decoding_max_spec_factor", 1.0) is None:  # no bound to shift
            inert.add("suffix_decoding_max_spec_offset")
        return frozenset(inert)

    def neighbours(self, values: Values, most: int = 5) -> Iterator[Values]:
        """Settings that differ in one threshold, which takes up to ``most`` other values: the next
        on either side, the ends of the list and some evenly in between."""
        for name, ladder in self.ladders.items():
            if name in self.inert(values):
                continue
            at = ladder.index(values[name])
            for place in _spread(len(ladder), at, most):
                yield values | {name: ladder[place]}


def _spread(size: int, at: int, most: int) -> list[int]:
    wanted = [at - 1, at + 1, 0, size - 1]
    wanted += [round(i * (size - 1) / most) for i in range(1, most)]
    places: list[int] = []
    for place in wanted:
        if 0 <= place < size and place != at and place not in places and len(places) < most:
            places.append(place)
    return sorted(places)


_DEPTHS = (8, 12, 16, 24, 32, 48, 64, 96)
_TOKENS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64)
_FACTORS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
_PROBABILITIES = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

_OURS: Values = {
    "suffix_decoding_max_tree_depth": 24,
    "num_speculative_tokens": 24,
    "suffix_decoding_max_spec_factor": None,
    "suffix_decoding_max_spec_offset": 0.0,
    "suffix_decoding_min_token_prob": 0.1,
    "min_match_len": 1,
    "index_prompts": False,
    "draft_shape": "path",
    "dynamic": False,
}
_VLLM: Values = {
    "suffix_decoding_max_tree_depth": 24,
    "num_speculative_tokens": 24,
    "suffix_decoding_max_spec_factor": 1.0,
    "suffix_decoding_min_token_prob": 0.1,
}

SUFFIX = Family(
    name="suffix",
    title="suffix",
    ladders={
        "suffix_decoding_max_tree_depth": _DEPTHS,
        "num_speculative_tokens": _TOKENS,
        "suffix_decoding_max_spec_factor": (*_FACTORS, None),
        "suffix_decoding_max_spec_offset": (-4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0),
        "suffix_decoding_min_token_prob": _PROBABILITIES,
        "min_match_len": (1, 2, 3, 4, 5, 6, 8, 12, 16),
        "index_prompts": (False, True),
        "draft_shape": ("path", "tree"),
        "dynamic": (False, True),
    },
    fixed={"method": "suffix"},
    starts=(
        _OURS,
        _OURS | {"dynamic": True},
        _OURS | {"dynamic": True, "draft_shape": "tree", "num_speculative_tokens": 32},
        _OURS | {"suffix_decoding_min_token_prob": 0.4},
        _OURS | {"num_speculative_tokens": 3, "suffix_decoding_min_token_prob": 0.7},
    ),
    share=0.6,
)
VLLM_SUFFIX = Family(
    name="vllm-suffix",
    title="suffix as vLLM has it",
    ladders={
        "suffix_decoding_max_tree_depth": _DEPTHS,
        "num_speculative_tokens": _TOKENS,
        "suffix_decoding_max_spec_factor": _FACTORS,
        "suffix_decoding_min_token_prob": _PROBABILITIES,
    },
    fixed={
        "method": "suffix",
        "suffix_decoding_max_spec_offset": 0.0,
        "min_match_len": 1,
        "index_prompts": False,
        "draft_shape": "path",
        "allow_beyond_depth": False,
        "dynamic": False,
    },
    starts=(
        _VLLM,
        _VLLM | {"suffix_decoding_max_spec_factor": 4.0},
        _VLLM | {"num_speculative_tokens": 3, "suffix_decoding_min_token_prob": 0.7},
    ),
    share=0.2,
)
NGRAM = Family(
    name="ngram",
    title="n-gram",
    ladders={
        "prompt_lookup_min": (1, 2, 3, 4, 5, 6, 8, 10),
        "prompt_lookup_span": (0, 1, 2, 3, 5, 8),
        "num_speculative_tokens": (1, 2, 3, 4, 5, 6, 8, 12, 16, 24),
    },
    fixed={"method": "ngram", "dynamic": False},
    starts=(
        {"prompt_lookup_min": 2, "prompt_lookup_span": 3, "num_speculative_tokens": 8},
        {"prompt_lookup_min": 5, "prompt_lookup_span": 0, "num_speculative_tokens": 5},
        {"prompt_lookup_min": 8, "prompt_lookup_span": 0, "num_speculative_tokens": 3},
    ),
    share=0.2,
)
FAMILIES = (SUFFIX, VLLM_SUFFIX, NGRAM)

VLLM_DEFAULT = VLLM_SUFFIX.config(_VLLM)
"""vLLM's suffix settings as they are when only the method is named, decoded with our index."""


def our_default() -> SpeculativeConfig:
    """What ``method: suffix`` alone means here."""
    return SpeculativeConfig(method="suffix")
