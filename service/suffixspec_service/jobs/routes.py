"""``/v1/speculation/jobs`` and ``/v1/speculation/traces``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import FileResponse, Response, StreamingResponse

from suffixspec_service.api.callers import AnyRuntime, Caller
from suffixspec_service.jobs.jobs import Jobs
from suffixspec_service.jobs.spec import REPLAYABLE, JobSpec
from suffixspec_service.same_site import same_site
from suffixspec_traces.cost import DEFAULT_COST_MODEL, cost_model_names

router = APIRouter(prefix="/v1/speculation", tags=["jobs"], dependencies=[Depends(same_site)])

_PAGE_POLICY = "sandbox allow-scripts; default-src 'none'; frame-ancestors 'none'"


async def jobs_of(runtime: AnyRuntime) -> Jobs:
    """The jobs of the application."""
    return runtime.jobs


TheJobs = Annotated[Jobs, Depends(jobs_of)]


@router.get("/jobs/options")
async def options(jobs: TheJobs, caller: Caller) -> dict[str, Any]:
    """What jobs may name: samples, tokenizers, cost models, methods."""
    return {
        "samples": sorted(jobs.samples),
        "tokenizers": sorted(jobs.config.tokenizers),
        "cost_models": list(cost_model_names()),
        "default_cost_model": DEFAULT_COST_MODEL,
        "methods": list(REPLAYABLE),
        "upload_bytes": jobs.config.upload_bytes,
    }


@router.post("/traces", status_code=201)
async def upload(
    request: Request,
    jobs: TheJobs,
    caller: Caller,
    name: Annotated[str, Query(max_length=300)] = "traces.jsonl",
) -> dict[str, Any]:
    """Send a trace file as the body, as it is; compressed or not. The answer holds its id."""
    return (await jobs.uploads.receive(caller.name, name, request.stream())).describe()


@router.get("/traces")
async def list_traces(jobs: TheJobs, caller: Caller) -> dict[str, Any]:
    """The caller's trace files."""
    return {"object": "list", "data": [u.describe() for u in jobs.uploads.of(caller.name)]}


@router.delete("/traces/{upload_id}", status_code=204)
async def delete_traces(upload_id: str, jobs: TheJobs, caller: Caller) -> Response:
    """Delete a trace file."""
    jobs.uploads.delete(caller.name, upload_id)
    return Response(status_code=204)


@router.post("/jobs", status_code=202)
async def submit(spec: JobSpec, jobs: TheJobs, caller: Caller) -> dict[str, Any]:
    """Start a replay or a tuning."""
    return jobs.submit(caller.name, spec).describe()


@router.get("/jobs")
async def list_jobs(jobs: TheJobs, caller: Caller) -> dict[str, Any]:
    """The caller's jobs, latest first."""
    return {"object": "list", "data": [job.describe() for job in jobs.of(caller.name)]}


@router.get("/jobs/{job_id}")
async def get_job(job_id: str, jobs: TheJobs, caller: Caller) -> dict[str, Any]:
    """How far a job is."""
    return jobs.get(caller.name, job_id).describe()


@router.get(
    "/jobs/{job_id}/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def events(job_id: str, jobs: TheJobs, caller: Caller) -> StreamingResponse:
    """The same as server-sent events, whenever it changes, until the job has ended."""
    job = jobs.get(caller.name, job_id)

    async def said() -> AsyncIterator[bytes]:
        async for event in jobs.events(job):
            yield b"data: " + orjson.dumps(event) + b"\n\n"
        yield b"data: [DONE]\n\n"

    return StreamingResponse(
        said(),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


@router.get("/jobs/{job_id}/result")
async def result(job_id: str, jobs: TheJobs, caller: Caller) -> FileResponse:
    """The report as JSON, as ``suffixspec replay --json`` or ``suffixspec tune --json`` has it."""
    return FileResponse(jobs.result(caller.name, job_id), media_type="application/json")


@router.get("/jobs/{job_id}/report")
async def report(job_id: str, jobs: TheJobs, caller: Caller) -> FileResponse:
    """The report as one self-contained HTML page."""
    return FileResponse(
        jobs.result(caller.name, job_id, "report.html"),
        media_type="text/html",
        filename=f"{job_id}.html",
        headers={"Content-Security-Policy": _PAGE_POLICY},
    )


@router.post("/jobs/{job_id}/cancel")
async def cancel(job_id: str, jobs: TheJobs, caller: Caller) -> dict[str, Any]:
    """End a job. What it found until then may be there as its result."""
    return (await jobs.cancel(caller.name, job_id)).describe()


@router.delete("/jobs/{job_id}", status_code=204)
async def delete(job_id: str, jobs: TheJobs, caller: Caller) -> Response:
    """End a job and forget it."""
    await jobs.delete(caller.name, job_id)
    return Response(status_code=204)
