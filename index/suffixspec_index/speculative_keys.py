"""The words of a speculative configuration: its methods, its choices and vLLM's other keys."""

from __future__ import annotations

from typing import Literal

METHODS: tuple[str, ...] = (
    "suffix",
    "ngram",
    "prediction",
    "hybrid",
    "none",
    "draft_model",
    "eagle",
    "eagle3",
    "mtp",
    "medusa",
    "mlp_speculator",
    "dflash",
    "dspark",
    "ngram_gpu",
    "extract_hidden_states",
    "custom_class",
)
"""Every method that parses: vLLM's, and our ``prediction``, ``hybrid`` and ``none``."""

DraftShape = Literal["path", "tree"]
RejectionSampleMethod = Literal["coupled", "standard", "synthetic", "block"]
DraftSampleMethod = Literal["greedy", "probabilistic"]
BatchSizeRange = tuple[int, int, int]

ENGINE_KEYS = frozenset(
    {
        "enforce_eager",
        "quantization",
        "moe_backend",
        "attention_backend",
        "kv_cache_dtype",
        "revision",
        "code_revision",
        "draft_load_config",
        "disable_padded_drafter_batch",
        "disable_eagle_block_drop",
        "use_local_argmax_reduction",
        "index_share_for_mtp_iteration",
        "enable_adaptive_verification",
        "dspark_draft_topk",
    }
)
"""vLLM's keys that only concern how a draft model is run."""

MISNAMED = {
    "tensor_parallel_size": "draft_tensor_parallel_size",
    "disable_by_batch_size": "num_speculative_tokens_per_batch_size",
}
"""Keys that people write, and what they mean."""
