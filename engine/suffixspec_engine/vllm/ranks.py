"""Which of a model's processes drafts. vLLM makes a proposer in each, and uses one's drafts."""

from __future__ import annotations

import sys


def is_output_rank() -> bool:
    """Whether vLLM takes the drafts of this process: the first of the tensor-parallel ranks, in the
    last stage of the pipeline. True where vLLM runs no such groups."""
    state = sys.modules.get("vllm.distributed.parallel_state")
    if state is None:
        return True
    try:
        return bool(state.get_tp_group().is_first_rank and state.get_pp_group().is_last_rank)
    except (AssertionError, AttributeError):  # not set up, or another vLLM than known
        return True
