"""The process of one job: started, listened to, ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

_GRACE_S = 5.0
_LONGEST_LINE = 1 << 16
_LAST_WORDS = 4000


class JobProcess:
    """A worker under way. Its errors go to a file beside its results."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self._process, self._folder = process, folder

    @classmethod
    async def start(cls, folder: Path) -> JobProcess:
        """Begin the job that lies in a folder."""
        with (folder / "stderr").open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "suffixspec_service.jobs.worker",
                str(folder),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                limit=_LONGEST_LINE,
                start_new_session=True,  # Ctrl-C is for the service, which then ends its jobs
            )
        return cls(process, folder)

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """What the worker says, until it ends; lines that are no JSON object are left out."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if isinstance(said, dict):
                yield said

    async def wait(self) -> int:
        """The exit code."""
        return await self._process.wait()

    async def end(self) -> None:
        """Ask the worker to end, and make it. May be called at any moment, more than once."""
        if self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(_GRACE_S):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    def last_words(self) -> str:
        """The end of what it wrote to standard error."""
        with contextlib.suppress(OSError):
            return (self._folder / "stderr").read_bytes()[-_LAST_WORDS:].decode("utf-8", "replace")
        return ""
