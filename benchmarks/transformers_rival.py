"""transformers' own ``generate``, as its users call it: the rival of the engine's rows.

Its model is loaded apart from the engine's, with transformers' default attention and its weights
as they are.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
import transformers

from benchmarks.data import Tokens


class TransformersRival:
    """A model from a folder.

    Args:
        folder: what the engine's model was loaded from.
        dtype: of its weights.
    """

    def __init__(self, folder: str, dtype: str = "float32") -> None:
        logging: Any = transformers.utils.logging
        shown = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype)
        )
        if shown:
            logging.enable_progress_bar()
        model.train(mode=False)
        model.generation_config.pad_token_id = model.generation_config.eos_token_id
        # Greedy; what a model's file says of sampling only draws warnings then.
        model.generation_config.temperature = None
        model.generation_config.top_p = None
        self._model = model

    def generate(
        self, prompt: Tokens, max_tokens: int, *, prompt_lookup: int | None = None
    ) -> tuple[Tokens, float]:
        """Greedy output of one request, and the wall seconds from the call to its last token.

        Args:
            prompt: ``(n,)`` int32.
            prompt_lookup: ``prompt_lookup_num_tokens``; ``None``: no speculation.
        """
        ids = torch.tensor(prompt.tolist())[None]
        options: dict[str, Any] = {}
        if prompt_lookup is not None:
            options["prompt_lookup_num_tokens"] = prompt_lookup
        began = time.perf_counter()
        with torch.inference_mode():
            found = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=max_tokens,
                **options,
            )
        took = time.perf_counter() - began
        output: Tokens = found[0, ids.shape[1] :].numpy().astype("int32")
        return output, took

    def padded_seconds(self, prompts: Sequence[Tokens], lengths: Sequence[int], size: int) -> float:
        """Wall seconds for all requests in static batches of ``size``, padded on the left.

        A batch lasts as long as its longest output; nothing ends before its length.
        """
        began = time.perf_counter()
        for at in range(0, len(prompts), size):
            self._padded(prompts[at : at + size], max(lengths[at : at + size]))
        return time.perf_counter() - began

    def _padded(self, prompts: Sequence[Tokens], length: int) -> None:
        longest = max(map(len, prompts))
        ids = torch.zeros(len(prompts), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt.tolist())
            mask[row, longest - len(prompt) :] = 1
        with torch.inference_mode():
            self._model.generate(
                ids,
                attention_mask=mask,
                do_sample=False,
                min_new_tokens=length,
                max_new_tokens=length,
            )
