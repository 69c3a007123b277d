"""The jobs of a service: queued, run one after the other, watched, cancelled, forgotten."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import shutil
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from suffixspec_index.errors import (
    ConfigError,
    LimitExceededError,
    LookupFailure,
    UnavailableError,
)
from suffixspec_service.jobs.process import JobProcess
from suffixspec_service.jobs.spec import ReplaySpec, TuningSpec, sample_files
from suffixspec_service.jobs.uploads import Upload, Uploads
from suffixspec_service.logs import get_logger

_log = get_logger(__name__)

State = Literal["queued", "running", "completed", "failed", "cancelled"]
ENDED = frozenset({"completed", "failed", "cancelled"})
_SAID = ("stage", "done", "total", "error")


@dataclass(frozen=True, slots=True)
class JobsConfig:
    """How much jobs may use.

    Attributes:
        running: jobs at once, over all tenants.
        per_tenant: jobs of one tenant that are kept; the oldest ended ones are forgotten.
        queued_per_tenant: jobs of one tenant that have not ended.
        upload_bytes, upload_files: traces of one tenant that are kept.
        upload_keep_s: how long traces wait for a job.
        keep_s: how long results are kept.
        time_limit_s: a job that takes longer is ended.
        memory_bytes: address space of a job's process; ``None``: no limit.
        tokenizers: those that jobs may name, and what each is loaded from.
        folder: where jobs keep their files; ``None``: a temporary folder of their own.
    """

    running: int = 1
    per_tenant: int = 20
    queued_per_tenant: int = 4
    upload_bytes: int = 256 * 2**20
    upload_files: int = 50
    upload_keep_s: float = 3600.0
    keep_s: float = 24 * 3600.0
    time_limit_s: float = 3600.0
    memory_bytes: int | None = 16 * 2**30
    tokenizers: Mapping[str, str] = field(default_factory=lambda: {"smollm2": "smollm2"})
    folder: Path | None = None


@dataclass(slots=True, eq=False)
class Job:
    """One job. ``version`` grows with every change, so that watchers know what they have seen."""

    job_id: str
    tenant: str
    spec: ReplaySpec | TuningSpec
    folder: Path
    uploads: list[Upload]
    created_at: float
    state: State = "queued"
    started_at: float | None = None
    ended_at: float | None = None
    stage: str = ""
    done: int = 0
    total: int | None = None
    error: str | None = None
    version: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    process: JobProcess | None = None
    cancelled: bool = False

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen."""
        return self.state in ENDED

    @property
    def result_path(self) -> Path:
        """Where the result lies, if there is one."""
        return self.folder / "result.json"

    def change(self, **values: Any) -> None:
        """Set fields and wake whoever watches."""
        for name, value in values.items():
            setattr(self, name, value)
        self.version += 1
        self.changed.set()
        self.changed = asyncio.Event()

    def describe(self) -> dict[str, Any]:
        """JSON values: everything but the result."""
        return {
            "id": self.job_id,
            "object": "speculation.job",
            "kind": self.spec.kind,
            "tenant": self.tenant,
            "state": self.state,
            "created_at": self.created_at,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "progress": {"stage": self.stage, "done": self.done, "total": self.total},
            "error": self.error,
            "has_result": self.ended and self.result_path.is_file(),
            "spec": self.spec.model_dump(mode="json"),
        }


class Jobs:
    """All jobs of a process. To be used in one event loop only.

    A job belongs to the tenant who submitted it, and nobody else learns of it.
    """

    def __init__(self, config: JobsConfig | None = None) -> None:
        self.config = config or JobsConfig()
        self.samples = sample_files()
        self._folder: Path | None = None
        self._uploads: Uploads | None = None
        self._jobs: dict[str, Job] = {}
        self._queue: deque[Job] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    # -- files ---------------------------------------------------------------------------------

    @property
    def uploads(self) -> Uploads:
        """The traces that callers sent."""
        if self._uploads is None:
            folder = self._root() / "traces"
            folder.mkdir()
            self._uploads = Uploads(
                folder,
                max_bytes=self.config.upload_bytes,
                max_files=self.config.upload_files,
                keep_s=self.config.upload_keep_s,
            )
        return self._uploads

    def _root(self) -> Path:
        """Made when it is first needed; nobody but this user may look into it."""
        if self._folder is None:
            parent = self.config.folder
            if parent is not None:
                parent.mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(prefix="suffixspec-jobs-", dir=parent))
        return self._folder

    # -- callers -------------------------------------------------------------------------------

    def submit(self, tenant: str, spec: ReplaySpec | TuningSpec) -> Job:
        """Queue a job.

        Raises:
            ConfigError: it names a sample or tokenizer that is not offered, or no traces.
            LookupFailure: it names traces that are not there.
            LimitExceededError: the tenant has too many jobs that have not ended.
            UnavailableError: the service stops.
        """
        if self._closed:
            raise UnavailableError("the service is stopping; come again")
        self.expire()
        spec.check_sources()
        tokenizer = _offered(self.config.tokenizers, spec.tokenizer, "tokenizer")
        samples = [_offered(self.samples, name, "samples") for name in spec.samples]
        uploads = [self.uploads.get(tenant, upload_id) for upload_id in spec.traces]
        own = [job for job in self._jobs.values() if job.tenant == tenant]
        if sum(not job.ended for job in own) >= self.config.queued_per_tenant:
            raise LimitExceededError(
                f"jobs: {self.config.queued_per_tenant} have not ended yet, which is the most; "
                "wait or cancel one",
                retry_after=30,
            )
        for job in [job for job in own if job.ended][: len(own) + 1 - self.config.per_tenant]:
            self._forget(job)
        job_id = f"job-{secrets.token_hex(8)}"
        folder = self._root() / job_id
        folder.mkdir()
        task = {
            "spec": spec.model_dump(mode="json"),
            "paths": [*map(str, samples), *(str(upload.path) for upload in uploads)],
            "names": [*spec.samples, *(upload.name for upload in uploads)],
            "tokenizer": tokenizer,
            "memory_bytes": self.config.memory_bytes,
        }
        (folder / "task.json").write_text(json.dumps(task), encoding="utf-8")
        self.uploads.hold(uploads)
        job = Job(job_id, tenant, spec, folder, uploads, time.time())
        self._jobs[job_id] = job
        self._queue.append(job)
        self._start_next()
        return job

    def get(self, tenant: str, job_id: str) -> Job:
        """A tenant's job.

        Raises:
            LookupFailure: there is none.
        """
        self.expire()
        job = self._jobs.get(job_id)
        if job is None or job.tenant != tenant:
            raise LookupFailure(f"jobs: there is no {job_id!r}")
        return job

    def of(self, tenant: str) -> list[Job]:
        """A tenant's jobs, latest first."""
        self.expire()
        return [job for job in reversed(self._jobs.values()) if job.tenant == tenant]

    def result(self, tenant: str, job_id: str, name: str = "result.json") -> Path:
        """The file of an ended job's result, or of its report.

        Raises:
            LookupFailure: there is no such job, or it has no result (yet).
        """
        job = self.get(tenant, job_id)
        path = job.folder / name
        if not job.ended or not path.is_file():
            raise LookupFailure(f"jobs: {job_id!r} is {job.state} and has no result")
        return path

    async def events(self, job: Job, *, beat_s: float = 15.0) -> AsyncIterator[dict[str, Any]]:
        """What :meth:`Job.describe` says: now, after every change, and every ``beat_s`` seconds,
        until the job has ended."""
        while True:
            changed = job.changed
            yield job.describe()
            if job.ended:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(beat_s):
                    await changed.wait()

    async def cancel(self, tenant: str, job_id: str) -> Job:
        """End a job; what it found until then may still be there.

        Raises:
            LookupFailure: there is none.
        """
        job = self.get(tenant, job_id)
        if job.ended:
            return job
        job.cancelled = True
        if job.process is not None:
            await job.process.end()
        elif job in self._queue:
            self._queue.remove(job)
            self._end(job, "cancelled")
        while not job.ended:
            await job.changed.wait()
        return job

    async def delete(self, tenant: str, job_id: str) -> None:
        """End a job and forget it with its files.

        Raises:
            LookupFailure: there is none.
        """
        self._forget(await self.cancel(tenant, job_id))

    def counts(self) -> dict[tuple[str, str], int]:
        """Jobs that are kept, by kind and state. May be called from any thread."""
        counts: dict[tuple[str, str], int] = {}
        for job in list(self._jobs.values()):
            key = (job.spec.kind, job.state)
            counts[key] = counts.get(key, 0) + 1
        return counts

    # -- life ----------------------------------------------------------------------------------

    def expire(self) -> None:
        """Forget results that are too old."""
        oldest = time.time() - self.config.keep_s
        for job in list(self._jobs.values()):
            if job.ended_at is not None and job.ended_at < oldest:
                self._forget(job)

    async def close(self) -> None:
        """End all jobs and delete all files. May be called twice."""
        self._closed = True
        for job in list(self._queue):
            job.cancelled = True
            self._end(job, "cancelled")
        self._queue.clear()
        for job in self._jobs.values():
            if job.process is not None and not job.ended:
                job.cancelled = True
                await job.process.end()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._jobs.clear()
        folder, self._folder, self._uploads = self._folder, None, None
        if folder is not None:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    def _start_next(self) -> None:
        while self._queue and len(self._tasks) < self.config.running:
            job = self._queue.popleft()
            task = asyncio.create_task(self._run(job), name=f"suffixspec-{job.job_id}")
            self._tasks.add(task)
            task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._closed:
            self._start_next()

    async def _run(self, job: Job) -> None:
        job.change(state="running", started_at=time.time(), stage="starting")
        _log.info("job_started", job=job.job_id, kind=job.spec.kind, tenant=job.tenant)
        try:
            job.process = await JobProcess.start(job.folder)
            if job.cancelled:
                await job.process.end()
            async with asyncio.timeout(self.config.time_limit_s):
                async for said in job.process.progress():
                    job.change(
                        **{k: said[k] for k in ("stage", "done", "total", "error") if k in said}
                    )
                code = await job.process.wait()
        except TimeoutError:
            code = None
            job.error = f"the job took longer than {self.config.time_limit_s:g} s and was ended"
        except Exception as error:  # whatever it is, the job must not stay open
            _log.error("job_broke", job=job.job_id, exc_info=error)
            code, job.error = None, "the job's process could not be run; it has been logged"
        finally:
            if job.process is not None:
                await job.process.end()
        if job.cancelled:
            self._end(job, "cancelled")
        elif code == 0 and job.result_path.is_file():
            self._end(job, "completed")
        else:
            if job.error is None:
                words = job.process.last_words() if job.process is not None else ""
                _log.error("job_died", job=job.job_id, code=code, stderr=words)
                job.error = "the job's process ended unexpectedly; it has been logged"
            self._end(job, "failed")

    def _end(self, job: Job, state: State) -> None:
        job.change(state=state, ended_at=time.time())
        self.uploads.release(job.uploads)
        _log.info("job_ended", job=job.job_id, kind=job.spec.kind, tenant=job.tenant, state=state)

    def _forget(self, job: Job) -> None:
        self._jobs.pop(job.job_id, None)
        with contextlib.suppress(OSError):
            shutil.rmtree(job.folder)


def _offered(offered: Mapping[str, Any], name: str, field_name: str) -> Any:
    found = offered.get(name)
    if found is None:
        known = ", ".join(sorted(offered)) or "none"
        raise ConfigError(f"{field_name}: this service does not offer {name!r}; known are: {known}")
    return found
