"""Group ``engine``: what the verification engine gains on a real model, on this machine's CPU.

SmolLM2-135M-Instruct in float32 and in bfloat16 (``--dtype``), one torch thread, greedy; the
prompts are those of ``traces/samples``. Times are wall times: torch computes outside Python's
thread, so processor time of one thread would leave work out. Rivals take turns request by request,
so that a slow minute of the machine hits all alike. The rows without speculation are medians of
rounds; the others sum up a dozen (against prompt lookup: three) different requests, each made once
by every rival, which keeps the group to a few minutes per dtype.

"Whole requests" counts from the call to the last token, prompts included; "after the first token"
leaves prompts out. The warm index has served the samples' other sessions: none of the measured
ones, but an agent's tool calls recur word for word (5 of the 12 recorded outputs measured do).
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.data import Tokens
from benchmarks.engine_setup import can_run, threads_set
from benchmarks.engine_setup import recorded as recorded_sessions
from benchmarks.harness import Context, Row, below, group, versus

if TYPE_CHECKING:
    from benchmarks.transformers_rival import TransformersRival
    from suffixspec_engine import Engine, TargetModel
    from suffixspec_index.proposers.base import Proposer
    from suffixspec_traces.model import TokenSession

SUFFIX: dict[str, Any] = {"method": "suffix"}
TURNS, MAX_TOKENS = 4, 80
LOOKUPS = (5, 10, 20)
"""Settings of transformers' prompt lookup: the best is the rival (3, 15 and 30 were no better)."""
REQUESTS, CONCURRENCY = 16, 8


@dataclass(slots=True)
class Served:
    """What one rival did, request by request."""

    outputs: list[Tokens] = field(default_factory=list)
    steps: list[list[tuple[int, int]]] = field(default_factory=list)  # (gained, of them drafted)
    seconds: float = 0.0
    first_token_seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """Output tokens of all requests."""
        return sum(map(len, self.outputs))

    @property
    def speed(self) -> float:
        """Output tokens per second, whole requests."""
        return self.tokens / self.seconds

    @property
    def decoding_speed(self) -> float:
        """Output tokens per second after each request's first step."""
        first = sum(steps[0][0] for steps in self.steps)
        return (self.tokens - first) / (self.seconds - self.first_token_seconds)

    def serve(self, engine: Engine, prompt: Tokens, session: str | None, length: int) -> None:
        """One greedy request, alone."""
        began = time.perf_counter()
        first, steps, tokens = 0.0, [], list[int]()
        for event in engine.stream(prompt, _greedy(length), session_id=session):
            if event.token_ids:
                first = first or time.perf_counter() - began
                drafted = sum(source != 0 for source in event.sources)
                steps.append((len(event.token_ids), drafted))
                tokens += event.token_ids
        self.seconds += time.perf_counter() - began
        self.first_token_seconds += first
        self.steps.append(steps)
        self.outputs.append(np.array(tokens, np.int32))


@group("engine", "exact generation on a real model: speed, predicted and real acceptance")
def run(context: Context) -> list[Row]:
    """Every row of the group; none, with the reason, where the engine's packages are missing."""
    if not can_run("engine", context.say):
        return []
    sessions = recorded_sessions()
    context.loaded.append(_description(sessions))
    rows: list[Row] = []
    with threads_set(1):
        for dtype in context.dtypes:
            rows += _rows(context, dtype, sessions)
    return rows


def _rows(
    context: Context, dtype: str, sessions: Mapping[str, Sequence[TokenSession]]
) -> list[Row]:
    """The rows of one dtype."""
    from benchmarks.transformers_rival import TransformersRival
    from suffixspec_engine import load_model

    context.say(f"group engine, {dtype}")
    model = load_model("smollm2", dtype=dtype, device="cpu")
    rival = TransformersRival(model.module.config._name_or_path, dtype)
    rounds = 1 if context.quick else min(context.repeats, 2)
    _warm_up(model, rival)
    rows = [
        *_session_rows(context, model, sessions),
        *_lookup_rows(context, model, rival, sessions),
        *_plain_rows(context, model, rival, sessions, rounds),
        _outside_row(context, model, sessions),
    ]
    return [_for_dtype(row, dtype) for row in rows]


def _for_dtype(row: Row, dtype: str) -> Row:
    """Rows name the dtype. In bfloat16 a pass over more tokens rounds differently, so a near tie
    may fall either way: differing outputs are shown there, not judged."""
    row = dataclasses.replace(row, name=f"{dtype}, {row.name}")
    if dtype != "float32" and row.unit == "outputs":
        row = dataclasses.replace(row, goal="", met=None)
    return row


def _description(sessions: Mapping[str, Sequence[TokenSession]]) -> str:
    count = sum(map(len, sessions.values()))
    return f"group engine: traces/samples, {count} sessions, {', '.join(sessions)}"


def _greedy(length: int, *, exactly: bool = False) -> Any:
    from suffixspec_engine import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=length, min_tokens=length if exactly else 0)


def _suffix_proposer(model: TargetModel, taught: Sequence[TokenSession] = ()) -> Proposer:
    """A suffix proposer at its defaults that has served the sessions ``taught`` before."""
    from suffixspec_index.proposers import create_proposer
    from suffixspec_index.speculative_config import SpeculativeConfig
    from suffixspec_traces.replay import ReplayPlan, replay

    config = SpeculativeConfig.from_dict(SUFFIX)
    proposer: Proposer = create_proposer(config, vocab_size=model.vocab_size)
    if taught:
        replay(ReplayPlan.build(taught, concurrency=1), proposer)
    return proposer


def _engine(model: TargetModel, proposer: Proposer | None = None, running: int = 1) -> Engine:
    """An engine with nothing cached."""
    from suffixspec_engine import Engine, EngineConfig

    return Engine(model, proposer=proposer, config=EngineConfig(max_running=running))


def _warm_up(model: TargetModel, rival: TransformersRival) -> None:
    """Compile kernels and touch weights, before anything is timed."""
    prompt = np.tile(np.arange(100, 120, dtype=np.int32), 3)
    with _engine(model, _suffix_proposer(model)) as engine:
        Served().serve(engine, prompt, None, 8)
    for lookup in (None, 3):
        rival.generate(prompt, 8, prompt_lookup=lookup)


# -- agent sessions --------------------------------------------------------------------------------


def _session_rows(
    context: Context, model: TargetModel, sessions: Mapping[str, Sequence[TokenSession]]
) -> list[Row]:
    """The first session of each source, turn after turn, by every rival in turn."""
    asked = {name: recorded[0] for name, recorded in sessions.items()}
    others = [s for recorded in sessions.values() for s in recorded[1:]]
    proposers = {
        "none": None,
        "cold": _suffix_proposer(model),
        "warm": _suffix_proposer(model, others),
    }
    served = {name: Served() for name in proposers}
    engines = {name: _engine(model, proposer) for name, proposer in proposers.items()}
    turns = 2 if context.quick else TURNS
    for source, session in asked.items():
        context.say(f"agent sessions, {source}")
        for turn in session.turns[:turns]:
            for name, engine in engines.items():
                served[name].serve(engine, turn.prompt, source, MAX_TOKENS)
        for engine in engines.values():
            engine.end_session(source)
    for engine in engines.values():
        engine.close()
    return [*_speed_rows(served), _prediction_row(model, asked, served["cold"])]


def _speed_rows(served: Mapping[str, Served]) -> list[Row]:
    none, cold, warm = served["none"], served["cold"], served["warm"]
    sessions = "agent sessions, concurrency 1, suffix against no speculation"
    taught = "warm index (the samples' other sessions)"
    different = sum(
        not np.array_equal(plain, output)
        for with_drafts in (cold, warm)
        for plain, output in zip(none.outputs, with_drafts.outputs, strict=True)
    )
    return [
        versus(f"{sessions}, cold index, whole requests", cold.speed, none.speed,
               "tokens/s", times=1.4),
        versus(f"{sessions}, {taught}, whole requests", warm.speed, none.speed,
               "tokens/s", times=1.8),
        versus(f"{sessions}, cold index, after the first token", cold.decoding_speed,
               none.decoding_speed, "tokens/s"),
        versus(f"{sessions}, {taught}, after the first token", warm.decoding_speed,
               none.decoding_speed, "tokens/s"),
        below("outputs with suffix that differ from those without", different, None,
              "outputs", limit=1),
    ]  # fmt: skip


def _prediction_row(model: TargetModel, asked: Mapping[str, TokenSession], engine: Served) -> Row:
    """Replay's view of the text that the engine produced, against what the engine accepted."""
    from suffixspec_traces.model import TokenSession, Turn
    from suffixspec_traces.replay import ReplayPlan, Step, replay

    outputs = iter(engine.outputs)
    turns = len(engine.outputs) // len(asked)
    said = [
        TokenSession(source, tuple(Turn(t.prompt, next(outputs)) for t in session.turns[:turns]))
        for source, session in asked.items()
    ]
    plan = ReplayPlan.build(said, concurrency=1)
    log = replay(plan, _suffix_proposer(model), max_tokens=MAX_TOKENS).log
    predicted = list(
        zip(log.column(Step.GAINED).tolist(), log.column(Step.ACCEPTED).tolist(), strict=True)
    )
    real = [step for steps in engine.steps for step in steps]
    row = versus(
        "draft tokens accepted by the engine, against replay's prediction",
        sum(accepted for _, accepted in real),
        sum(accepted for _, accepted in predicted),
        "tokens",
    )
    return dataclasses.replace(row, goal="equal, step for step", met=real == predicted)


# -- against transformers --------------------------------------------------------------------------


def _lookup_rows(
    context: Context,
    model: TargetModel,
    rival: TransformersRival,
    sessions: Mapping[str, Sequence[TokenSession]],
) -> list[Row]:
    """Each source's longest recorded turn among the first ones; nothing is cached on either
    side, and the index knows the prompt only."""
    seconds = dict.fromkeys(LOOKUPS, 0.0)
    tokens, different = 0, 0
    ours = Served()
    for source, recorded in sessions.items():
        context.say(f"against prompt lookup, {source}")
        turn = max(recorded[0].turns[:TURNS], key=lambda t: len(t.output))
        with _engine(model, _suffix_proposer(model)) as engine:
            ours.serve(engine, turn.prompt, None, MAX_TOKENS)
        for lookup in LOOKUPS:
            output, took = rival.generate(turn.prompt, MAX_TOKENS, prompt_lookup=lookup)
            seconds[lookup] += took
        tokens += len(output)
        different += not np.array_equal(output, ours.outputs[-1])
    best = min(seconds, key=seconds.__getitem__)
    return [
        versus(
            "single requests, suffix with a cold index, whole requests, against transformers' "
            f"generate with prompt_lookup_num_tokens={best} (best of {LOOKUPS})",
            ours.speed,
            tokens / seconds[best],
            "tokens/s",
            times=1.25,
        ),
        below("of these, outputs that differ from transformers'", different, None,
              "outputs", limit=1),
    ]  # fmt: skip


def _plain_rows(
    context: Context,
    model: TargetModel,
    rival: TransformersRival,
    sessions: Mapping[str, Sequence[TokenSession]],
    rounds: int,
) -> list[Row]:
    """Without speculation: one request, and many of mixed lengths."""
    context.say("without speculation, against transformers")
    prompt = sessions["coding"][0].turns[0].prompt

    def one() -> float:
        with _engine(model) as engine:
            return _seconds(lambda: engine.generate([prompt], _greedy(40, exactly=True)))

    first = _in_turn(one, lambda: rival.padded_seconds([prompt], [40], 1), rounds + 1)
    prompts, lengths = _mixed(sessions)

    def many() -> float:
        params = [_greedy(length, exactly=True) for length in lengths]
        with _engine(model, running=CONCURRENCY) as engine:
            return _seconds(lambda: engine.generate(prompts, params))

    batches = _in_turn(many, lambda: rival.padded_seconds(prompts, lengths, CONCURRENCY), rounds)
    total = sum(lengths)
    return [
        versus("one request without speculation, against transformers' generate",
               40 / first[0], 40 / first[1], "tokens/s", times=1.0),
        versus(f"{REQUESTS} requests of mixed lengths, {CONCURRENCY} at a time, without "
               f"speculation, against transformers' padded batches of {CONCURRENCY}",
               total / batches[0], total / batches[1], "tokens/s", times=1.3),
    ]  # fmt: skip


def _mixed(sessions: Mapping[str, Sequence[TokenSession]]) -> tuple[list[Tokens], list[int]]:
    """Prompts of 32 to 256 tokens and outputs of 8 to 32, shuffled apart.

    Each prompt is the end of a recorded one, so that no two begin alike: the engine would compute
    a common beginning once, and this row is about batching alone.
    """
    generator = np.random.default_rng(0)
    cuts = generator.permutation(np.linspace(32, 256, REQUESTS).astype(int)).tolist()
    lengths = generator.permutation(np.linspace(8, 32, REQUESTS).astype(int)).tolist()
    names = list(sessions)
    prompts = [
        sessions[names[i % len(names)]][1 + i].turns[1].prompt[-cut:] for i, cut in enumerate(cuts)
    ]
    return prompts, lengths


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _in_turn(
    ours: Callable[[], float], theirs: Callable[[], float], rounds: int
) -> tuple[float, float]:
    """Medians of A B A B ...; unlike ``harness.in_turn`` no round is thrown away: these take
    many seconds each, and everything is warm already."""
    values = [(ours(), theirs()) for _ in range(rounds)]
    return statistics.median(a for a, _ in values), statistics.median(b for _, b in values)


# -- where the time goes ---------------------------------------------------------------------------


def _outside_row(
    context: Context, model: TargetModel, sessions: Mapping[str, Sequence[TokenSession]]
) -> Row:
    """Eight sessions at once. Their prompts are computed before, so that the steps measured are
    those that verify drafts."""
    context.say("share of the time outside the model")
    names = list(sessions)
    asked = [sessions[names[i % len(names)]][1 + i] for i in range(CONCURRENCY)]
    prompts = [session.turns[1].prompt for session in asked]
    ids = [f"session {i}" for i in range(CONCURRENCY)]
    proposer = _suffix_proposer(model, [s for r in sessions.values() for s in r[10:]])
    with _engine(model, proposer, CONCURRENCY) as engine:
        engine.generate(prompts, _greedy(1), session_ids=ids)
        before = dataclasses.replace(engine.metrics.seconds)
        engine.generate(prompts, _greedy(48, exactly=True), session_ids=ids)
        after = engine.metrics.seconds
        in_model = after.prefill + after.verify - before.prefill - before.verify
        total = after.total - before.total
    name = f"share of step time outside the model, batch {CONCURRENCY}, suffix drafts"
    return below(name, 100 * (1 - in_model / total), None, "%", limit=10)
