"""The report as one self-contained HTML page.

Nothing is loaded from anywhere: style, script, plotly.js and data are in the file, and a content
security policy forbids the rest, scripts included unless their hash is listed. Trace text only
ever reaches the page as escaped template text or as JSON that the script writes with
``textContent``.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from suffixspec_index.draft import Source
from suffixspec_traces.replay.decode import ReplayResult
from suffixspec_traces.report.groups import bucket_labels
from suffixspec_traces.report.metrics import CONCURRENCIES, MATCH_EDGES
from suffixspec_traces.report.model import Calibration, Interval, MethodReport, ReplayReport
from suffixspec_traces.report.token_view import TokenTexts, ViewLimits, token_view
from suffixspec_traces.report.visible import visible_text

SOURCE_NAMES = {
    Source.NONE: "the model",
    Source.SESSION: "the own session",
    Source.GLOBAL: "other sessions",
    Source.NGRAM: "n-grams",
    Source.PREDICTION: "a predicted output",
    Source.DRAFT_MODEL: "a draft model",
    Source.EAGLE: "EAGLE",
    Source.MTP: "MTP",
    Source.FORCED: "the grammar",
}
_KINDS = {
    Source.NONE: "",
    Source.SESSION: "session",
    Source.GLOBAL: "global",
    Source.NGRAM: "ngram",
}
_HISTOGRAM_VALUES = 2000


def write_html(
    path: Path,
    report: ReplayReport,
    results: Sequence[ReplayResult] = (),
    texts: TokenTexts | None = None,
    limits: ViewLimits | None = None,
) -> None:
    """Write the page; see :func:`render_html`. Raises ``OSError`` as any writing does."""
    path.write_text(render_html(report, results, texts, limits), encoding="utf-8", newline="\n")


def render_html(
    report: ReplayReport,
    results: Sequence[ReplayResult] = (),
    texts: TokenTexts | None = None,
    limits: ViewLimits | None = None,
) -> str:
    """The page. About 5 MB of it are plotly.js; a bounded sample of sessions is the rest.

    Args:
        results, texts: of the same replay, for the token view; without them the page has none.
        limits: how much the token view may hold.
    """
    from plotly.offline import get_plotlyjs  # importing it takes a while

    view = token_view(results, texts, limits) if results and texts is not None else None
    plotly, js = get_plotlyjs(), _asset("report.js")
    template = _environment().from_string(_asset("report.html.j2"))
    return template.render(
        report=report,
        run=report.run,
        methods=[_for_template(m) for m in report.methods],
        title=_title(report),
        order=_order(report),
        view=view,
        source_names={s.label: name for s, name in SOURCE_NAMES.items()},
        data=Markup(_script_safe(_page_data(report, view))),
        css=Markup(_asset("report.css")),
        plotly=Markup(plotly),
        js=Markup(js),
        script_hashes=Markup(f"{_hash(plotly)} {_hash(js)}"),
    )


def _for_template(method: MethodReport) -> dict[str, Any]:
    fields = {name: getattr(method, name) for name in MethodReport.model_fields}
    return fields | {"config_text": json.dumps(method.config, ensure_ascii=False)}


def _title(report: ReplayReport) -> str:
    workloads = [row.group for row in report.methods[0].by_workload]
    if not workloads:
        return "nothing was decoded"
    shown = ", ".join(sorted(workloads)[:3])
    return shown if len(workloads) <= 3 else f"{shown} and {len(workloads) - 3} more"


def _order(report: ReplayReport) -> str:
    run = report.run
    if run.order == "shuffled":
        return f"sessions shuffled with seed {run.seed}"
    if run.order == "interleaved by time":
        return "turns in the order of their recorded times"
    return "sessions in recorded order"


def _page_data(report: ReplayReport, view: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "methods": [_series(m) for m in report.methods],
        "match_labels": bucket_labels(MATCH_EDGES),
        "concurrencies": sorted({*CONCURRENCIES, report.run.concurrency}),
        "source_kinds": [_KINDS.get(s, "other") for s in Source],
        "source_names": [SOURCE_NAMES[s] for s in Source],
        "view": view,
    }


def _series(method: MethodReport) -> dict[str, Any]:
    """What the charts draw of one method."""
    per_session = [s.counts.tokens_per_step for s in method.sessions]
    return {
        "label": visible_text(method.label),
        "warm": [
            [p.last_session, p.tokens_per_step, p.cumulative_tokens_per_step]
            for p in method.cold_to_warm
        ],
        "positions": [
            [p.position, p.conditional_acceptance, p.reached]
            for p in method.by_position
            if p.reached
        ],
        "matches": [
            [row.group, row.counts.tokens_per_step, row.counts.steps]
            for row in method.by_match_length
        ],
        "sessions": _thinned([v for v in per_session if v is not None]),
        "speedups": [[r.concurrency, r.speedup, r.extrapolated] for r in method.predicted],
        "calibration": _curve(method.calibration),
        "before": _curve(before.before) if (before := method.calibration_before) else [],
    }


def _curve(calibration: Calibration) -> list[list[float | int | None]]:
    """Points of a reliability curve."""
    return [
        [b.mean_probability, b.acceptance_rate, b.drafted] for b in calibration.bins if b.drafted
    ]


def _thinned(values: list[float]) -> list[float]:
    """At most so many values of the same distribution: evenly spaced quantiles."""
    if len(values) > _HISTOGRAM_VALUES:
        values = np.quantile(values, np.linspace(0, 1, _HISTOGRAM_VALUES)).tolist()
    return [round(v, 4) for v in values]


def _script_safe(data: dict[str, Any]) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _asset(name: str) -> str:
    folder = resources.files("suffixspec_traces.report").joinpath("assets")
    return folder.joinpath(name).read_text(encoding="utf-8")


# -- formatting ----------------------------------------------------------------------------------


def _environment() -> Environment:
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.globals.update(
        n=_count, f=_decimal, pct=_percent, us=_microseconds, ci=_interval, ci_pct=_interval_percent
    )
    return environment


def _shown(value: Any) -> Any:
    """Every text that the template writes passes here before it is escaped."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return visible_text(value)
    return value


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _decimal(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _microseconds(ns: int | None) -> str:
    return "–" if ns is None else f"{ns / 1000:,.1f} µs"


def _interval(interval: Interval, digits: int) -> str:
    if interval.low is None or interval.high is None:
        return "no interval: a single session"
    return f"{interval.low:,.{digits}f} to {interval.high:,.{digits}f}"


def _interval_percent(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return ""
    return f"{100 * interval.low:.1f} to {100 * interval.high:.1f} %"
