"""Request ids for our proposer, taken from vLLM's model runner.

vLLM gives custom proposers tokens only. Its model runner knows more, so the method that calls the
proposer is wrapped, once, in the process where the runner lives. If this version of vLLM looks
different, nothing is wrapped, and requests are recognised by their tokens.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

_log = logging.getLogger(__name__)
_RUNNER = "vllm.v1.worker.gpu_model_runner"
_METHOD = "propose_draft_token_ids"


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """What the model runner knows about a step.

    Attributes:
        request_ids: per row.
        prompt_lengths: per row, in tokens.
        adapters: per row, the LoRA adapter's name; empty: none.
        finished: ids of requests that ended since the last step.
        scheduled_tokens: tokens of the step, prompts included.
    """

    request_ids: tuple[str, ...]
    prompt_lengths: tuple[int, ...]
    adapters: tuple[str, ...]
    finished: Set[str] = field(default_factory=frozenset)
    scheduled_tokens: int | None = None

    def row(self, index: int) -> dict[str, Any]:
        """The fields of :class:`.rows.Row` that are known for a row."""
        return {
            "request_id": self.request_ids[index],
            "prompt_length": self.prompt_lengths[index],
            "adapter": self.adapters[index],
        }


def read_facts(runner: Any, scheduler_output: Any) -> BatchFacts | None:
    """What a runner knows; ``None`` where it does not look as expected."""
    try:
        batch = runner.input_batch
        ids = tuple(str(name) for name in batch.req_ids)
        prompts = tuple(int(n) for n in batch.num_prompt_tokens[: len(ids)])
        adapters = []
        for name in ids:
            lora = getattr(runner.requests[name], "lora_request", None)
            adapters.append("" if lora is None else str(lora.lora_name))
        finished = frozenset(str(name) for name in scheduler_output.finished_req_ids)
        scheduled = int(scheduler_output.total_num_scheduled_tokens)
        return BatchFacts(ids, prompts, tuple(adapters), finished, scheduled)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        _log.debug("suffixspec: vLLM's model runner is unknown to us: %r", error)
        return None


def install(proposer_class: type) -> bool:
    """Let the model runner tell proposers of this class about each step. May be called often.

    Returns:
        Whether it will.
    """
    module = sys.modules.get(_RUNNER)  # it made the proposer, so it is there
    runner_class = getattr(module, "GPUModelRunner", None)
    original = getattr(runner_class, _METHOD, None)
    if original is None:
        _log.info("suffixspec: requests are recognised by their tokens (no known model runner)")
        return False
    if getattr(original, "_suffixspec", False):
        return True
    if "scheduler_output" not in inspect.signature(original).parameters:
        _log.info("suffixspec: requests are recognised by their tokens (another vLLM than known)")
        return False

    @functools.wraps(original)
    def propose(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        drafter = getattr(self, "drafter", None)
        if isinstance(drafter, proposer_class):
            drafter.identify(read_facts(self, scheduler_output))  # type: ignore[attr-defined]
        return original(self, scheduler_output, *args, **kwargs)

    propose._suffixspec = True  # type: ignore[attr-defined]
    setattr(runner_class, _METHOD, propose)
    return True
