"""The report as Rich tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from suffixspec_traces.report.model import (
    GroupRow,
    Interval,
    MethodReport,
    ReliabilityBin,
    ReplayReport,
)
from suffixspec_traces.report.visible import visible_text

_ROWS = 15


def print_report(report: ReplayReport, console: Console) -> None:
    """Print the report's tables."""
    console.print(report_tables(report))


def report_tables(report: ReplayReport) -> RenderableType:
    """Everything the terminal shows of a report."""
    parts: list[RenderableType] = [_head(report), _summary(report)]
    if len(report.methods[0].by_workload) > 1:
        parts.append(_groups(report, "By workload", "workload", lambda m: m.by_workload))
    parts += [
        _sources(report),
        _positions(report),
        _groups(report, "By match length", "match", lambda m: m.by_match_length, ordered=True),
        _groups(report, "By turn", "turn", lambda m: m.by_turn, ordered=True),
        _groups(report, "By tool the turn calls", "tool", lambda m: m.by_tool),
        *_calibrations(report),
        _speedups(report),
        Text(f"Cost model {report.cost_model.name}: {report.cost_model.provenance}", style="dim"),
    ]
    return Group(*parts)


def _head(report: ReplayReport) -> Text:
    run = report.run
    text = Text()
    if report.partial:
        text.append("Partial: stopped before the end.\n", style="bold yellow")
    if run.skipped:
        text.append(f"{len(run.skipped)} unreadable lines were skipped.\n", style="yellow")
    text.append(
        f"{run.sessions:,} sessions, {run.turns:,} generated turns, {run.output_tokens:,} output "
        f"tokens; {run.order} order, {run.concurrency} in flight\n"
    )
    return text


def _summary(report: ReplayReport) -> Table:
    n = report.run.concurrency
    table = _table("Summary")
    table.add_column("", style="bold")
    for method in report.methods:
        table.add_column(_plain(method.label), justify="right")
    rows: list[tuple[str, Callable[[MethodReport], str]]] = [
        ("tokens per step", lambda m: _with_interval(m.tokens_per_step)),
        (f"predicted speed-up ({n} at a time)", lambda m: _with_interval(m.speedup)),
        ("acceptance rate", lambda m: _percent(m.totals.acceptance_rate)),
        ("drafted per step", lambda m: _decimal(m.totals.drafted_per_step)),
        ("steps", lambda m: f"{m.totals.steps:,}"),
        ("drafted", lambda m: f"{m.totals.drafted:,}"),
        ("accepted", lambda m: f"{m.totals.accepted:,}"),
        ("wasted", lambda m: f"{m.totals.wasted:,}"),
        (
            "vLLM's mean acceptance length",
            lambda m: _decimal(m.totals.vllm_mean_acceptance_length),
        ),
        ("median session, tokens per step", _median),
        ("proposing, p50 / p99", _propose),
        ("proposer, all calls, per token", _per_token),
        ("Brier score of the probabilities", lambda m: _decimal(m.calibration.brier_score, 3)),
        (
            "expected calibration error",
            lambda m: _decimal(m.calibration.expected_calibration_error, 3),
        ),
        ("replayed tokens per second", lambda m: _count(m.timing.output_tokens_per_s)),
    ]
    for name, figure in rows:
        table.add_row(name, *(figure(m) for m in report.methods))
    return table


def _groups(
    report: ReplayReport,
    title: str,
    key: str,
    rows: Callable[[MethodReport], list[GroupRow]],
    *,
    ordered: bool = False,
) -> Table:
    """Tokens per step and acceptance of each method, side by side.

    ``ordered``: the groups are ranges of numbers, and methods may lack some.
    """
    table = _table(title)
    table.add_column(key, overflow="fold")
    table.add_column("output tokens", justify="right")
    for method in report.methods:
        table.add_column(f"{_plain(method.label)}\ntokens/step", justify="right")
        table.add_column("\naccepted", justify="right")
    found: dict[str, list[GroupRow | None]] = {}
    for i, method in enumerate(report.methods):
        for row in rows(method):
            found.setdefault(row.group, [None] * len(report.methods))[i] = row
    if ordered:
        found = dict(sorted(found.items(), key=lambda item: _first_number(item[0])))
    for group, cells in list(found.items())[:_ROWS]:
        tokens = " / ".join(dict.fromkeys(f"{c.counts.output_tokens:,}" for c in cells if c))
        table.add_row(_plain(group), tokens, *_pairs(cells))
    if len(found) > _ROWS:
        table.caption = f"the {_ROWS} largest of {len(found)}; --json has all"
    return table


def _first_number(label: str) -> int:
    return int(label.rstrip("+").split("–")[0])


def _pairs(cells: Iterable[GroupRow | None]) -> list[str]:
    figures = []
    for cell in cells:
        figures.append("–" if cell is None else _decimal(cell.counts.tokens_per_step))
        figures.append("–" if cell is None else _percent(cell.counts.acceptance_rate))
    return figures


def _sources(report: ReplayReport) -> Table:
    table = _table("By source of the draft token")
    for name in ("method", "source"):
        table.add_column(name)
    for name in ("drafted", "accepted", "wasted", "acceptance", "of the output"):
        table.add_column(name, justify="right")
    for method in report.methods:
        for row in method.by_source:
            table.add_row(
                _plain(method.label),
                row.source,
                f"{row.drafted:,}",
                f"{row.accepted:,}",
                f"{row.wasted:,}",
                _percent(row.acceptance_rate),
                _percent(row.output_share),
            )
    return table


def _positions(report: ReplayReport) -> Table:
    table = _table("Acceptance by draft position, given that all before it were accepted")
    table.add_column("position", justify="right")
    for method in report.methods:
        table.add_column(_plain(method.label), justify="right")
    depth = max((len(m.by_position) for m in report.methods), default=0)
    shown = [d for d in (*range(1, 9), 12, 16, 24, 32, 48, 64) if d <= depth]
    for d in shown:
        cells = []
        for method in report.methods:
            row = method.by_position[d - 1] if d <= len(method.by_position) else None
            cells.append(
                "–" if row is None else f"{_percent(row.conditional_acceptance)} of {row.reached:,}"
            )
        table.add_row(str(d), *cells)
    return table


def _calibrations(report: ReplayReport) -> list[Table]:
    """Before and after learning, on the same draft tokens; nothing where nobody drafted."""
    drafting = [m for m in report.methods if m.calibration_before is not None]
    if not drafting:
        return []
    table = _table("Do probabilities tell the truth? Before learning, and after")
    for name in ("method", "before is"):
        table.add_column(name)
    for name in ("draft tokens", "Brier score", "calibration error"):
        table.add_column(name, justify="right")
    for method in drafting:
        found = method.calibration_before
        assert found is not None
        pair = found.before, found.after
        table.add_row(
            _plain(method.label),
            found.basis,
            f"{found.draft_tokens:,}",
            " → ".join(_decimal(c.brier_score, 3) for c in pair),
            " → ".join(_decimal(c.expected_calibration_error, 3) for c in pair),
        )
    return [table, *(_reliability(m) for m in drafting)]


def _reliability(method: MethodReport) -> Table:
    """The curve as bars: what was said, what came true."""
    found = method.calibration_before
    assert found is not None
    table = _table(f"Reliability of {_plain(method.label)}: accepted, by the probability given")
    table.add_column("probability", justify="right")
    for name in ("before", "after"):
        table.add_column(name)
        table.add_column("tokens", justify="right")
    for before, after in zip(found.before.bins, found.after.bins, strict=True):
        if before.drafted or after.drafted:
            cells = [cell for row in (before, after) for cell in (_bar(row), f"{row.drafted:,}")]
            table.add_row(f"{before.low:.1f}–{before.high:.1f}", *cells)
    return table


def _bar(row: ReliabilityBin) -> str:
    if row.acceptance_rate is None:
        return "–"
    return f"{'█' * round(10 * row.acceptance_rate):<10} {row.acceptance_rate:.2f}"


def _speedups(report: ReplayReport) -> Table:
    table = _table("Predicted speed-up by concurrency")
    table.add_column("requests at a time", justify="right")
    for method in report.methods:
        table.add_column(_plain(method.label), justify="right")
    for row in report.methods[0].predicted:
        cells = []
        for method in report.methods:
            found = method.predicted_at(row.concurrency)
            mark = " *" if found is not None and found.extrapolated else ""
            cells.append("–" if found is None else f"{found.speedup:.2f} ×{mark}")
        table.add_row(str(row.concurrency), *cells)
    if any(r.extrapolated for r in report.methods[0].predicted):
        table.caption = "* some steps are larger than what the cost model was measured for"
    return table


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", caption_justify="left")


def _plain(text: str) -> str:
    """Text of unknown origin: no control characters, and no Rich markup."""
    return visible_text(text).replace("\n", "↵").replace("\t", " ").replace("[", "\\[")


def _median(method: MethodReport) -> str:
    spread = method.session_tokens_per_step
    return "–" if spread is None else f"{spread.median:.2f} ({spread.p10:.2f} to {spread.p90:.2f})"


def _propose(method: MethodReport) -> str:
    p50, p99 = method.timing.propose_ns_p50, method.timing.propose_ns_p99
    return "–" if p50 is None or p99 is None else f"{p50 / 1e3:.1f} / {p99 / 1e3:.1f} µs"


def _per_token(method: MethodReport) -> str:
    tokens = method.totals.output_tokens
    return f"{method.timing.total_ns / tokens / 1e3:.2f} µs" if tokens else "–"


def _with_interval(interval: Interval) -> str:
    if interval.value is None:
        return "–"
    if interval.low is None or interval.high is None:
        return f"{interval.value:.2f}"
    return f"{interval.value:.2f} ({interval.low:.2f} to {interval.high:.2f})"


def _decimal(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"
