"""A benchmark's figures as a picture: one self-contained page, or an image of it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from suffixspec.bench.report import BenchReport
from suffixspec.bench.results import METRICS
from suffixspec_index.errors import ConfigError, MissingDependencyError

_WIDTH, _HEIGHT = 1200, 420
_COLOURS = ("#4c6ef5", "#12b886", "#f59f00", "#e64980", "#7950f2", "#868e96")


def write_plot(report: BenchReport, path: Path) -> None:
    """Write ``.html`` (about 5 MB of it are plotly.js) or ``.png`` (needs playwright, Chromium).

    Raises:
        ConfigError: the name ends in neither, or no Chromium can be started.
        MissingDependencyError: a PNG is wanted, and playwright is not installed.
    """
    check_plot(path)
    figure = draw(report)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".html":
        figure.write_html(path, include_plotlyjs=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "bench.html"
        figure.write_html(page, include_plotlyjs=True)
        _screenshot(page, path)


def check_plot(path: Path) -> None:
    """Refuse before a long run what could not be written after it; as :func:`write_plot`."""
    if path.suffix not in (".html", ".png"):
        raise ConfigError(f"--plot: {str(path)!r} must end in .html or .png")
    if path.suffix == ".png":
        try:
            import playwright.sync_api  # noqa: F401  - only whether it is there
        except ImportError as error:
            raise MissingDependencyError(
                "--plot: a .png is drawn with playwright; run: pip install playwright, or write "
                "an .html"
            ) from error


def draw(report: BenchReport) -> Any:
    """A plotly figure: throughput, and the distribution of each metric, by rival."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    metrics = list(report.metrics)
    figure = make_subplots(
        rows=1,
        cols=1 + len(metrics),
        subplot_titles=["output tokens/s", *(f"{METRICS[m]}, ms" for m in metrics)],
    )
    for place, summary in enumerate(report.summaries):
        colour = _COLOURS[place % len(_COLOURS)]
        common = {"name": summary.label, "legendgroup": summary.label, "marker_color": colour}
        figure.add_trace(
            go.Bar(x=[summary.label], y=[summary.output_throughput], **common), row=1, col=1
        )
        for column, metric in enumerate(metrics, 2):
            values = list(summary.milliseconds[metric])
            box = go.Box(y=values, boxpoints="outliers", showlegend=False, **common)
            figure.add_trace(box, row=1, col=column)
    for column in range(2, 2 + len(metrics)):
        figure.update_yaxes(type="log", row=1, col=column)
    figure.update_layout(
        width=_WIDTH, height=_HEIGHT, template="plotly_white", showlegend=True,
        title=f"{report.head.get('model_id')}, {report.head.get('dataset')}",
    )  # fmt: skip
    return figure


def _screenshot(page: Path, image: Path) -> None:
    from playwright.sync_api import Error, sync_playwright

    browser_path = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=browser_path)
        except Error as error:
            raise ConfigError(
                f"--plot: no Chromium can be started ({error.message.splitlines()[0]}); write an "
                ".html"
            ) from None
        tab = browser.new_page(viewport={"width": _WIDTH + 16, "height": _HEIGHT + 16})
        tab.goto(page.resolve().as_uri())
        tab.wait_for_selector(".plot-container .legend")
        tab.screenshot(path=image)
        browser.close()
