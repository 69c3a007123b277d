"""Group ``vllm``: our engine against the real vLLM for CPUs; see :mod:`benchmarks.compare_vllm`."""

from __future__ import annotations

from benchmarks import compare_vllm
from benchmarks.engine_setup import can_run, recorded, threads_set
from benchmarks.harness import Context, Row, group


@group("vllm", "the real vLLM with method suffix on the same prompts (needs .venv-vllm)")
def run(context: Context) -> list[Row]:
    """Every row; none, with the reason, where vLLM or the engine's packages are missing."""
    if not compare_vllm.python().exists():
        context.say("group vllm is skipped: run: sh benchmarks/install_vllm.sh (3.5 GB)")
        return []
    if not can_run("vllm", context.say):
        return []
    from suffixspec_engine import load_model

    sessions = recorded()
    rows: list[Row] = []
    with threads_set(1):
        for dtype in context.dtypes:
            found = compare_vllm.run(
                load_model("smollm2", dtype=dtype, device="cpu"), sessions,
                dtype=dtype, threads=1, quick=context.quick, say=context.say,
            )  # fmt: skip
            rows += compare_vllm.rows(found, dtype)
    return rows
