"""Writing plots: an interactive page always, an image where a Chromium can draw one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_figure(figure: Any, page: Path, image: Path, say: Callable[[str], None]) -> list[Path]:
    """Write ``page`` (HTML) and, if possible, ``image`` (PNG). Returns what was written."""
    for path in (page, image):
        path.parent.mkdir(parents=True, exist_ok=True)
    figure.write_html(page, include_plotlyjs=True)
    say(f"wrote {page}")
    width, height = int(figure.layout.width), int(figure.layout.height)
    if not _screenshot(page, image, width, height, say):
        return [page]
    say(f"wrote {image}")
    return [page, image]


def _screenshot(
    page: Path, image: Path, width: int, height: int, say: Callable[[str], None]
) -> bool:
    """Let a headless Chromium draw a page that fills ``width`` by ``height`` CSS pixels."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        say("no image: playwright is not installed")
        return False
    browser_path = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=browser_path)
        except Error as error:
            say(f"no image: {error.message.splitlines()[0]}")
            return False
        tab = browser.new_page(viewport={"width": width + 16, "height": height + 16})
        tab.goto(page.resolve().as_uri())
        tab.wait_for_selector(".plot-container .legend")
        tab.screenshot(path=image)
        browser.close()
    return True
