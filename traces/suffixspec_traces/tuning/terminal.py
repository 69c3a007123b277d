"""The tuning report as Rich tables."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from suffixspec_traces.report.model import Interval
from suffixspec_traces.report.visible import visible_text
from suffixspec_traces.tuning.model import ConcurrencyReport, JudgedRow, Paste, TuningReport

_STYLES = {"pays": "bold green", "does not pay": "bold red", "undecided": "bold yellow"}
_SHORT = {
    "suffix_decoding_": "",
    "num_speculative_tokens": "tokens",
    "prompt_lookup_": "lookup_",
}


def print_tuning(report: TuningReport, console: Console) -> None:
    """Print the report's tables, and the configurations to paste: their lines are never broken."""
    console.print(tuning_tables(report))
    for one in report.concurrencies:
        console.print(Text(f"\nTo paste, for {requests(one.concurrency)}", style="bold"))
        for paste in one.pastes:
            console.print(_paste_title(one, paste))
            console.print(paste.text, soft_wrap=True, markup=False, highlight=False)
    provenance = f"Cost model {report.cost_model.name}: {report.cost_model.provenance}"
    console.print(Text(provenance, style="dim"))


def tuning_tables(report: TuningReport) -> RenderableType:
    """The tables of a report."""
    parts: list[RenderableType] = [_head(report)]
    for one in report.concurrencies:
        parts += [_judged(one), _verdict(one)]
        if one.sensitivity:
            parts += [_sensitivity(one), Text()]
    return Group(*parts)


def requests(concurrency: int) -> str:
    """``1 request at a time``, ``8 requests at a time``."""
    return f"{concurrency} request{'' if concurrency == 1 else 's'} at a time"


def ending(report: TuningReport) -> str:
    """What to say of a search that did not come to its end; else nothing."""
    found = sum(len(c.trials) for c in report.concurrencies)
    if report.run.ended == "interrupted":
        return f"Partial: interrupted; this is what {found} trials had found."
    if report.run.ended == "timeout":
        return f"The time was over after {found} trials; more may find better settings."
    return ""


def setting(config: Mapping[str, object]) -> str:
    """A configuration in one line, keys shortened."""
    words = [str(config.get("method", ""))]
    for key, value in config.items():
        if key in ("method", "suffix_decoding_max_cached_requests", "allow_beyond_depth"):
            continue
        for long, short in _SHORT.items():
            key = key.replace(long, short)
        words.append(f"{key}={shown(value)}")
    return " ".join(words)


def shown(value: object) -> str:
    """A threshold's value."""
    if value is None:
        return "no bound"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _head(report: TuningReport) -> Text:
    run = report.run
    text = Text()
    if said := ending(report):
        text.append(said + "\n", style="bold yellow")
    if run.skipped:
        text.append(f"{len(run.skipped)} unreadable lines were skipped.\n", style="yellow")
    sizes = [f"{p.name} {p.sessions:,} sessions ({p.output_tokens:,} tokens)" for p in run.parts]
    text.append("; ".join(sizes) + "\n")
    if run.found_before:
        text.append(f"{run.found_before:,} trials were in the storage already.\n", style="dim")
    return text


def _judged(one: ConcurrencyReport) -> Table:
    table = _table(f"{requests(one.concurrency)}: on the held-out sessions")
    table.add_column("", style="bold", overflow="fold", min_width=11)
    for name in ("speed-up", "ms per\ntoken", "tokens\n/step", "accepted", "wasted\n/token"):
        table.add_column(name, justify="right")
    table.add_column("tuned\ngains", justify="right")
    for row in one.rows:
        mark = " *" if row.extrapolated else ""
        table.add_row(
            row.role,
            interval(row.speedup) + mark,
            f"{row.ms_per_token:.3f}",
            f"{row.tokens_per_step:.2f}",
            "–" if row.acceptance_rate is None else f"{100 * row.acceptance_rate:.1f} %",
            f"{row.wasted_per_token:.2f}",
            "–" if row.role == "tuned" else interval(row.gain_of_tuned),
        )
    if any(row.extrapolated for row in one.rows):
        table.caption = "* some steps are larger than what the cost model was measured for"
    return table


def _verdict(one: ConcurrencyReport) -> Text:
    text = Text(one.sentence, style=_STYLES[one.verdict])
    row = one.row("tuned")
    if row is not None:
        text.append(f"\nTuned: {setting(row.config)}\n", style="not bold default")
    return text


def _sensitivity(one: ConcurrencyReport) -> Table:
    table = _table(
        "One threshold changed, the others kept: predicted ms per token on the tuning sessions"
    )
    table.add_column("threshold", style="bold")
    table.add_column("spread", justify="right")
    table.add_column("value: ms per token  (◂ kept for the others)")
    for row in one.sensitivity:
        cells = Text()
        for point in row.points:
            kept = point.value == row.reference and type(point.value) is type(row.reference)
            words = f"{shown(point.value)}: {point.ms_per_token:.3f}"
            cells.append(words + (" ◂" if kept else ""), style="bold" if kept else "")
            cells.append("   ")
        table.add_row(row.threshold, f"{100 * row.spread:.1f} %", cells)
    return table


def _paste_title(one: ConcurrencyReport, paste: Paste) -> Text:
    row: JudgedRow | None = one.row(paste.role)
    figure = f", speed-up {interval(row.speedup)}" if row is not None else ""
    return Text(f"{paste.title} ({paste.where}; {paste.role}{figure})", style="dim")


def interval(value: Interval) -> str:
    """``1.23 (1.10 to 1.35)``."""
    if value.value is None:
        return "–"
    if value.low is None or value.high is None:
        return f"{value.value:.2f}"
    return f"{value.value:.2f} ({value.low:.2f} to {value.high:.2f})"


def _table(title: str) -> Table:
    return Table(
        title=visible_text(title), title_justify="left", title_style="bold", caption_justify="left"
    )
