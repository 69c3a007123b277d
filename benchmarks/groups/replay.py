"""Group ``replay``: what drafts are worth, at equal drafting, and how fast a replay runs.

Every source is replayed in recorded order, from empty trees, up to its first 40,000 generated
tokens; neither side knows where an output ends. The frontier of all settings is drawn to
``out/frontier.html`` and, where a Chromium is found, to ``frontier.png`` in ``--figures``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import product
from statistics import fmean

from benchmarks import ours, peer
from benchmarks.data import Turns
from benchmarks.figures import write_figure
from benchmarks.frontier import Count, advantages, at_drafted, draw
from benchmarks.harness import ROOT, Context, Row, group, in_turn, versus
from benchmarks.ours import UNBOUNDED, OurSettings
from benchmarks.peer import PeerSettings
from suffixspec_index.speculative_config import DraftShape
from suffixspec_traces.cost import DEFAULT_COST_MODEL, load_cost_model

GENERATED = 40_000
DEFAULT = PeerSettings()
"""The peer's own defaults, with vLLM's habit of at most 32 tokens."""


def peer_settings(*, quick: bool = False) -> list[PeerSettings]:
    """What can lie on the peer's frontier; found by a finer search over 159 settings.

    A wider one (factors 8 and unbounded, 60 settings) moved the frontier by less than 2 % at any
    point and by at most 0.05 % on a source's mean, and left its best under the cost model the same.
    """
    if quick:
        return [DEFAULT, PeerSettings(use_tree_spec=True)]
    grid = [
        (factor, offset, prob, cap)
        for factor, offset, prob, cap in product(
            (1.0, 2.0, 4.0), (0.0, 1.0), (0.1, 0.3), (8, 16, 32)
        )
    ]
    grid += list(product((0.5,), (0.0,), (0.1, 0.5), (8, 32)))
    grid += list(product((1.0, 4.0), (0.0,), (0.5, 0.7), (8,)))
    grid += list(product((2.0, 4.0), (0.0,), (0.5,), (32,)))  # its best under the cost model
    return [PeerSettings(64, *values, tree) for tree in (False, True) for values in grid]


def our_settings(*, quick: bool = False) -> list[OurSettings]:
    """Settings of ours that span the same range of drafting.

    Our probabilities are learned from what was accepted, so the least probability alone says how
    long a draft is worth its tokens; a bound by match length only takes away (a finer search over
    42 settings with factors 1, 2 and 4 found none of them on the frontier).
    """
    if quick:
        probs: tuple[float, ...] = (0.4, 0.1)
    else:
        probs = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02)
    shapes: tuple[DraftShape, ...] = ("path", "tree")
    fixed = [OurSettings(64, UNBOUNDED, 0.0, p, 32, shape) for shape in shapes for p in probs]
    costs = tuple(_step_ms(1 + drafted) for drafted in range(33))
    dynamic = [OurSettings(64, UNBOUNDED, 0.0, 0.1, 32, shape, costs) for shape in shapes]
    return fixed + dynamic


@group("replay", "tokens per step at equal drafting, predicted time, and replay speed")
def run(context: Context) -> list[Row]:
    """Every row of the group."""
    ours.compile_kernels()
    generated = 2_000 if context.quick else GENERATED
    sessions = {name: context.corpus.first(name, generated) for name in context.corpus.sources}
    mine = {name: _ours(context, name, turns) for name, turns in sessions.items()}
    theirs = {name: _peer(context, name, turns) for name, turns in sessions.items()}
    figure = draw(_panels(mine, theirs))
    # The page holds all of plotly.js (5 MB), so it goes where nothing is committed from.
    page, image = ROOT / "out" / "frontier.html", context.figures / "frontier.png"
    write_figure(figure, page, image, context.say)
    return [
        *_frontier_rows(mine, theirs),
        *_time_rows(mine, theirs),
        *_speed_rows(context, sessions),
    ]


def _ours(context: Context, name: str, sessions: Sequence[Turns]) -> list[Count]:
    context.say(f"frontier, ours, {name}")
    return [ours.replay(sessions, s)[0] for s in our_settings(quick=context.quick)]


def _peer(context: Context, name: str, sessions: Sequence[Turns]) -> list[Count]:
    if not peer.available():
        return []
    context.say(f"frontier, peer, {name}")
    return peer.frontier(sessions, peer_settings(quick=context.quick))


def _of(counts: Sequence[Count], *, tree: bool) -> list[Count]:
    return [c for c in counts if c.tree is tree]


def _panels(
    mine: dict[str, list[Count]], theirs: dict[str, list[Count]]
) -> dict[str, dict[str, Sequence[Count]]]:
    panels: dict[str, dict[str, Sequence[Count]]] = {}
    for name in mine:
        lines: dict[str, Sequence[Count]] = {
            "suffixspec, tree": _of(mine[name], tree=True),
            "suffixspec, path": _of(mine[name], tree=False),
            "arctic-inference, tree": _of(theirs[name], tree=True),
            "arctic-inference, path": _of(theirs[name], tree=False),
        }
        panels[name] = {label: counts for label, counts in lines.items() if counts}
    return panels


def _frontier_rows(mine: dict[str, list[Count]], theirs: dict[str, list[Count]]) -> list[Row]:
    """At the peer's default, source by source; then the worst and the mean over its frontiers."""
    rows = []
    for name in mine:
        default = next((c for c in theirs[name] if c.label == DEFAULT.label), None)
        drafted = (
            default.drafted_per_step if default else fmean(c.drafted_per_step for c in mine[name])
        )
        rows += [
            versus(
                f"tokens per step at {drafted:.2f} drafted, {shape}, {name}",
                at_drafted(_of(mine[name], tree=shape == "tree"), drafted),
                default.tokens_per_step if default else None,
                "tokens",
            )
            for shape in ("path", "tree")
        ]
    if not all(theirs.values()):
        return rows
    path, tree, trees = (
        {n: advantages(_of(mine[n], tree=a), _of(theirs[n], tree=b)) for n in mine}
        for a, b in ((False, False), (True, False), (True, True))
    )
    worst = min(min(values) for values in path.values())
    everywhere = "over the peer's frontier"
    return [
        *rows,
        _ratio(f"path against path, worst point {everywhere}", worst, 1.0),
        _ratio(f"path against path, mean {everywhere}", _mean(path)),
        _ratio(f"tree against path, mean {everywhere}", _mean(tree), 1.05),
        _ratio(f"tree against tree, mean {everywhere}", _mean(trees)),
    ]


def _mean(advantages_by_source: dict[str, list[float]]) -> float:
    """Sources weigh alike, however many of the peer's settings lie on their frontier."""
    return fmean(fmean(values) for values in advantages_by_source.values())


def _ratio(name: str, value: float, times: float | None = None) -> Row:
    return versus(f"tokens per step at equal drafting, {name}", value, 1.0, "ratio", times=times)


def _time_rows(mine: dict[str, list[Count]], theirs: dict[str, list[Count]]) -> list[Row]:
    """The one setting that is best over all sources, for each side."""
    best_mine, best_theirs = _best(mine, _step_ms), _best(theirs, _step_ms)
    row = versus(
        f"predicted time per token, cost model {DEFAULT_COST_MODEL} "
        f"(ours: {best_mine and best_mine[0]}; peer: {best_theirs and best_theirs[0]})",
        best_mine and best_mine[1],
        best_theirs and best_theirs[1],
        "ms",
        times=1.10,
        lower_is_better=True,
    )
    return [row]


@cache
def _step_ms(tokens: int) -> float:
    """Milliseconds of a step that holds so many tokens of one request with 1,000 behind it."""
    return float(load_cost_model(DEFAULT_COST_MODEL).step_ms(tokens, 1000.0))


def _best(
    counts: dict[str, list[Count]], step_ms: Callable[[int], float]
) -> tuple[str, float] | None:
    """Label and mean milliseconds per token of the best setting, sources weighing alike."""
    totals: dict[str, list[float]] = {}
    for of_source in counts.values():
        for count in of_source:
            totals.setdefault(count.label, []).append(count.milliseconds_per_token(step_ms))
    means = {label: fmean(values) for label, values in totals.items()}
    if not means:
        return None
    label = min(means, key=means.__getitem__)
    return label, means[label]


def _speed_rows(context: Context, sessions: dict[str, list[Turns]]) -> list[Row]:
    """Output tokens per second of a whole replay, rivals in turn, all sources in sequence."""
    rounds = 1 if context.quick else min(context.repeats, 3)
    plans = {name: ours.plan(turns) for name, turns in sessions.items()}
    rows = []
    speeds: list[tuple[float, float | None]] = []
    for name, turns in sessions.items():
        context.say(f"replay speed, {name}")
        rivals: dict[str, Callable[[], float]] = {
            "ours": partial(ours.replay_speed, plans[name], OurSettings())
        }
        if peer.available():
            rivals["peer"] = partial(peer.simulator_speed, turns, DEFAULT)
        found = in_turn(rivals, repeats=rounds)
        theirs = found["peer"].median if "peer" in found else None
        speeds.append((found["ours"].median, theirs))
        rows.append(versus(f"replay speed, {name}", *speeds[-1], "tokens/s"))
    # Sources hold equally many tokens, so the whole takes the harmonic mean of their speeds.
    mine = _harmonic([s for s, _ in speeds])
    others = [t for _, t in speeds if t is not None]
    rows.append(
        versus(
            "replay speed, all sources against the peer's simulator",
            mine,
            _harmonic(others) if others else None,
            "tokens/s",
            times=10,
        )
    )
    return rows


def _harmonic(values: Sequence[float]) -> float:
    return len(values) / sum(1 / v for v in values)
