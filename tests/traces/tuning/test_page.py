"""The page in a real browser: it draws, loads nothing, and runs nothing foreign."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from suffixspec_traces.tuning import TuningReport
from suffixspec_traces.tuning.page import render_html, write_html

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"


def test_the_page_is_whole_and_escaped(report: TuningReport) -> None:
    run = report.run.model_copy(update={"paths": [HOSTILE], "ended": "interrupted"})
    html = render_html(report.model_copy(update={"run": run}))
    assert html.startswith("<!doctype html>")
    assert HOSTILE not in html
    assert "Partial: interrupted" in html
    for one in report.concurrencies:
        assert one.sentence in html


def test_in_a_browser(report: TuningReport, tmp_path: Path) -> None:
    if CHROMIUM is None:
        pytest.skip("no Chromium; install it: apt-get install -y chromium")
    sync_api = pytest.importorskip("playwright.sync_api")
    page_file = tmp_path / "tune.html"
    run = report.run.model_copy(update={"paths": [HOSTILE]})
    write_html(page_file, report.model_copy(update={"run": run}))
    complaints: list[str] = []
    requests: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 800})
        page.on("console", lambda m: complaints.append(m.text))
        page.on("pageerror", lambda e: complaints.append(str(e)))
        page.on("request", lambda r: requests.append(r.url))
        page.goto(page_file.as_uri())
        page.wait_for_selector("#p-front .main-svg")
        thresholds = page.locator("#sensitivity figure").count()
        assert thresholds == len(report.concurrencies[0].sensitivity)
        page.select_option("#c-select", "1")
        assert page.locator("#sensitivity figure").count() == len(
            report.concurrencies[1].sensitivity
        )
        assert page.locator("#p-speedups .ytick text").count() == 7
        page.click("#theme")
        page.locator("button.copy").first.click()
        page.wait_for_selector("button.copy:text-matches('Copied|Selected')")
        assert page.evaluate("getSelection().toString()").startswith("cost_model: flat")
        assert page.evaluate("window.hacked") is None
        widths = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        assert widths[0] <= widths[1]
        # No drawing is wider than the figure around it.
        assert page.evaluate(
            "[...document.querySelectorAll('.plot')].every(p => [...p.querySelectorAll("
            "'.main-svg')].every(s => s.getBoundingClientRect().width <= p.clientWidth + 1))"
        )
        browser.close()
    assert complaints == []
    assert requests == [page_file.as_uri()]
