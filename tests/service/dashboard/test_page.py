"""The page in a real browser: it shows what happened, by mouse and by keyboard, wide and narrow,
in light and dark, and asks nobody but its own service."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from tests.service.dashboard.conftest import HOSTILE, KEYS
from tests.service.dashboard.served import Served, Visit
from tests.service.monitor.recorded import record

PAGES = ["/", "/#/sessions", "/#/sessions?tenant=local&id=fox", "/#/replay", "/#/tuning"]
CONTRAST = """() => {
  const lum = (c) => { const v = c.match(/[\\d.]+/g).slice(0, 3).map((x) => {
    const s = Number(x) / 255;
    return s <= 0.03928 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
  const ground = (n) => { for (; n; n = n.parentElement) {
    const c = getComputedStyle(n).backgroundColor;
    if (!/, 0\\)$/.test(c)) return c; } return "rgb(255,255,255)"; };
  const texts = "h1, h2, h3, p, a, button, label, legend, dt, dd, th, td, li, .t, .info, .badge, "
    + ".big span, code, pre, select, input, .chart text";
  return [...document.querySelectorAll(texts)]
    .filter((n) => n.getClientRects().length && n.textContent.trim())
    .filter((n) => !n.closest(".unseen, .skip"))
    .map((n) => { const s = getComputedStyle(n);
      const a = lum(n instanceof SVGElement ? s.fill : s.color), b = lum(ground(n));
      return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), n.outerHTML.slice(0, 90)]; })
    .filter(([ratio]) => ratio < 4.5);
}"""


def loaded(visit: Visit) -> Any:
    visit.page.wait_for_selector("#service:not(:has-text('Connecting'))")
    visit.page.wait_for_selector("main h1")
    visit.page.wait_for_load_state("networkidle")
    return visit.page


def test_live_figures_appear_after_a_request(browser: Any, served: Served) -> None:
    with Visit(browser, served.url) as visit:
        page = loaded(visit)
        requests = page.locator(".card", has_text="Requests").locator(".big")
        before = int(requests.inner_text().replace(",", ""))
        assert before > 100
        for _ in range(7):
            served.runtime.monitor.observe(record(tenant="newcomer"))
        page.wait_for_selector("td, th >> text=newcomer")
        row = page.locator("tr", has=page.locator("th", has_text="newcomer"))
        assert row.locator("td").all_inner_texts() == ["7", "210", "2.50", "45.0 %"]
        assert (
            int(requests.inner_text().replace(",", "")) > before - 20
        )  # old ones leave the window


def test_an_alarm_is_said_and_marked(browser: Any, served: Served) -> None:
    with Visit(browser, served.url) as visit:
        page = loaded(visit)
        banner = page.locator(".banner.bad")
        assert "Acceptance has fallen" in banner.inner_text()
        assert "local/smollm2/abc" in banner.inner_text()
        page.click("text=1 hour")
        assert page.locator("button[aria-pressed=true]").inner_text() == "1 hour"
        page.wait_for_selector(".chart .mark-flag")
        assert "acceptance fell" in page.locator(".chart .mark title").first.text_content()
        row = page.locator("tr", has_text="local/smollm2/abc").first
        assert "fallen" in row.inner_text()


def test_charts_are_read_by_mouse_and_by_keyboard(browser: Any, served: Served) -> None:
    with Visit(browser, served.url) as visit:
        page = loaded(visit)
        page.click("text=1 hour")
        chart = page.locator("figure", has_text="Acceptance").first
        svg = chart.locator(".chart svg")
        svg.hover()
        tip = chart.locator(".tip")
        assert re.search(r"^\d\d:\d\d:\d\d\n", tip.inner_text())
        assert "all: " in tip.inner_text()
        svg.focus()
        page.keyboard.press("End")
        last = tip.inner_text()
        page.keyboard.press("ArrowLeft")
        assert tip.inner_text() != last
        assert page.locator("#announce").text_content() == tip.text_content()
        page.keyboard.press("Escape")
        assert tip.is_hidden()
        assert "Latest: all" in svg.get_attribute("aria-label")


def test_a_session_is_shown_token_by_token(browser: Any, served: Served) -> None:
    with Visit(browser, served.url, "/#/sessions") as visit:
        page = loaded(visit)
        page.click("a.item >> text=fox")
        page.wait_for_selector(".tokens .t")
        assert page.locator(".tokens").inner_text() == "so it wrong goes↵\nand goes on "
        classes = page.locator(".tokens > *").evaluate_all("l => l.map((n) => n.className)")
        assert classes == ["t", "t session", "r", "t global", "t", "t session"]
        page.locator(".tokens .t.session").first.hover()
        info = page.locator(".info")
        assert info.inner_text().startswith('"it ": drafted from the own session, accepted')
        assert "match length 7" in info.inner_text()
        page.locator(".tokens .r").hover()
        assert "drafted from other sessions, rejected" in info.inner_text()
        page.uncheck("text=Show rejected")
        assert page.locator(".tokens .r").count() == 0
        page.select_option("main select", "0")
        assert "quick" in page.locator(".tokens").inner_text()
        assert "12 steps" in page.locator("dl.facts").inner_text()


def test_the_keyboard_moves_through_tokens(browser: Any, served: Served) -> None:
    with Visit(browser, served.url, "/#/sessions?tenant=local&id=fox") as visit:
        page = loaded(visit)
        assert page.locator(".tokens [tabindex='0']").count() == 1
        page.focus(".tokens [tabindex='0']")
        seen = [page.evaluate("document.activeElement.textContent")]
        for key in ("ArrowRight", "ArrowRight", "ArrowDown", "End", "ArrowUp", "Home"):
            page.keyboard.press(key)
            seen.append(page.evaluate("document.activeElement.textContent"))
        assert seen[:3] == ["so ", "it ", "wrong "]
        assert seen[3] in ("goes ", "on ")
        assert seen[4] == "on "
        assert seen[6] == "so "


def test_everything_is_reached_by_tab_and_focus_is_seen(browser: Any, served: Served) -> None:
    with Visit(browser, served.url) as visit:
        page = loaded(visit)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        reached = []
        for _ in range(12):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("document.activeElement.textContent.trim().slice(0, 20)"))
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline == "solid", reached
        assert reached[:8] == [
            "◐ Theme", "Overview", "Sessions", "Replay", "Tuning",
            "5 minutes", "1 hour", "24 hours",
        ]  # fmt: skip
        page.locator("#nav >> text=Replay").focus()
        page.keyboard.press("Enter")
        page.wait_for_selector("h1 >> text=Replay")
        assert page.locator("#nav a[aria-current]").inner_text() == "Replay"
        assert page.title() == "Replay · suffixspec"


@pytest.mark.parametrize("path", PAGES)
def test_a_telephone_needs_no_sideways_scrolling(browser: Any, served: Served, path: str) -> None:
    with Visit(browser, served.url, path, viewport={"width": 390, "height": 800}) as visit:
        page = loaded(visit)
        for width in (390, 320):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_text_stands_out_from_its_ground(
    browser: Any, served: Served, path: str, scheme: str
) -> None:
    with Visit(browser, served.url, path, color_scheme=scheme) as visit:
        page = loaded(visit)
        assert page.evaluate("document.documentElement.dataset.theme") == scheme
        assert page.evaluate(CONTRAST) == []


def test_the_theme_is_kept(browser: Any, served: Served) -> None:
    with Visit(browser, served.url, color_scheme="light") as visit:
        loaded(visit).click("#theme")
        visit.page.reload()
        assert loaded(visit).evaluate("document.documentElement.dataset.theme") == "dark"


def test_nothing_moves_for_those_who_do_not_want_it(browser: Any, served: Served) -> None:
    with Visit(browser, served.url, reduced_motion="reduce") as visit:
        page = loaded(visit)
        behaviour = page.evaluate("getComputedStyle(document.documentElement).scrollBehavior")
        assert behaviour == "auto"
        moving = "document.getAnimations().length"
        assert page.evaluate(moving) == 0


def test_hostile_text_is_shown_and_never_run(browser: Any, served: Served) -> None:
    with Visit(browser, served.url, "/#/sessions") as visit:
        page = loaded(visit)
        page.click("a.item >> text=onerror")
        page.wait_for_selector(".tokens .t")
        page.locator(".tokens .t").first.hover()
        text = page.locator("main").inner_text()
        assert "window.hacked" in text
        assert "⟨U+202E⟩␛" in text
        assert page.evaluate("window.hacked") is None
        assert page.locator("main img").count() == 0
        assert HOSTILE not in text


def test_a_service_that_stops_answering_is_said(browser: Any, served: Served) -> None:
    visit = Visit(browser, served.url)
    page = loaded(visit)
    visit.context.set_offline(True)
    page.wait_for_selector(".banner.bad >> text=does not answer")
    visit.context.set_offline(False)
    page.wait_for_selector(".banner.bad >> text=does not answer", state="detached")
    visit.context.close()


# -- keys ------------------------------------------------------------------------------------------


def test_with_keys_a_tenant_sees_its_own_and_no_text(browser: Any, keyed: Served) -> None:
    visit = Visit(browser, keyed.url)
    page = visit.page
    page.wait_for_selector("h1 >> text=wants a key")
    assert page.evaluate("document.activeElement.id") == "key"
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=This key is not valid.")
    page.keyboard.type(KEYS[0].split(":")[1])
    page.keyboard.press("Enter")
    page.wait_for_selector("h1 >> text=What is running")
    page.wait_for_selector("th >> text=one")
    assert "tenant one" in page.locator("#service").inner_text()
    assert page.locator("th", has_text="two").count() == 0
    page.click("text=Sessions")
    page.wait_for_selector("a.item")
    assert page.locator("a.item").count() == 1
    assert "of-one" in page.locator("a.item").inner_text()
    assert "not kept here" in page.locator("main").inner_text()
    assert KEYS[0].split(":")[1] not in page.url + page.content()
    page.click("#forget-key")
    page.wait_for_selector("h1 >> text=wants a key")
    assert page.evaluate("sessionStorage.length") == 0
    refused = [c for c in visit.complaints if "401" not in c]
    assert refused == []
    visit.context.close()


def test_what_a_tenant_may_ask(keyed: Served) -> None:
    own = {"Authorization": f"Bearer {KEYS[0].split(':')[1]}"}
    with httpx.Client(base_url=keyed.url, headers=own) as client:
        for path in ("me", "overview", "sessions"):
            bare = httpx.get(f"{keyed.url}/dashboard/api/{path}")
            assert bare.status_code == 401
            assert "www-authenticate" in bare.headers
        overview = client.get("/dashboard/api/overview").json()
        assert list(overview["window"]["tenants"]) == ["one"]
        assert overview["engine"] is None
        assert overview["window"]["gauges"] == {}
        session = {"id": "of-two", "tenant": "two"}
        assert client.get("/dashboard/api/session", params=session).status_code == 404
        found = client.get("/dashboard/api/session", params={"id": "of-one"}).json()
        assert all(r["pieces"] is None for r in found["kept_requests"])
        assert client.get("/metrics").status_code == 403
        assert client.get("/dashboard/api/overview?range=2y").status_code == 400


def test_pages_and_assets_are_sent_with_a_policy(served: Served) -> None:
    with httpx.Client(base_url=served.url) as client:
        page = client.get("/")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        names = re.findall(r'/dashboard/assets/([\w.]+)"', page.text)
        assert len(names) >= 5
        for name in names:
            answer = client.get(f"/dashboard/assets/{name}")
            assert answer.status_code == 200
            assert answer.headers["x-content-type-options"] == "nosniff"
            again = {"If-None-Match": answer.headers["etag"]}
            assert client.get(f"/dashboard/assets/{name}", headers=again).status_code == 304
        for name in ("nothing.js", "..%2Froutes.py", "../routes.py", "__init__.py"):
            assert client.get(f"/dashboard/assets/{name}").status_code == 404
        assert client.get("/dashboard", follow_redirects=True).text == page.text
        assert client.get("/metrics").text.count("# HELP") > 30
        evil = client.get("/dashboard/api/overview", headers={"Host": "evil.example"})
        assert evil.status_code == 403
