"""Showing a benchmark's figures: a table for terminals, and JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from suffixspec.bench.results import METRICS, Equality, Summary


@dataclass(frozen=True, slots=True)
class BenchReport:
    """Everything that was measured.

    Attributes:
        head: where, with what and on what, JSON-ready.
        summaries: one per rival, in the order they were named.
        equalities: by label: whether a rival said what the first one said; empty where outputs
            need not be equal.
        metrics, percentiles: what is shown.
    """

    head: Mapping[str, Any]
    summaries: Sequence[Summary]
    equalities: Mapping[str, Equality]
    metrics: Sequence[str]
    percentiles: Sequence[float]

    def as_json(self) -> dict[str, Any]:
        """The head, and the runs under vLLM's result keys."""
        first = self.summaries[0]
        runs = []
        for summary in self.summaries:
            run = summary.as_json(self.metrics, self.percentiles)
            run["speedup"] = _ratio(summary.output_throughput, first.output_throughput)
            equality = self.equalities.get(summary.label)
            run["equality"] = equality.as_json() if equality is not None else None
            runs.append(run)
        return {**self.head, "runs": runs}

    def run_json(self, index: int) -> dict[str, Any]:
        """One run with the head, flat: what vLLM's ``--save-result`` writes."""
        document = self.as_json()
        return {**self.head, **document["runs"][index]}


def print_report(console: Console, report: BenchReport) -> None:
    """A column per rival."""
    table = Table(title=_title(report.head), title_justify="left")
    table.add_column("")
    for summary in report.summaries:
        label = summary.label if summary.complete else f"{summary.label} (interrupted)"
        table.add_column(label, justify="right")
    for name, figure in _rows(report):
        table.add_row(name, *[figure(summary) for summary in report.summaries])
    console.print(table)
    for label, equality in report.equalities.items():
        console.print(_equality_line(label, equality))
    for summary in report.summaries:
        for error in summary.errors[:3]:
            console.print(Text(f"{summary.label}: a request failed: {error}", style="red"))


def _title(head: Mapping[str, Any]) -> str:
    limit = head.get("max_concurrency")
    rate = head.get("request_rate")
    number = head.get("num_prompts")
    return (
        f"{number} {'request' if number == 1 else 'requests'}, {head.get('dataset')}, "
        f"{'no limit of concurrency' if limit is None else f'concurrency {limit}'}"
        + ("" if rate in (None, "inf") else f", {rate:g} a second")
    )


def _rows(report: BenchReport) -> list[tuple[str, Callable[[Summary], str]]]:
    first = report.summaries[0]
    rows: list[tuple[str, Callable[[Summary], str]]] = [
        ("requests completed", lambda s: f"{s.completed:,}"),
        ("output tokens/s", lambda s: _figure(s.output_throughput)),
        ("requests/s", lambda s: _figure(s.request_throughput)),
    ]
    if len(report.summaries) > 1:
        speed = first.output_throughput
        rows.insert(2, ("  against the first", lambda s: _times(s.output_throughput, speed)))
    if any(s.failed for s in report.summaries):
        rows.insert(1, ("requests failed", lambda s: f"{s.failed:,}"))
    if first.goodput is not None:
        rows.append(("good requests/s", lambda s: _figure(s.goodput)))
    for metric in report.metrics:
        rows.append((f"{METRICS[metric]}, median ms", _percentile(metric, 50)))
        rows += [
            (f"  p{percent:g}", _percentile(metric, percent)) for percent in report.percentiles
        ]
    rows += [
        ("prompt tokens cached", lambda s: _share(s.cached_tokens, s.input_tokens)),
        ("tokens per step", lambda s: _speculation(s, "tokens_per_step", ".2f")),
        ("accepted per step with a draft", lambda s: _speculation(s, "acceptance_length", ".2f")),
        ("draft tokens accepted", lambda s: _speculation(s, "acceptance_rate", ".0%")),
    ]
    return rows


def _percentile(metric: str, percent: float) -> Callable[[Summary], str]:
    return lambda summary: _figure(summary.percentile(metric, percent))


def _figure(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _share(part: int | None, whole: int) -> str:
    return "–" if part is None or not whole else f"{part / whole:.0%}"


def _speculation(summary: Summary, name: str, form: str) -> str:
    if summary.speculation is None or not (summary.speculation.drafts or name == "tokens_per_step"):
        return "–"
    value = getattr(summary.speculation, name)
    return "–" if value is None else format(value, form)


def _ratio(value: float, first: float) -> float | None:
    return value / first if first else None


def _times(value: float, first: float) -> str:
    ratio = _ratio(value, first)
    return "–" if ratio is None else f"{ratio:.2f} ×"


def _equality_line(label: str, equality: Equality) -> Text:
    if equality.first is None:
        return Text.assemble(
            (f"{label}: ", "bold"),
            (f"all {equality.compared} outputs equal {equality.reference}'s", "green"),
        )
    request, place = equality.first
    return Text.assemble(
        (f"{label}: ", "bold"),
        (
            f"{equality.different} of {equality.compared} outputs differ from "
            f"{equality.reference}'s; first in request {request} at position {place}",
            "red",
        ),
    )
