"""Replay and tuning from the page: start, watch, read the result, cancel, delete."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from suffixspec_traces.report import ReplayReport
from tests.service.dashboard.served import Served, Visit
from tests.service.dashboard.test_page import CONTRAST, loaded


def test_a_replay_from_start_to_result(browser: Any, served: Served, tmp_path: Path) -> None:
    with Visit(browser, served.url, "/#/replay", accept_downloads=True) as visit:
        page = loaded(visit)
        assert "No result yet" in page.locator("main").inner_text()
        for name in ("coding", "support"):
            page.uncheck(f"label:has-text('{name}') input")
        page.fill("input[placeholder='all']", "3")
        page.fill("textarea", "{not json")
        page.click("text=Start replay")
        page.wait_for_selector(".wrong >> text=not valid JSON")
        page.fill("textarea", '{"method": "suffix", "suffix_decoding_max_tree_depth": 8}')
        page.click("text=Start replay")
        item = page.locator(".list .item").first
        item.locator(".badge >> text=/queued|running/").wait_for()
        item.locator(".badge >> text=completed").wait_for(timeout=120_000)
        page.wait_for_selector("article.card")
        titles = page.locator("article.card h3").all_inner_texts()
        assert titles == ["suffix", "ngram", "none", "suffix 2"]
        assert page.locator("figure .chart svg path.line").count() >= 8
        with page.expect_download() as download:
            item.locator("text=JSON").click()
        saved = tmp_path / "report.json"
        download.value.save_as(saved)
        report = ReplayReport.load(saved)
        shown = page.locator("article.card .big").first.inner_text()
        assert shown.startswith(f"{report.methods[0].totals.tokens_per_step:.2f}")
        with page.expect_download() as download:
            item.locator("text=Full report").click()
        assert download.value.suggested_filename == "suffixspec-replay.html"
        assert page.evaluate(CONTRAST) == []
        page.set_viewport_size({"width": 320, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
        page.reload()
        page.wait_for_selector("article.card")  # results outlive the page
        page.locator(".list .item >> text=Delete").click()
        page.wait_for_selector("text=No result yet")
        assert page.locator(".list .item").count() == 0


def test_tuning_on_own_traces_and_its_result(browser: Any, served: Served, tmp_path: Path) -> None:
    from suffixspec_service.jobs.spec import sample_files

    own = tmp_path / "mine.jsonl.gz"
    own.write_bytes(sample_files()["sql"].read_bytes())
    with Visit(browser, served.url, "/#/tuning", color_scheme="dark") as visit:
        page = loaded(visit)
        page.set_input_files("input[type=file]", str(own))
        assert page.locator("input[name=sample]:checked").count() == 0
        page.fill("input[placeholder='all']", "6")
        page.fill("input[inputmode=numeric]", "1, 4")
        page.fill("input[max='500']", "20")
        page.uncheck("text=one by one")
        page.click("text=Start tuning")
        item = page.locator(".list .item").first
        item.locator("progress").wait_for(timeout=60_000)
        item.locator(".badge >> text=completed").wait_for(timeout=300_000)
        page.wait_for_selector(".whiskers")
        assert page.locator(".whiskers > span").count() >= 8
        assert page.locator("pre.code").count() >= 2
        page.click("text=4 at a time")
        assert page.locator("button[aria-pressed=true]").inner_text() == "4 at a time"
        assert page.evaluate(CONTRAST) == []
        page.set_viewport_size({"width": 390, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_job_is_cancelled_from_the_page(browser: Any, served: Served) -> None:
    with Visit(browser, served.url, "/#/tuning") as visit:
        page = loaded(visit)
        page.fill("input[max='500']", "500")
        page.click("text=Start tuning")
        item = page.locator(".list .item").first
        item.locator(".badge >> text=running").wait_for()
        item.locator("text=Cancel").click()
        item.locator(".badge >> text=cancelled").wait_for()
        item.locator("text=Delete").click()
        item.locator(".badge >> text=cancelled").wait_for(state="detached")
