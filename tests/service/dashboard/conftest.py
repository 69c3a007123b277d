"""One service with made-up traffic and one browser for all tests of the page."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest

from suffixspec_service.config import ServiceConfig
from suffixspec_service.monitor import Monitor
from suffixspec_service.runtime import Runtime
from tests.service.dashboard.served import Served
from tests.service.monitor.recorded import drafting, made_up, spoken

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
KEYS = ("one:" + "a" * 32, "two:" + "b" * 32)
HOSTILE = "<img src=x onerror='window.hacked = 1'></script>\u202e\x1b"


@pytest.fixture(scope="module")  # its event loop must end before asynchronous tests begin
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium; install it: apt-get install -y chromium")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


def traffic(monitor: Monitor) -> None:
    """Ten minutes of requests, then a fall of acceptance, and sessions with text."""
    real, rng = monitor._clock, random.Random(7)
    for number in range(400):
        monitor._clock = lambda number=number: time.time() - 600 + 1.5 * number  # type: ignore[misc]
        level = 0.8 if number < 330 else 0.35
        share = min(1.0, max(0.0, rng.gauss(level, 0.08)))
        monitor.observe(drafting(share, session_id=f"run-{number // 40}"))
        if number % 10 == 0:
            monitor.observe(made_up(rng))
    monitor._clock = real
    monitor.observe(spoken("the quick brown fox jumps over the lazy dog", session_id="fox"))
    monitor.observe(spoken("so it goes\nand goes on", session_id="fox"))
    monitor.observe(spoken(f"{HOSTILE} {HOSTILE} {HOSTILE}", session_id=HOSTILE))


@pytest.fixture(scope="package")
def served() -> Iterator[Served]:
    runtime = Runtime(ServiceConfig(port=0))
    traffic(runtime.monitor)
    with Served(runtime) as served:
        yield served


@pytest.fixture(scope="package")
def keyed() -> Iterator[Served]:
    runtime = Runtime(ServiceConfig(port=0, api_keys=KEYS))
    for tenant in ("one", "two"):
        for _ in range(5):
            runtime.monitor.observe(spoken("private", tenant=tenant, session_id=f"of-{tenant}"))
    with Served(runtime) as served:
        yield served
