"""The page in a real browser: nothing fails, nothing is loaded, nothing hostile runs."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from suffixspec_traces.cost import PointsCost
from suffixspec_traces.model import ReadReport, SkippedLine
from suffixspec_traces.replay import ReplayPlan, ReplayResult, replay
from suffixspec_traces.report import ReportOptions, build_report
from suffixspec_traces.report.html import render_html, write_html
from suffixspec_traces.report.token_view import ViewLimits, token_view
from suffixspec_traces.report.visible import visible_text
from tests.traces.fake_proposer import FakeProposer, counting, session, turn
from tests.traces.report.conftest import Texts

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
HOSTILE = [
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 2'>",
    "\u202egnp.exe\u202c",
    "\x1b[31mred\x07\x00",
    "{{ 7 * 7 }}<!--",
    "\u2028\u2029\ud800",
    "a\"b'c&amp;<b>bold</b>",
    "שלום",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium; install it: apt-get install -y chromium")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


class Visit:
    """An open page, with what it complained about and what it asked for."""

    def __init__(self, browser: Any, path: Path, **context: Any) -> None:
        self.context = browser.new_context(**context)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda m: self.complaints.append(f"{m.type}: {m.text}"))
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.on("dialog", lambda d: self.complaints.append("dialog"))
        self.page.on("request", lambda r: self.requests.append(r.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("#p-warm .main-svg")

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *exception: object) -> None:
        self.context.close()


@pytest.fixture
def hostile_page(cost: PointsCost, tmp_path: Path) -> Path:
    """Every text that a trace or a caller can choose is hostile."""
    words = dict(enumerate(HOSTILE))
    sessions = [
        session(
            f"{word}-{i}",
            turn([7, i], [i, i + 1, 3, 4, 5, 6, 2], tool=word),
            source=word,
        )
        for i, word in enumerate(HOSTILE)
    ]
    plan = ReplayPlan.build(sessions)
    results = [
        replay(plan, FakeProposer(counting(2)), label=HOSTILE[0], config={HOSTILE[1]: HOSTILE[0]}),
        replay(plan, FakeProposer(counting(1)), label=HOSTILE[1]),
    ]
    words[8] = words[9] = HOSTILE[0]
    read = ReadReport(skipped=[SkippedLine(HOSTILE[0], 1, HOSTILE[1])], formats={HOSTILE[1]: 1})
    options = ReportOptions(paths=HOSTILE, read=read, tokenizer={HOSTILE[0]: HOSTILE[1]})
    path = tmp_path / "hostile.html"
    write_html(path, build_report(results, cost, options), results, Texts(words))
    return path


@pytest.fixture
def page_file(results: list[ReplayResult], cost: PointsCost, texts: Texts, tmp_path: Path) -> Path:
    path = tmp_path / "report.html"
    write_html(path, build_report(results, cost), results, texts)
    return path


def test_the_page_works_without_complaint_or_network(browser: Any, page_file: Path) -> None:
    with Visit(browser, page_file) as visit:
        page = visit.page
        assert page.locator(".card .big").first.inner_text().startswith("2.00")
        assert page.locator(".plot .main-svg").count() >= 6
        page.locator("#theme").click()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        for index in range(page.locator("#v-session option").count()):
            page.select_option("#v-session", str(index))
        page.select_option("#v-method", "1")
        assert visit.complaints == []
        assert [r for r in visit.requests if not r.startswith(("file:", "data:", "blob:"))] == []


def test_tokens_are_coloured_by_what_drafted_them(browser: Any, page_file: Path) -> None:
    with Visit(browser, page_file) as visit:
        page = visit.page
        page.select_option("#v-session", "0")
        page.select_option("#v-turn", "0")
        tokens = page.locator("#v-text .t")
        assert tokens.all_inner_texts() == ["w2 ", "w3 ", "w9 ", "w10 ", "w20 "]
        classes = tokens.evaluate_all("nodes => nodes.map(n => n.className)")
        assert classes == ["t session", "t session", "t after", "t session", "t after"]
        tokens.nth(0).hover()
        info = page.locator("#v-info").inner_text()
        assert "drafted from the own session, accepted" in info
        assert "step 1 of 2: drafted 3, accepted 2, match length 2" in info
        assert 'rejected: "w4 "' in info
        page.check("#v-rejected")
        assert page.locator("#v-text .r").all_inner_texts() == ["w4 ", "w11 w12 "]
        assert "the own session" in page.locator("#v-legend").inner_text()


def test_the_keyboard_reaches_every_token(browser: Any, page_file: Path) -> None:
    with Visit(browser, page_file) as visit:
        page = visit.page
        page.select_option("#v-session", "0")
        page.select_option("#v-turn", "0")
        assert page.locator("#v-text .t[tabindex='0']").count() == 1
        page.focus("#v-text .t[tabindex='0']")
        seen = [page.evaluate("document.activeElement.textContent")]
        for key in ("ArrowRight", "ArrowDown", "End", "ArrowUp", "Home"):
            page.keyboard.press(key)
            seen.append(page.evaluate("document.activeElement.textContent"))
        assert seen == ["w2 ", "w3 ", "w10 ", "w20 ", "w2 ", "w2 "]
        assert "step 1 of 2" in page.locator("#v-info").inner_text()


def test_hostile_text_is_shown_and_never_run(browser: Any, hostile_page: Path) -> None:
    with Visit(browser, hostile_page) as visit:
        page = visit.page
        for index in range(page.locator("#v-session option").count()):
            page.select_option("#v-session", str(index))
            page.check("#v-rejected")
            page.locator("#v-text .t").first.hover()
        assert page.evaluate("window.hacked") is None
        assert page.locator("img").count() == 0
        assert page.locator("b", has_text="bold").count() == 0
        assert visit.complaints == []
        text = page.locator("body").inner_text()
        assert "window.hacked" in text
        assert "{{ 7 * 7 }}" in text
        assert "49" not in page.locator("#v-text").inner_text()
        assert not re.search("[\u202a-\u202e\u2066-\u2069\x00-\x08\x0b\x0c\x0e-\x1f]", text)


@pytest.mark.parametrize("width", [320, 390])
def test_a_telephone_needs_no_sideways_scrolling(
    browser: Any, hostile_page: Path, width: int
) -> None:
    with Visit(browser, hostile_page, viewport={"width": width, "height": 800}) as visit:
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(browser: Any, page_file: Path, scheme: str) -> None:
    script = """() => {
      const lum = (c) => { const v = c.match(/[\\d.]+/g).slice(0, 3).map((x) => {
        const s = Number(x) / 255;
        return s <= 0.03928 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4; });
        return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
      const ground = (n) => { for (; n; n = n.parentElement) {
        const c = getComputedStyle(n).backgroundColor;
        if (!/, 0\\)$/.test(c)) return c; } return "rgb(255,255,255)"; };
      const texts = "h1, h3, p, dt, dd, th, td, summary, .t, .info, .kicker";
      return [...document.querySelectorAll(texts)]
        .filter((n) => n.offsetParent && n.textContent.trim())
        .map((n) => { const a = lum(getComputedStyle(n).color), b = lum(ground(n));
          return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), n.outerHTML.slice(0, 80)]; })
        .filter(([ratio]) => ratio < 4.5);
    }"""
    with Visit(browser, page_file, color_scheme=scheme) as visit:
        assert visit.page.evaluate("document.documentElement.dataset.theme") == scheme
        assert visit.page.evaluate(script) == []


def test_a_partial_replay_says_so(plan: ReplayPlan, cost: PointsCost) -> None:
    result = replay(plan, FakeProposer(counting(3)))
    result.partial = True
    assert "<strong>Partial.</strong>" in render_html(build_report([result], cost))


def test_the_token_view_is_bounded(cost: PointsCost, texts: Texts) -> None:
    plan = ReplayPlan.build([session(str(i), turn([1], [i] * 40)) for i in range(50)])
    result = replay(plan, FakeProposer(counting(1)))
    view = token_view([result], texts, ViewLimits(sessions=5, tokens_per_session=10))
    assert len(view["sessions"]) == 5
    assert view["sessions_total"] == 50
    assert all(s["tokens_shown"] == 10 < s["tokens_total"] for s in view["sessions"])
    reasons = {r for s in view["sessions"] for r in s["reasons"]}
    assert {"first", "best", "median", "worst"} <= reasons
    for entry in view["sessions"]:
        method = entry["turns"][0]["methods"][0]
        assert len(method["sources"]) == len(entry["turns"][0]["texts"]) == 10


def test_hidden_characters_become_visible() -> None:
    assert visible_text("a\tb\nc") == "a\tb\nc"
    assert visible_text("\x1b\x00\x7f") == "␛␀␡"
    assert visible_text("\u202e\u200b\ufeff\ud800") == "⟨U+202E⟩⟨U+200B⟩⟨U+FEFF⟩⟨U+D800⟩"
    assert visible_text("שלום 你好 é") == "שלום 你好 é"
