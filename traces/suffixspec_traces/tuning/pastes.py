"""Configurations to paste: for suffixspec, for vLLM as it is, and for the plug-in in vLLM."""

from __future__ import annotations

import json

import yaml

from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_traces.tuning.model import Paste, Role

PLUGIN_CLASS = "suffixspec_engine.vllm.SuffixSpecProposer"
"""What vLLM's ``custom_class`` is told to load. A name only; nothing is imported here."""

_KEYS = {
    "suffix": (
        "method",
        "num_speculative_tokens",
        "suffix_decoding_max_tree_depth",
        "suffix_decoding_max_cached_requests",
        "suffix_decoding_max_spec_factor",
        "suffix_decoding_max_spec_offset",
        "suffix_decoding_min_token_prob",
        "min_match_len",
        "draft_shape",
        "index_prompts",
        "allow_beyond_depth",
        "dynamic",
    ),
    "ngram": ("method", "num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max"),
    "none": ("method",),
}
_VLLM_KEYS = frozenset(
    {
        "method",
        "num_speculative_tokens",
        "prompt_lookup_min",
        "prompt_lookup_max",
        "suffix_decoding_max_tree_depth",
        "suffix_decoding_max_cached_requests",
        "suffix_decoding_max_spec_factor",
        "suffix_decoding_min_token_prob",
    }
)


def settings_of(config: SpeculativeConfig) -> dict[str, object]:
    """The keys that matter to the method; reading them gives the same drafts."""
    values = config.to_dict()
    settings = {key: values[key] for key in _KEYS[config.method] if key in values}
    if config.method == "ngram" and SpeculativeConfig().dynamic:
        settings["dynamic"] = False  # where it is the default, n-grams must say that they have none
    return settings


def ours_yaml(config: SpeculativeConfig, cost_model: str, role: Role) -> Paste:
    """The settings in YAML, for deployment files."""
    return Paste(
        title="suffixspec, YAML",
        where="the settings as a YAML document, for deployment files",
        role=role,
        language="yaml",
        text=yaml.safe_dump(
            {"cost_model": cost_model, "speculative": settings_of(config)}, sort_keys=False
        ),
    )


def ours_toml(config: SpeculativeConfig, cost_model: str, role: Role) -> Paste:
    """The settings as ``suffixspec.toml`` holds them."""
    lines = [f"cost_model = {json.dumps(cost_model)}", "", "[speculative]"]
    # JSON's numbers, booleans and strings are TOML's.
    lines += [f"{key} = {json.dumps(value)}" for key, value in settings_of(config).items()]
    return Paste(
        title="suffixspec, TOML",
        where="suffixspec.toml",
        role=role,
        language="toml",
        text="\n".join(lines) + "\n",
    )


def vllm_json(config: SpeculativeConfig, role: Role) -> Paste:
    """For vLLM without anything of ours: only keys that it knows.

    ``config`` must not rest on other keys: path drafts, no offset, not dynamic.
    """
    values = {k: v for k, v in settings_of(config).items() if k in _VLLM_KEYS}
    return Paste(
        title=f"vLLM, built-in {config.method}",
        where="vllm serve --speculative-config",
        role=role,
        language="json",
        text=json.dumps(values) + "\n",
    )


def plugin_shell(config: SpeculativeConfig, role: Role) -> Paste:
    """For our plug-in inside vLLM: vLLM is told the class and the most tokens, and hands the rest
    to the plug-in. It measures what vLLM's steps take, so no cost model is named. ``config`` must
    draft paths: vLLM verifies no trees."""
    vllm = {
        "method": "custom_class",
        "model": PLUGIN_CLASS,
        "num_speculative_tokens": config.num_speculative_tokens,
    }
    ours = {"suffixspec": {"speculative": settings_of(config)}}
    text = (
        f"vllm serve MODEL --speculative-config {_quoted(json.dumps(vllm))} \\\n"
        f"    --additional-config {_quoted(json.dumps(ours))}\n"
    )
    return Paste(
        title="vLLM with suffixspec's plug-in",
        where="the command line of vLLM",
        role=role,
        language="shell",
        text=text,
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
