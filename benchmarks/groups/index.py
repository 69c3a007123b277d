"""Group ``index``: how fast and how small the suffix index is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from benchmarks import ours, peer
from benchmarks.clock import clock
from benchmarks.data import Tokens, Turns
from benchmarks.harness import ROOT, Context, Row, Samples, below, group, in_turn, versus
from benchmarks.ours import OurSettings
from benchmarks.peer import PeerSettings
from benchmarks.steps import ROWS, StepTimes, Workload, our_steps, peer_steps, workload

DEPTHS = (64, 24)
HISTORY = 30_000
MICRO = 1e6


@group("index", "insertion, drafting, turns and memory of the suffix index; one thread")
def run(context: Context) -> list[Row]:
    """Every row of the group."""
    ours.compile_kernels()
    return [*_insert(context), *_steps(context), *_next_turn(context), *_memory(context)]


def _in_turn(
    context: Context, mine: Callable[[], float], theirs: Callable[[], float]
) -> tuple[float, float | None]:
    """Medians of ours and, where it is installed, of the peer."""
    rivals: dict[str, Callable[[], float]] = {"ours": mine}
    if peer.available():
        rivals["peer"] = theirs
    samples = in_turn(rivals, repeats=context.repeats)
    return samples["ours"].median, samples["peer"].median if "peer" in samples else None


def _insert(context: Context) -> list[Row]:
    outputs = context.corpus.outputs()
    if context.quick:
        outputs = outputs[:300]
    rows = []
    for depth, times in zip(DEPTHS, (5, 4), strict=True):
        context.say(f"insert, depth {depth}")
        mine, theirs = _in_turn(
            context,
            partial(_insert_speed, ours.insert_all, outputs, depth),
            partial(_insert_speed, peer.insert_all, outputs, depth),
        )
        rows.append(versus(f"insert, depth {depth}", mine, theirs, "tokens/s", times=times))
    return rows


def _insert_speed(
    insert_all: Callable[[Sequence[Tokens], int], tuple[object, float]],
    outputs: Sequence[Tokens],
    depth: int,
) -> float:
    return sum(map(len, outputs)) / insert_all(outputs, depth)[1]


def _steps(context: Context) -> list[Row]:
    per_source = 2_000 if context.quick else 40_000
    rows: list[Row] = []
    for matching, goals in ((True, (6, 4)), (False, (3, 3))):
        work = workload(context.corpus, matching=matching, per_source=per_source)
        kind = "matching" if matching else "hardly matching"
        for depth, times in zip(DEPTHS, goals, strict=True):
            context.say(f"propose + advance, {kind}, depth {depth}")
            rows += _steps_at(context, work, f"step, {kind}, depth {depth}", depth, times, matching)
    return rows


def _steps_at(
    context: Context, work: Workload, name: str, depth: int, times: float, matching: bool
) -> list[Row]:
    """The mean over a run and its 99th percentile; of both the median over the runs."""
    mine, alone, theirs = OurSettings(depth), OurSettings(depth), PeerSettings(depth)
    measured: dict[str, list[StepTimes]] = {"ours": [], "alone": [], "peer": []}

    def record(rival: str, times: StepTimes) -> float:
        measured[rival].append(times)
        return times.mean

    rivals: dict[str, Callable[[], float]] = {
        "ours": lambda: record("ours", our_steps(work, mine)),
        "alone": lambda: record("alone", our_steps(work, alone, batch=1)),
    }
    if peer.available():
        rivals["peer"] = lambda: record("peer", peer_steps(work, theirs))
    in_turn(rivals, repeats=context.repeats)

    def median(rival: str, of: Callable[[StepTimes], float]) -> float | None:
        kept = measured[rival][1:]  # the first round only warms up
        return Samples(tuple(MICRO * of(t) for t in kept)).median if kept else None

    means = {rival: median(rival, lambda t: t.mean) for rival in measured}
    tails = {rival: median(rival, lambda t: t.p99) for rival in measured}
    peer_proposing = median("peer", lambda t: t.propose)
    rows = [
        versus(name, means["ours"], means["peer"], "µs", times=times, lower_is_better=True),
        versus(  # the strictest reading: our whole step against the peer's proposal alone
            f"{name}, the peer's advance not counted",
            means["ours"],
            peer_proposing,
            "µs",
            lower_is_better=True,
        ),
        versus(
            f"{name}, a call per request",
            means["alone"],
            means["peer"],
            "µs",
            lower_is_better=True,
        ),
    ]
    if matching:
        rows.append(
            below(
                f"{name}, p99 over calls of {ROWS} requests",
                tails["ours"],
                tails["peer"],
                "µs",
                limit=20,
            )
        )
        rows.append(
            versus(
                f"{name}, p99, a call per request",
                tails["alone"],
                tails["peer"],
                "µs",
                lower_is_better=True,
            )
        )
    return rows


def _next_turn(context: Context) -> list[Row]:
    """From the end of one turn to the start of the next, in a session that is long already."""
    turns = _long_session(context)
    if turns is None:
        return []
    context.say("next turn of a long session")
    mine, theirs = _in_turn(context, lambda: _our_turns(turns), lambda: _peer_turns(turns))
    milli = 1000.0
    return [
        versus(
            f"next turn after {len(turns[0][0]):,} tokens of history, depth 64",
            mine * milli,
            None if theirs is None else theirs * milli,
            "ms",
            times=50,
            lower_is_better=True,
        )
    ]


def _long_session(context: Context) -> Turns | None:
    """Six turns of one session, the first as soon as its history exceeds ``HISTORY`` tokens.

    Of all sessions the one that then exceeds it by least.
    """
    found: list[Turns] = []
    for sessions in context.corpus.sources.values():
        for turns in sessions:
            late = [turn for turn in turns if len(turn[0]) >= HISTORY]
            if len(late) >= 6:
                found.append(late[:6])
    if not found:
        context.say(f"no session has {HISTORY:,} tokens of history: the row is left out")
        return None
    return min(found, key=lambda turns: len(turns[0][0]))


def _our_turns(turns: Turns) -> float:
    proposer = ours.new_proposer(OurSettings())
    request = proposer.begin("session", turns[0][0])
    proposer.advance(request, turns[0][1])
    seconds = []
    for prompt, output in turns[1:]:
        began = clock()
        proposer.finish(request)
        request = proposer.begin("session", prompt)
        seconds.append(clock() - began)
        proposer.advance(request, output)
    return float(np.median(seconds))


def _peer_turns(turns: Turns) -> float:
    cache = peer.new_cache(64)
    cache.start_request(0, turns[0][0])
    cache.add_active_response(0, turns[0][1])
    seconds = []
    for number, (prompt, output) in enumerate(turns[1:]):
        began = clock()
        cache.stop_request(number)
        cache.start_request(number + 1, prompt)
        seconds.append(clock() - began)
        cache.add_active_response(number + 1, output)
    return float(np.median(seconds))


def _memory(context: Context) -> list[Row]:
    rows = []
    for depth in DEPTHS:
        context.say(f"memory, depth {depth}")
        mine = _measure_memory("ours", depth)
        theirs = _measure_memory("peer", depth) if peer.available() else {}
        for key, name in (("estimate", "as each reports it"), ("resident", "resident memory")):
            rows.append(
                versus(
                    f"bytes per indexed token, {name}, depth {depth}",
                    mine[key],
                    theirs.get(key),
                    "bytes",
                    times=5,
                    lower_is_better=True,
                )
            )
    return rows


def _measure_memory(rival: str, depth: int) -> dict[str, float | None]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", rival, str(depth)],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    measured: dict[str, float | None] = json.loads(done.stdout)
    return measured
