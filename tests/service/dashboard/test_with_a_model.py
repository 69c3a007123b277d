"""The page over a service that really generates."""

from __future__ import annotations

from typing import Any

from tests.service.dashboard.served import Visit
from tests.service.serving import Served


def test_requests_of_a_real_model_are_shown(browser: Any, real: Served) -> None:
    text = "Repeat this list three times: red, green, blue, red, green, blue, red, green, blue."
    with real.client() as client:
        for _ in range(3):
            answer = client.post(
                "/v1/chat/completions",
                json={
                    "model": real.model,
                    "messages": [{"role": "user", "content": text}],
                    "max_tokens": 48,
                    "temperature": 0,
                },
                headers={"X-Session-Id": "colours"},
            )
            assert answer.status_code == 200
    said = answer.json()["choices"][0]["message"]["content"]
    real.settle()
    session = real.runtime.monitor.session("local", "colours")
    assert session is not None
    assert session["accepted"] > 0
    with Visit(browser, real.url) as visit:
        page = visit.page
        page.wait_for_selector(".card >> text=Tokens per step")
        page.wait_for_selector("th >> text=/session/")
        assert real.model in page.locator("#service").inner_text()
        assert "0 waiting" in page.locator(".card", has_text="Running").inner_text()
        row = page.locator("tr", has_text=f"local/{real.model}/").first
        assert "KiB" in row.inner_text() or "MiB" in row.inner_text()
        page.click("text=Sessions")
        page.click("a.item >> text=colours")
        page.wait_for_selector(".tokens .t.session, .tokens .t.global")
        shown = page.locator(".tokens .t").evaluate_all(
            "l => l.map((n) => [...n.childNodes].filter((c) => c.nodeType === 3)"
            ".map((c) => c.data).join('')).join('')"
        )
        assert shown.startswith(said)
        page.locator(".tokens .t.session, .tokens .t.global").first.hover()
        info = page.locator(".info").inner_text()
        assert "accepted" in info
        assert "match length" in info
        counted = sum(r["drafted"] for r in session["kept_requests"])
        pieces = [p for r in session["kept_requests"] for p in r["pieces"]]
        assert sum(p[1] not in ("none", "forced") for p in pieces) == counted
        accepted = sum(p[2] and p[1] != "none" for p in pieces)
        assert accepted == session["accepted"]
