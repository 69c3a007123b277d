"""The real vLLM as a process that answers on its standard streams; run with ``.venv-vllm``.

    .venv-vllm/bin/python benchmarks/vllm_worker.py '{"model": "DIR", "dtype": "float32", ...}'

It imports nothing of this project. A line in is a JSON object, a line out its answer:

    {"serve": [[ids...], ...], "max_tokens": [n, ...]}
        all prompts at once, greedily -> {"outputs", "first", "ended", "seconds", "steps", "counts"}
    {"teach": [[[prompt ids...], [output ids...]], ...]}
        the suffix cache takes recorded responses in, as if it had served them -> {"taught": n}
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TQDM_DISABLE": "1",
}


class Worker:
    """An engine and its counters.

    Args:
        options: ``model`` (a folder), ``dtype``, ``threads``, ``max_num_seqs``, ``max_model_len``,
            ``eager`` and ``speculative`` (a ``speculative_config`` or ``None``).
    """

    def __init__(self, options: dict[str, Any]) -> None:
        import torch
        from vllm import LLM

        torch.set_num_threads(options["threads"])
        self._llm = LLM(
            options["model"],
            dtype=options["dtype"],
            enforce_eager=options["eager"],
            distributed_executor_backend="uni",
            max_model_len=options["max_model_len"],
            max_num_seqs=options["max_num_seqs"],
            # A prompt in one step, as in our engine; smaller chunks cost vLLM more steps.
            max_num_batched_tokens=options["max_model_len"],
            enable_prefix_caching=True,
            speculative_config=options["speculative"],
            disable_log_stats=False,
        )
        torch.set_num_threads(options["threads"])
        self._engine: Any = self._llm.llm_engine
        self._asked = 0

    def serve(self, prompts: list[list[int]], max_tokens: list[int]) -> dict[str, Any]:
        """All prompts at once; seconds count from the call."""
        from vllm import SamplingParams

        before = self._counts()
        began = time.perf_counter()
        order: dict[str, int] = {}
        for number, (ids, most) in enumerate(zip(prompts, max_tokens, strict=True)):
            self._asked += 1
            order[f"request-{self._asked}"] = number
            params = SamplingParams(temperature=0.0, max_tokens=most, detokenize=False)
            self._engine.add_request(f"request-{self._asked}", {"prompt_token_ids": ids}, params)
        outputs: list[list[int]] = [[] for _ in prompts]
        first, ended = [0.0] * len(prompts), [0.0] * len(prompts)
        steps = 0
        while self._engine.has_unfinished_requests():
            steps += 1
            for output in self._engine.step():
                number = order[output.request_id]
                outputs[number] = list(output.outputs[0].token_ids)
                now = time.perf_counter() - began
                if outputs[number] and not first[number]:
                    first[number] = now
                ended[number] = now
        after = self._counts()
        return {
            "outputs": outputs,
            "first": first,
            "ended": ended,
            "seconds": time.perf_counter() - began,
            "steps": steps,
            "counts": {name: after[name] - before[name] for name in after},
        }

    def teach(self, pairs: list[list[list[int]]]) -> dict[str, Any]:
        """Put recorded responses into the suffix cache's global tree."""
        import numpy as np

        worker = self._engine.model_executor.driver_worker
        runner = getattr(worker, "worker", worker).model_runner
        cache = runner.drafter.suffix_cache
        for number, (prompt, output) in enumerate(pairs):
            name = f"taught-{number}"
            cache.start_request(name, np.array(prompt, np.int32))
            cache.add_active_response(name, output)
            cache.stop_request(name)
        return {"taught": len(pairs)}

    def _counts(self) -> dict[str, int]:
        found = {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}
        for metric in self._llm.get_metrics():
            key = metric.name.removeprefix("vllm:spec_decode_num_")
            if key in found:
                found[key] += int(metric.value)
        return found


def main() -> None:
    """Answer line by line until the input ends."""
    options = json.loads(sys.argv[1])
    os.environ.update(_ENVIRONMENT)
    os.environ["OMP_NUM_THREADS"] = str(options["threads"])
    # Libraries print; answers must stand alone.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    worker = Worker(options)
    answers.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        asked = json.loads(line)
        if "teach" in asked:
            answer = worker.teach(asked["teach"])
        else:
            answer = worker.serve(asked["serve"], asked["max_tokens"])
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
