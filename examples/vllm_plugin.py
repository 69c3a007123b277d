"""suffixspec's drafts inside vLLM, offline: python examples/vllm_plugin.py MODEL

To be run with the Python that vLLM is installed in, and suffixspec beside it
(``pip install suffixspec``; ``pip install 'suffixspec[sharing]'`` to share through Redis). Every
prompt is asked twice: the second time its answer is known, and comes in a few steps.
"""

from __future__ import annotations

import argparse
import json
import time

from vllm import LLM, SamplingParams

PROMPTS = (
    "Write a Python function that adds two numbers.\n\ndef add(",
    "Count from one to twenty: one, two, three,",
)


def main() -> None:
    """Ask twice, and print as JSON what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a model folder or hub id")
    parser.add_argument("--tokens", type=int, default=48, help="of each answer")
    parser.add_argument("--settings", default="{}", help="JSON; see docs/vllm.md")
    parser.add_argument("--without", action="store_true", help="no drafts, to compare with")
    args = parser.parse_args()
    options = {}
    if not args.without:
        options = {
            "speculative_config": {
                "method": "custom_class",
                "model": "suffixspec_engine.vllm.SuffixSpecProposer",
                "num_speculative_tokens": 16,
            },
            "additional_config": {"suffixspec": json.loads(args.settings)},
        }
    llm = LLM(
        model=args.model,
        dtype="float32",
        max_model_len=2048,
        enforce_eager=True,
        disable_log_stats=False,
        **options,
    )
    sampling = SamplingParams(temperature=0, max_tokens=args.tokens)
    rounds = []
    for _ in range(2):
        started = time.perf_counter()
        outputs = llm.generate(list(PROMPTS), sampling, use_tqdm=False)
        rounds.append(
            {
                "seconds": round(time.perf_counter() - started, 3),
                "token_ids": [list(output.outputs[0].token_ids) for output in outputs],
                "counters": _counters(llm),
            }
        )
    print(json.dumps({"rounds": rounds}))


def _counters(llm: LLM) -> dict[str, int]:
    """vLLM's own counts of drafts, drafted and accepted tokens, since the start."""
    return {
        metric.name.removeprefix("vllm:spec_decode_"): metric.value
        for metric in llm.get_metrics()
        if metric.name.startswith("vllm:spec_decode_num") and hasattr(metric, "value")
    }


if __name__ == "__main__":
    main()
