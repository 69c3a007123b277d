"""The tuning report as one self-contained HTML page, made as the replay's page is."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

from markupsafe import Markup

from suffixspec_traces.report.html import _asset as _report_asset
from suffixspec_traces.report.html import _environment, _hash, _script_safe
from suffixspec_traces.report.visible import visible_text
from suffixspec_traces.tuning.model import ConcurrencyReport, TuningReport
from suffixspec_traces.tuning.terminal import ending, interval, requests, setting, shown


def write_html(path: Path, report: TuningReport) -> None:
    """Write the page. Raises ``OSError`` as any writing does."""
    path.write_text(render_html(report), encoding="utf-8", newline="\n")


def render_html(report: TuningReport) -> str:
    """The page; about 5 MB of it are plotly.js."""
    from plotly.offline import get_plotlyjs  # importing it takes a while

    plotly, js = get_plotlyjs(), _asset("tuning.js")
    environment = _environment()
    environment.globals.update(interval=interval, requests=requests, setting=setting)
    return environment.from_string(_asset("tuning.html.j2")).render(
        report=report,
        run=report.run,
        ending=ending(report),
        data=Markup(_script_safe({"concurrencies": [_series(c) for c in report.concurrencies]})),
        css=Markup(_report_asset("report.css") + _asset("tuning.css")),
        plotly=Markup(plotly),
        js=Markup(js),
        script_hashes=Markup(f"{_hash(plotly)} {_hash(js)}"),
    )


def _series(one: ConcurrencyReport) -> dict[str, Any]:
    """What the charts draw of one concurrency."""
    families = dict.fromkeys(t.family for t in one.trials)
    return {
        "title": requests(one.concurrency),
        "families": [
            {
                "name": family,
                "trials": [
                    [t.wasted_per_token, t.ms_per_token, _described(t.values), t.tokens_per_step]
                    for t in one.trials
                    if t.family == family
                ],
            }
            for family in families
        ],
        "front": sorted([t.wasted_per_token, t.ms_per_token] for t in one.trials if t.on_front),
        "sensitivity": [
            {
                "threshold": row.threshold,
                "kept": shown(row.reference),
                "values": [shown(p.value) for p in row.points],
                "ms": [p.ms_per_token for p in row.points],
                "wasted": [p.wasted_per_token for p in row.points],
            }
            for row in one.sensitivity
        ],
        "speedups": [
            [r.role, r.speedup.value, r.speedup.low, r.speedup.high] for r in reversed(one.rows)
        ],
    }


def _described(values: dict[str, Any]) -> str:
    """A trial's values, a line each; plotly reads the line break as one."""
    return "<br>".join(visible_text(f"{name}: {shown(value)}") for name, value in values.items())


def _asset(name: str) -> str:
    folder = resources.files("suffixspec_traces.tuning").joinpath("assets")
    return folder.joinpath(name).read_text(encoding="utf-8")
