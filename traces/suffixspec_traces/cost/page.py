"""A measured cost model as one self-contained HTML page, made as the replay's page is."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from markupsafe import Markup

from suffixspec_traces.cost.model import PointsCost
from suffixspec_traces.report.html import _asset as _report_asset
from suffixspec_traces.report.html import _environment, _hash, _script_safe


def write_html(path: Path, model: PointsCost) -> None:
    """Write the page. Raises ``OSError`` as any writing does."""
    path.write_text(render_html(model), encoding="utf-8", newline="\n")


def render_html(model: PointsCost) -> str:
    """The page; about 5 MB of it are plotly.js."""
    from plotly.offline import get_plotlyjs  # importing it takes a while

    plotly, js = get_plotlyjs(), _asset("cost.js")
    points = sorted(model.points.items())
    return (
        _environment()
        .from_string(_asset("cost.html.j2"))
        .render(
            model=model,
            points=points,
            data=Markup(_script_safe({"points": [[tokens, ms] for tokens, ms in points]})),
            css=Markup(_report_asset("report.css")),
            plotly=Markup(plotly),
            js=Markup(js),
            script_hashes=Markup(f"{_hash(plotly)} {_hash(js)}"),
        )
    )


def _asset(name: str) -> str:
    folder = resources.files("suffixspec_traces.cost").joinpath("assets")
    return folder.joinpath(name).read_text(encoding="utf-8")
