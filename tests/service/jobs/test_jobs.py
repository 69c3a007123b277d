"""Jobs through HTTP, with real worker processes over the recorded samples."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from suffixspec_service.app import create_app
from suffixspec_service.config import ServiceConfig
from suffixspec_service.jobs import JobsConfig
from suffixspec_service.jobs.spec import sample_files
from suffixspec_service.runtime import Runtime
from suffixspec_traces.report import ReplayReport
from suffixspec_traces.tuning import TuningReport

KEYS = ("one:" + "a" * 32, "two:" + "b" * 32)
ONE, TWO = ({"Authorization": f"Bearer {key.split(':')[1]}"} for key in KEYS)
URL = "/v1/speculation"
SMALL = {
    "kind": "replay",
    "samples": ["sql"],
    "methods": ["suffix", "hybrid", "none"],
    "limit_sessions": 3,
}


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    runtime = Runtime(
        ServiceConfig(api_keys=KEYS),
        jobs_config=JobsConfig(
            queued_per_tenant=2,
            per_tenant=3,
            upload_bytes=200_000,
            upload_files=3,
            folder=tmp_path / "jobs",
        ),
    )
    yield runtime
    await runtime.close()
    assert list((tmp_path / "jobs").glob("*")) == []


@pytest.fixture
async def client(runtime: Runtime) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(runtime))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        yield client


async def submit(client: httpx.AsyncClient, spec: dict[str, Any], **headers: Any) -> str:
    answer = await client.post(f"{URL}/jobs", json=spec, headers=headers or ONE)
    assert answer.status_code == 202, answer.text
    job_id: str = answer.json()["id"]
    return job_id


async def ended(client: httpx.AsyncClient, job_id: str) -> dict[str, Any]:
    """Follow the events to the end; the last of them."""
    events: list[dict[str, Any]] = []
    async with client.stream("GET", f"{URL}/jobs/{job_id}/events", headers=ONE) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        async for line in stream.aiter_lines():
            if line == "data: [DONE]":
                break
            if line.startswith("data: "):
                events.append(json.loads(line.removeprefix("data: ")))
    stages = [e["progress"]["stage"] for e in events]
    assert events[-1]["state"] != "completed" or "reading" in stages
    return events[-1]


async def test_a_replay_runs_beside_the_service_and_its_report_reads_back(
    client: httpx.AsyncClient, tmp_path: Path
) -> None:
    job_id = await submit(client, SMALL)
    last = await ended(client, job_id)
    assert last["state"] == "completed", last
    assert last["has_result"]
    assert last["progress"]["stage"] == "writing the report"
    path = tmp_path / "report.json"
    path.write_bytes((await client.get(f"{URL}/jobs/{job_id}/result", headers=ONE)).content)
    report = ReplayReport.load(path)
    assert [m.label for m in report.methods] == ["suffix", "hybrid", "none"]
    assert report.run.sessions == 3
    assert report.run.paths == ["sql"]
    assert report.methods[0].totals.tokens_per_step > 1.2  # type: ignore[operator]
    page = await client.get(f"{URL}/jobs/{job_id}/report", headers=ONE)
    assert page.headers["content-security-policy"].startswith("sandbox allow-scripts;")
    assert page.headers["content-disposition"].startswith("attachment")
    assert page.text.startswith("<!doctype html>")
    assert str(tmp_path) not in page.text


async def test_uploaded_traces_are_tuned_on_and_stay_with_their_tenant(
    client: httpx.AsyncClient, tmp_path: Path
) -> None:
    lines = gzip.decompress(sample_files()["support"].read_bytes()).splitlines(keepends=True)
    body = gzip.compress(b"".join(lines[:8]))
    answer = await client.post(
        f"{URL}/traces?name=../../my%20own.jsonl.gz", content=body, headers=ONE
    )
    assert answer.status_code == 201, answer.text
    uploaded = answer.json()
    assert uploaded["name"] == "my_own.jsonl.gz"
    assert uploaded["bytes"] == len(body)
    listed = await client.get(f"{URL}/traces", headers=ONE)
    assert listed.json()["data"] == [uploaded]
    assert (await client.get(f"{URL}/traces", headers=TWO)).json()["data"] == []
    spec = {
        "kind": "tuning",
        "traces": [uploaded["id"]],
        "concurrency": [1],
        "trials": 20,
        "trial_tokens": 500,
        "sensitivity": False,
    }
    refused = await client.post(f"{URL}/jobs", json=spec, headers=TWO)
    assert refused.status_code == 404
    job_id = await submit(client, spec)
    held = await client.delete(f"{URL}/traces/{uploaded['id']}", headers=ONE)
    assert held.status_code == 400
    last = await ended(client, job_id)
    assert last["state"] == "completed", last
    path = tmp_path / "tuned.json"
    path.write_bytes((await client.get(f"{URL}/jobs/{job_id}/result", headers=ONE)).content)
    report = TuningReport.load(path)
    assert report.run.paths == ["my_own.jsonl.gz"]
    assert report.concurrencies[0].sentence
    assert (await client.delete(f"{URL}/traces/{uploaded['id']}", headers=ONE)).status_code == 204


async def test_nobody_sees_anothers_job(client: httpx.AsyncClient) -> None:
    job_id = await submit(client, SMALL)
    for method, path in (
        ("GET", ""),
        ("GET", "/events"),
        ("GET", "/result"),
        ("GET", "/report"),
        ("POST", "/cancel"),
        ("DELETE", ""),
    ):
        answer = await client.request(method, f"{URL}/jobs/{job_id}{path}", headers=TWO)
        assert answer.status_code == 404, path
        assert (await client.request(method, f"{URL}/jobs/{job_id}{path}")).status_code == 401
    assert (await client.get(f"{URL}/jobs", headers=TWO)).json()["data"] == []
    assert len((await client.get(f"{URL}/jobs", headers=ONE)).json()["data"]) == 1


async def test_a_running_job_is_cancelled_and_leaves_no_process(
    client: httpx.AsyncClient, runtime: Runtime
) -> None:
    tuning = {"kind": "tuning", "samples": ["coding", "sql", "support"], "trials": 500}
    running = await submit(client, tuning)
    queued = await submit(client, SMALL)
    too_many = await client.post(f"{URL}/jobs", json=SMALL, headers=ONE)
    assert too_many.status_code == 429
    assert "retry-after" in too_many.headers
    job = runtime.jobs.get("one", running)
    while job.stage in ("", "starting"):
        await asyncio.sleep(0.05)
    assert job.process is not None
    pid = job.process._process.pid
    no_result = await client.get(f"{URL}/jobs/{running}/result", headers=ONE)
    assert no_result.status_code == 404
    assert "is running" in no_result.json()["error"]["message"]
    answer = await client.post(f"{URL}/jobs/{queued}/cancel", headers=ONE)
    assert answer.json()["state"] == "cancelled"
    answer = await client.post(f"{URL}/jobs/{running}/cancel", headers=ONE)
    assert answer.json()["state"] == "cancelled"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert (await client.delete(f"{URL}/jobs/{running}", headers=ONE)).status_code == 204
    assert (await client.get(f"{URL}/jobs/{running}", headers=ONE)).status_code == 404
    assert not job.folder.exists()


async def test_a_job_that_cannot_read_its_traces_says_why(client: httpx.AsyncClient) -> None:
    answer = await client.post(
        f"{URL}/traces?name=x.jsonl", content=b'{"nonsense": 1}\n', headers=ONE
    )
    spec = {"kind": "replay", "traces": [answer.json()["id"]]}
    last = await ended(client, await submit(client, spec))
    assert last["state"] == "failed"
    assert last["error"].startswith("x.jsonl")
    assert not last["has_result"]


async def test_closing_ends_what_runs(tmp_path: Path) -> None:
    config = JobsConfig(folder=tmp_path)
    runtime = Runtime(ServiceConfig(), jobs_config=config)
    transport = httpx.ASGITransport(create_app(runtime))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        ids = [(await client.post(f"{URL}/jobs", json=SMALL)).json()["id"] for _ in range(2)]
        jobs = [runtime.jobs.get("local", job_id) for job_id in ids]
        while jobs[0].process is None:
            await asyncio.sleep(0.01)
        await runtime.close()
        assert [job.state for job in jobs] == ["cancelled", "cancelled"]
        assert jobs[0].process._process.returncode is not None
        assert (await client.post(f"{URL}/jobs", json=SMALL)).status_code == 503
    assert list(tmp_path.glob("*")) == []


@pytest.mark.parametrize(
    ("spec", "status", "said"),
    [
        ({}, 400, "kind"),
        ({"kind": "paint"}, 400, "paint"),
        ({"kind": "replay"}, 400, "samples"),
        ({"kind": "replay", "samples": ["../secret"]}, 400, "does not offer"),
        ({"kind": "replay", "samples": ["sql"], "tokenizer": "/etc/passwd"}, 400, "tokenizer"),
        ({"kind": "replay", "samples": ["sql"], "cost_model": "/etc/passwd"}, 400, "cost model"),
        ({"kind": "replay", "samples": ["sql"], "methods": ["eagle"]}, 400, "methods"),
        (
            {"kind": "replay", "samples": ["sql"], "methods": [{"method": "hybrid", "model": "m"}]},
            400,
            "with a model",
        ),
        ({"kind": "replay", "samples": ["sql"], "methods": ["none", "none"]}, 400, "twice"),
        ({"kind": "replay", "samples": ["sql"], "methods": [{"colour": 1}]}, 400, "colour"),
        ({"kind": "replay", "samples": ["sql"], "concurrency": 0}, 400, "concurrency"),
        ({"kind": "replay", "samples": ["sql"], "colour": 1}, 400, "colour"),
        ({"kind": "tuning", "samples": ["sql"], "trials": 3}, 400, "trials"),
        ({"kind": "replay", "traces": ["traces-0"]}, 404, "traces-0"),
    ],
)
async def test_bad_jobs_are_refused(
    client: httpx.AsyncClient, runtime: Runtime, spec: dict[str, Any], status: int, said: str
) -> None:
    answer = await client.post(f"{URL}/jobs", json=spec, headers=ONE)
    assert answer.status_code == status, answer.text
    assert said in answer.text
    assert runtime.jobs.of("one") == []


async def test_uploads_are_bounded(client: httpx.AsyncClient, tmp_path: Path) -> None:
    async def send(size: int, headers: dict[str, str] = ONE) -> int:
        async def body() -> AsyncIterator[bytes]:
            for _ in range(size // 1000):
                yield b"x" * 1000

        answer = await client.post(f"{URL}/traces", content=body(), headers=headers)
        return answer.status_code

    assert await send(0) == 400
    assert await send(300_000) == 413
    assert await send(150_000) == 201
    assert await send(60_000) == 413
    assert await send(60_000, TWO) == 201
    assert await send(1000) == 201
    assert await send(1000) == 201
    assert await send(1000) == 429
    assert len(list(tmp_path.glob("jobs/*/traces/*"))) == 4


async def test_other_web_sites_are_kept_out(client: httpx.AsyncClient) -> None:
    headers = ONE | {"Sec-Fetch-Site": "cross-site"}
    answer = await client.post(f"{URL}/jobs", json=SMALL, headers=headers)
    assert answer.status_code == 403
    open_runtime = Runtime(ServiceConfig())
    transport = httpx.ASGITransport(create_app(open_runtime))
    for host, status in (("127.0.0.1:8000", 200), ("[::1]:8000", 200), ("evil.example", 403)):
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as other:
            answer = await other.get(f"{URL}/jobs", headers={"Host": host})
            assert answer.status_code == status, host
    await open_runtime.close()
