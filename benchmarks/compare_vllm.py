"""Our engine and the real vLLM on the same prompts, side by side, in one run.

    sh benchmarks/install_vllm.sh            # once: .venv-vllm, 3.5 GB
    python -m benchmarks vllm                # the table; --quick for a smoke test
    python -m benchmarks.compare_vllm --dtype bfloat16 --threads 2 --json out/vllm.json

Both sides run greedily on the same number of threads, keep what they computed of a session
(vLLM: automatic prefix caching) and draft with method ``suffix`` at their defaults. They take turns
request by request, so that a slow minute of the machine hits both alike. The prompts are agent
sessions of ``traces/samples``:

* cold: the first session of each source, turn after turn; the indices know nothing before;
* warm: the second sessions, after both indices took in the recorded sessions from the sixth on
  (ours by a replay, vLLM's by the calls its proposer makes; ours learns acceptance with it);
* eight at a time: a turn each of eight other sessions, all sent at once, indices warm.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.data import Tokens
from benchmarks.harness import ROOT, Row, below, versus

if TYPE_CHECKING:
    from suffixspec_engine import Engine, TargetModel
    from suffixspec_traces.model import TokenSession

VENV = ROOT / ".venv-vllm"
METHODS: tuple[str, ...] = ("suffix", "none")
TURNS, MAX_TOKENS, TOGETHER, TAUGHT_FROM = 4, 64, 8, 5
MAX_MODEL_LEN = 2560


def python() -> Path:
    """The interpreter of vLLM's own environment; it exists where vLLM was installed."""
    return VENV / "bin" / "python"


@dataclass(slots=True)
class Served:
    """What one side did in one phase."""

    outputs: list[list[int]] = field(default_factory=list)
    seconds: float = 0.0
    first_seconds: float = 0.0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def tokens(self) -> int:
        """Output tokens."""
        return sum(map(len, self.outputs))

    @property
    def speed(self) -> float:
        """Output tokens per second, prompts included."""
        return self.tokens / self.seconds

    @property
    def decoding_speed(self) -> float:
        """Output tokens per second after each request's first token (one request at a time)."""
        return (self.tokens - len(self.outputs)) / (self.seconds - self.first_seconds)

    @property
    def acceptance_length(self) -> float:
        """1 + accepted tokens per step with a draft."""
        return 1 + self.accepted / self.drafts if self.drafts else 1.0


class VllmSide:
    """vLLM in a process of its own.

    Args:
        folder: the model.
        options: as for ``benchmarks/vllm_worker.py``.
    """

    def __init__(self, folder: str, **options: Any) -> None:
        worker = ROOT / "benchmarks" / "vllm_worker.py"
        given = {"model": folder, "max_model_len": MAX_MODEL_LEN, **options}
        self._log = (ROOT / "out" / "vllm.log").resolve()
        self._log.parent.mkdir(exist_ok=True)
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [str(python()), str(worker), json.dumps(given)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._answer()

    def serve(
        self,
        prompts: Sequence[Tokens],
        lengths: Sequence[int],
        into: Served,
        sessions: Sequence[str] = (),
    ) -> None:
        """All prompts at once; vLLM finds by itself which sessions they go on with."""
        found = self._ask({"serve": [p.tolist() for p in prompts], "max_tokens": list(lengths)})
        into.outputs += found["outputs"]
        into.seconds += found["seconds"]
        into.first_seconds += sum(found["first"])
        into.drafts += found["counts"]["drafts"]
        into.drafted += found["counts"]["draft_tokens"]
        into.accepted += found["counts"]["accepted_tokens"]

    def teach(self, sessions: Sequence[TokenSession]) -> None:
        """Let the suffix cache take in recorded sessions."""
        pairs = [[t.prompt.tolist(), t.output.tolist()] for s in sessions for t in s.turns]
        self._ask({"teach": pairs})

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()

    def _ask(self, question: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"vLLM ended; its last words are in {self._log}")
        return json.loads(line)


class OurSide:
    """Our engine in this process."""

    def __init__(self, model: TargetModel, method: str) -> None:
        from suffixspec_engine import Engine, EngineConfig

        self._engine: Engine = Engine(
            model, speculative={"method": method}, config=EngineConfig(max_running=TOGETHER)
        )

    def serve(
        self,
        prompts: Sequence[Tokens],
        lengths: Sequence[int],
        into: Served,
        sessions: Sequence[str] = (),
    ) -> None:
        """All prompts at once, the next turns of ``sessions``."""
        from suffixspec_engine import SamplingParams

        counts = self._engine.metrics.counts
        before = (counts.draft_steps, counts.drafted, counts.accepted)
        params = [SamplingParams(temperature=0.0, max_tokens=length) for length in lengths]
        names = sessions or [f"warm-up {i}" for i in range(len(prompts))]
        began = perf_counter()
        found = self._engine.generate(list(prompts), params, session_ids=names)
        into.seconds += perf_counter() - began
        into.outputs += [output.token_ids.tolist() for output in found]
        into.first_seconds += sum(output.metrics.time_to_first_token for output in found)
        into.drafts += counts.draft_steps - before[0]
        into.drafted += counts.drafted - before[1]
        into.accepted += counts.accepted - before[2]

    def teach(self, sessions: Sequence[TokenSession]) -> None:
        """Let the index serve recorded sessions."""
        from suffixspec_traces.replay import ReplayPlan, replay

        assert self._engine.proposer is not None
        replay(ReplayPlan.build(sessions, concurrency=1), self._engine.proposer)

    def close(self) -> None:
        """Stop the engine."""
        self._engine.close()


@dataclass(slots=True)
class Comparison:
    """Results by phase (``cold``, ``warm``, ``eight``), then by ``(side, method)``."""

    phases: dict[str, dict[tuple[str, str], Served]] = field(default_factory=dict)


def run(
    model: TargetModel,
    sessions: Mapping[str, Sequence[TokenSession]],
    *,
    dtype: str,
    threads: int,
    eager: bool = True,
    quick: bool = False,
    say: Callable[[str], None] = print,
) -> Comparison:
    """Measure both sides; the model's weights must be loaded in ``dtype``.

    Raises:
        RuntimeError: vLLM cannot be started.
    """
    say(f"vLLM against our engine, {dtype}, {threads} thread(s)")
    options: dict[str, Any] = {
        "dtype": dtype, "threads": threads, "max_num_seqs": TOGETHER, "eager": eager,
    }  # fmt: skip
    folder = model.module.config._name_or_path
    sides: dict[tuple[str, str], Any] = {}
    try:
        for method in METHODS[:1] if quick else METHODS:
            speculative = {"method": method} if method != "none" else None
            sides["vllm", method] = VllmSide(folder, **options, speculative=speculative)
            sides["ours", method] = OurSide(model, method)
        _warm_up(sides)
        found = Comparison()
        found.phases["cold"] = _in_turn(sides, sessions, 0, 2 if quick else TURNS, say)
        others = [s for recorded in sessions.values() for s in recorded[TAUGHT_FROM:]]
        for side in ("vllm", "ours"):
            sides[side, "suffix"].teach(others)
        found.phases["warm"] = _in_turn(sides, sessions, 1, 2 if quick else TURNS, say)
        found.phases["eight"] = _together(sides, sessions, 1 if quick else 3, say)
        return found
    finally:
        for one in sides.values():
            one.close()


def _warm_up(sides: Mapping[tuple[str, str], Any]) -> None:
    prompt = np.tile(np.arange(100, 120, dtype=np.int32), 3)
    for side in sides.values():
        side.serve([prompt], [16], Served())
        side.serve([prompt + i for i in range(TOGETHER)], [4] * TOGETHER, Served())


def _in_turn(
    sides: Mapping[tuple[str, str], Any],
    sessions: Mapping[str, Sequence[TokenSession]],
    number: int,
    turns: int,
    say: Callable[[str], None],
) -> dict[tuple[str, str], Served]:
    """One session of each source, turn after turn, by every side in turn."""
    served = {name: Served() for name in sides}
    for source, recorded in sessions.items():
        say(f"one request at a time, {source}")
        for turn in recorded[number].turns[:turns]:
            for name, side in sides.items():
                side.serve([turn.prompt], [MAX_TOKENS], served[name], [f"{source} {number}"])
    return served


def _together(
    sides: Mapping[tuple[str, str], Any],
    sessions: Mapping[str, Sequence[TokenSession]],
    rounds: int,
    say: Callable[[str], None],
) -> dict[tuple[str, str], Served]:
    """Eight requests of eight sessions at once; another turn of them in every round."""
    served = {name: Served() for name in sides}
    names = list(sessions)
    asked = [sessions[names[i % len(names)]][2 + i // len(names)] for i in range(TOGETHER)]
    for turn in range(1, 1 + rounds):
        say(f"{TOGETHER} requests at a time, turn {turn + 1}")
        prompts = [session.turns[turn].prompt for session in asked]
        for name, side in sides.items():
            side.serve(prompts, [MAX_TOKENS] * TOGETHER, served[name], [s.id for s in asked])
    return served


def rows(found: Comparison, dtype: str) -> list[Row]:
    """The table; ``peer`` is vLLM."""
    result: list[Row] = []
    names = {
        "cold": "one request at a time, cold index",
        "warm": "one request at a time, warm index",
        "eight": f"{TOGETHER} requests at a time, warm index",
    }
    for phase, served in found.phases.items():
        ours, theirs = served["ours", "suffix"], served["vllm", "suffix"]
        head = f"{dtype}, {names[phase]}"
        goal = 1.0 if phase != "eight" else None
        result.append(versus(f"{head}, suffix", ours.speed, theirs.speed, "tokens/s", times=goal))
        if phase != "eight":
            result.append(
                versus(f"{head}, suffix, after the first token", ours.decoding_speed,
                       theirs.decoding_speed, "tokens/s")
            )  # fmt: skip
        if ("ours", "none") in served:
            plain, rival = served["ours", "none"], served["vllm", "none"]
            result.append(versus(f"{head}, no speculation", plain.speed, rival.speed, "tokens/s"))
        result += [
            versus(f"{head}, suffix, 1 + accepted tokens per step with a draft",
                   ours.acceptance_length, theirs.acceptance_length, "tokens"),
            versus(f"{head}, suffix, accepted draft tokens per output token",
                   ours.accepted / ours.tokens, theirs.accepted / theirs.tokens, "tokens"),
        ]  # fmt: skip
        result.append(_texts_row(head, served, dtype))
    return result


def _texts_row(head: str, served: Mapping[tuple[str, str], Served], dtype: str) -> Row:
    """Outputs of ours that are not vLLM's; in bfloat16 rounding may part them, so no goal."""
    ours, theirs = served["ours", "suffix"].outputs, served["vllm", "suffix"].outputs
    different = sum(a != b for a, b in zip(ours, theirs, strict=True))
    name = f"{head}, of {len(ours)} outputs, those that differ from vLLM's"
    if dtype == "float32":
        return below(name, different, None, "outputs", limit=1)
    return versus(name, different, None, "outputs")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table for one dtype and write it as JSON."""
    from rich.console import Console

    from benchmarks.__main__ import WIDTH, table
    from benchmarks.engine_setup import recorded, threads_set
    from suffixspec_engine import load_model

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare_vllm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--threads", type=int, default=1, help="of both sides (default: 1)")
    parser.add_argument("--compile", action="store_true", help="let vLLM compile its model")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    if not python().exists():
        parser.error(f"{python()} is missing; run: sh benchmarks/install_vllm.sh")
    console = Console(stderr=True)
    with threads_set(options.threads):
        found = run(
            load_model("smollm2", dtype=options.dtype, device="cpu"), recorded(),
            dtype=options.dtype, threads=options.threads, eager=not options.compile,
            quick=options.quick, say=lambda text: console.print(f"[dim]{text}[/dim]"),
        )  # fmt: skip
    result = rows(found, options.dtype)
    Console(width=WIDTH).print(table("against vLLM", result))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps([row.as_json() for row in result], indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
