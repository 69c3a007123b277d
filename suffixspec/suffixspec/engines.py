"""Engines for the commands: from flags and settings to an engine, and from text to a prompt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suffixspec_index.errors import ConfigError, MissingDependencyError
from suffixspec_index.speculative_config import SpeculativeConfig

if TYPE_CHECKING:
    from suffixspec_engine.engine import Engine
    from suffixspec_engine.models import TargetModel
    from suffixspec_index.depth import StepCost


METHODS_OF_THE_ENGINE = ("draft_model",)
"""Methods that only work where a model runs; see :func:`suffixspec.methods.choose_methods`."""


def load_target(
    model: str,
    *,
    dtype: str = "auto",
    threads: int | None = None,
    max_model_len: int | None = None,
) -> TargetModel:
    """Load the model of a command.

    Raises:
        MissingDependencyError: torch or transformers is not installed.
        ConfigError: as for ``suffixspec_engine.models.load_model``.
    """
    try:
        import torch

        from suffixspec_engine.models import load_model
    except ImportError as error:
        raise MissingDependencyError(
            "running a model needs torch and transformers; run: pip install 'suffixspec[engine]'"
        ) from error
    if threads is not None:
        if threads < 1:
            raise ConfigError(f"--threads is {threads}; it must be at least 1")
        torch.set_num_threads(threads)
    return load_model(model, dtype=dtype, max_model_len=max_model_len)


def make_engine(
    target: TargetModel,
    speculative: SpeculativeConfig | None,
    progress: Callable[[str], None] | None = None,
    *,
    cost_model: str | None = None,
) -> Engine:
    """An engine with or without speculation; ``progress`` hears what is compiled meanwhile.

    Args:
        cost_model: name or file; what the setting of that name says. ``None``: what steps take is
            learned from the first ones.

    Raises:
        ConfigError: there is no such cost model.
    """
    from suffixspec_engine.engine import Engine

    cost = step_cost(cost_model)
    return Engine(target, speculative=speculative, step_cost=cost, progress=progress)


def step_cost(cost_model: str | None) -> StepCost | None:
    """What steps are expected to take, from the setting ``cost_model``; ``None`` where it is not
    set. Raises what ``suffixspec_traces.cost.load_cost_model`` does."""
    if cost_model is None:
        return None
    from suffixspec_traces.cost import load_cost_model

    return load_cost_model(cost_model)


def read_prompt(text: str) -> str:
    """``@FILE`` stands for the file's text.

    Raises:
        ConfigError: the file cannot be read.
    """
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"prompt {text!r}: the file cannot be read ({error})") from None


def as_chat(target: TargetModel, messages: list[dict[str, str]]) -> str:
    """The prompt that asks the model for the next message; the plain text of the messages where it
    has no chat template."""
    tokenizer: Any = target.tokenizer
    if tokenizer is None or not getattr(tokenizer, "chat_template", None):
        return "\n".join(message["content"] for message in messages)
    prompt: str = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=False
    )
    return prompt
