"""Group ``tuning``: depth chosen by cost, against the best fixed settings and vLLM's defaults.

Held-out sessions behind an index that has seen the earlier ones, decoded by replay and priced with
a cost model, at 1, 8 and 64 requests at a time. *Dynamic* is told the cost model and nothing else:
it sees how many requests each step has. *Fixed* is the best of a grid of thresholds, chosen on the
very sessions it is judged on; *tuned* is the better of the two. Predicted tokens per second leave
the proposer's own time out, which this machine's load would decide; rows of their own show it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.data import Corpus
from benchmarks.harness import Context, Row, below, group, in_turn
from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_traces.cost import load_cost_model
from suffixspec_traces.model import TokenSession, Turn
from suffixspec_traces.report.metrics import calibration, calibration_before
from suffixspec_traces.tuning.evaluate import Bench, Score
from suffixspec_traces.tuning.space import VLLM_DEFAULT
from suffixspec_traces.tuning.split import Parts

COST_MODELS = ("cpu-smollm2-135m-f32", "h100-sxm-8b-bf16")
CONCURRENCIES = (1, 8, 64)
TUNED_TIMES = 1.12
DYNAMIC_TIMES = 0.97
SATURATED_TIMES = 0.98
CALIBRATION_LIMIT = 0.05
SATURATED = 16
PROBABILITIES = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
DYNAMIC = SpeculativeConfig.from_dict({"method": "suffix", "num_speculative_tokens": 48})


@dataclass(frozen=True, slots=True)
class _Judged:
    """What one cost model and concurrency gave, tokens per second."""

    plain: float
    vllm: float
    dynamic: Score
    fixed: dict[str, Score]

    @property
    def best_fixed(self) -> tuple[str, float]:
        """The fastest of the grid, no speculation among them."""
        speeds = {name: _speed(score) for name, score in self.fixed.items()}
        name = max(speeds, key=speeds.__getitem__)
        return (name, speeds[name]) if speeds[name] > self.plain else ("none", self.plain)


@group(
    "tuning", "depth by cost against the best fixed settings and vLLM's, calibration, saturation"
)
def run(context: Context) -> list[Row]:
    """All rows."""
    parts = _parts(context.corpus, 6_000 if context.quick else 40_000)
    rows: list[Row] = []
    for name in COST_MODELS:
        cost = load_cost_model(name)
        bench = Bench(parts, cost, context.corpus.vocab_size)
        for n in CONCURRENCIES:
            context.say(f"{name}, {n} at a time")
            rows += _rows(f"{name} at {n}", n, _judge(bench, n, quick=context.quick))
    rows += _calibration_rows(context, parts)
    rows += _saturated_rows(context)
    return rows


def _judge(bench: Bench, n: int, *, quick: bool) -> _Judged:
    def decoded(config: SpeculativeConfig) -> Score:
        found = bench.evaluate(config, n, "judgement")
        assert found is not None
        return found

    vllm, dynamic = decoded(VLLM_DEFAULT), decoded(DYNAMIC)
    fixed = {_label(config): decoded(config) for config in _grid(quick=quick)}
    return _Judged(1000.0 / vllm.plain_ms_per_token, _speed(vllm), dynamic, fixed)


def _grid(*, quick: bool) -> Iterable[SpeculativeConfig]:
    """Fixed thresholds to beat: probability and length."""
    for p in PROBABILITIES[1::4] if quick else PROBABILITIES:
        for k in (24,) if quick else (3, 8, 24, 48):
            yield SpeculativeConfig.from_dict(
                {
                    "method": "suffix",
                    "num_speculative_tokens": k,
                    "suffix_decoding_min_token_prob": p,
                    "dynamic": False,
                }
            )


def _label(config: SpeculativeConfig) -> str:
    return f"p {config.suffix_decoding_min_token_prob:g} k {config.num_speculative_tokens}"


def _speed(score: Score) -> float:
    """Predicted output tokens per second of one request."""
    return 1000.0 / score.ms_per_token


def _rows(name: str, n: int, found: _Judged) -> list[Row]:
    label, best = found.best_fixed
    dynamic = _speed(found.dynamic)
    tuned = max(dynamic, best)
    share = found.dynamic.proposer_ms_per_token / found.dynamic.ms_per_token
    rows = [
        _row(f"{name}: dynamic against the best fixed ({label})", dynamic, best, DYNAMIC_TIMES),
        Row(
            f"{name}: proposer and rule, of the step's time", 100 * share, None, None, "%", "", None
        ),
    ]
    if n == 1:
        rows.append(_row(f"{name}: tuned against vLLM's defaults", tuned, found.vllm, TUNED_TIMES))
    if n == max(CONCURRENCIES):
        rows.append(_row(f"{name}: tuned against no speculation", tuned, found.plain, 1.0))
        rows.append(_row(f"{name}: dynamic against no speculation", dynamic, found.plain, 1.0))
    return rows


def _row(name: str, ours: float, peer: float, times: float) -> Row:
    ratio = ours / peer
    return Row(name, ours, peer, ratio, "tokens/s", f"≥ {times:g} ×", ratio >= times)


def _calibration_rows(context: Context, parts: Parts) -> list[Row]:
    """Expected calibration error on the held-out part, of what is drafted and of what is chosen."""
    from suffixspec_index.depth import DepthSettings, create_depth_rule
    from suffixspec_index.proposers import create_proposer
    from suffixspec_traces.replay import ReplayPlan, replay

    cost = load_cost_model(COST_MODELS[1])
    rows = []
    before = ReplayPlan.build(parts.history, concurrency=8)
    held_out = ReplayPlan.build(parts.held_out, concurrency=8)
    ngram = {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 2}
    for name, values in (
        ("suffix, fixed", {"method": "suffix", "dynamic": False}),
        ("suffix, dynamic", {"method": "suffix", "num_speculative_tokens": 48}),
        ("n-gram, as it claims", ngram | {"dynamic": False}),
        ("n-gram, calibrated", ngram | {"dynamic": True}),
    ):
        context.say(f"calibration, {name}")
        config = SpeculativeConfig.from_dict(values)
        proposer = create_proposer(config, vocab_size=context.corpus.vocab_size)
        rule = create_depth_rule(config, cost, DepthSettings(load=8))
        replay(before, proposer, depth=rule)
        result = replay(held_out, proposer, depth=rule)
        found = calibration(result.log.node_probs, result.log.node_accepted)
        title = f"calibration error: {name}"
        error = found.expected_calibration_error
        if "claims" in name:
            rows.append(Row(title, error, None, None, "", "", None))
        else:
            rows.append(below(title, error, None, "", limit=CALIBRATION_LIMIT))
            pair = calibration_before(result)
            assert pair is not None
            before_error = pair.before.expected_calibration_error
            title = f"calibration error: the same tokens {pair.basis}, {name}"
            rows.append(Row(title, before_error, None, None, "", "", None))
    return rows


def _saturated_rows(context: Context) -> list[Row]:
    """The real engine with 16 requests at a time, with and without dynamic speculation."""
    try:
        from suffixspec_engine import Engine, EngineConfig
        from suffixspec_engine.models import load_model
    except ImportError:
        context.say("no engine: torch or transformers is not installed")
        return []
    model = load_model("smollm2")
    rounds = 2 if context.quick else min(context.repeats, 3)
    prompts = _prompts(context.corpus, SATURATED * (rounds + 1))
    engines: list[Any] = []

    def speed(engine: Engine, fresh: Iterator[list[list[int]]]) -> float:
        from suffixspec_engine import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=12 if context.quick else 48)
        texts = next(fresh)  # never the same twice: the index would know the answers
        began = time.process_time()
        outputs = engine.generate(texts, params)
        return sum(len(o.token_ids) for o in outputs) / (time.process_time() - began)

    rivals = {}
    for name, speculative in (("with", {"method": "suffix"}), ("without", None)):
        engine = Engine(model, speculative=speculative, config=EngineConfig(max_running=SATURATED))
        engines.append(engine)
        batches = [prompts[i :: rounds + 1] for i in range(rounds + 1)]
        rivals[name] = partial(speed, engine, iter(batches))
    context.say(f"real engine, {SATURATED} at a time")
    found = in_turn(rivals, repeats=rounds)
    for engine in engines:
        engine.close()
    ours, plain = found["with"].median, found["without"].median
    return [
        _row(
            f"real engine at {SATURATED}: dynamic against no speculation (tokens per CPU second)",
            ours,
            plain,
            SATURATED_TIMES,
        )
    ]


def _prompts(corpus: Corpus, count: int) -> list[list[int]]:
    """First turns of some sessions, cut to a length that a CPU can do."""
    firsts = [turns[0][0] for sessions in corpus.sources.values() for turns in sessions if turns]
    step = max(len(firsts) // count, 1)
    return [prompt[-200:].tolist() for prompt in firsts[::step][:count]]


def _parts(corpus: Corpus, tokens: int) -> Parts:
    """The first sessions of every source, up to so many generated tokens each, split in time."""
    sessions: list[TokenSession] = []
    for source in corpus.sources:
        sessions += _sessions(source, corpus.first(source, tokens))
    return Parts.split(sessions, held_out=0.3)


def _sessions(source: str, all_turns: Sequence[Any]) -> list[TokenSession]:
    return [
        TokenSession(
            f"{source}-{i}",
            tuple(Turn(prompt, output) for prompt, output in turns if len(output)),
            source,
        )
        for i, turns in enumerate(all_turns)
        if any(len(output) for _, output in turns)
    ]
