"""Trace files that callers send before they start a job with them. Bounded, and not for long."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import AsyncIterable
from dataclasses import dataclass
from pathlib import Path

from suffixspec_index.errors import InputError, LimitExceededError, LookupFailure, TooLargeError

_NAME = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Upload:
    """A file of a tenant's."""

    upload_id: str
    tenant: str
    name: str
    path: Path
    size: int
    at: float

    def describe(self) -> dict[str, object]:
        """JSON values."""
        return {"id": self.upload_id, "name": self.name, "bytes": self.size, "created_at": self.at}


class Uploads:
    """The files that wait for a job or belong to one.

    Args:
        folder: where they lie; made by the caller.
        max_bytes: of one tenant, over all files.
        max_files: of one tenant.
        keep_s: a file that no job uses is deleted after so many seconds.
    """

    def __init__(self, folder: Path, *, max_bytes: int, max_files: int, keep_s: float) -> None:
        self._folder = folder
        self._max_bytes, self._max_files, self._keep_s = max_bytes, max_files, keep_s
        self._files: dict[str, Upload] = {}
        self._held: dict[str, int] = {}
        self._receiving: dict[str, int] = {}

    async def receive(self, tenant: str, name: str, chunks: AsyncIterable[bytes]) -> Upload:
        """Store what a caller sends. Nothing is left behind if it breaks off.

        Raises:
            InputError: it is empty.
            LimitExceededError: the tenant has as many files as it may.
            TooLargeError: the tenant's files would be larger than they may be.
        """
        self.expire()
        own = [u for u in self._files.values() if u.tenant == tenant]
        if len(own) + self._receiving.get(tenant, 0) >= self._max_files:
            raise LimitExceededError(
                f"traces: there are {len(own)} files already, which is the most; delete some",
                retry_after=60,
            )
        upload_id = f"traces-{secrets.token_hex(8)}"
        # The suffix stays, because readers look at it; nothing else of the caller's does.
        clean = _NAME.sub("_", Path(name).name).lstrip(".")[-80:] or "traces.jsonl"
        path = self._folder / f"{upload_id}-{clean}"
        room = self._max_bytes - sum(u.size for u in own)
        self._receiving[tenant] = self._receiving.get(tenant, 0) + 1
        try:
            size = await _write(path, chunks, room)
            upload = Upload(upload_id, tenant, clean, path, size, time.time())
            self._files[upload_id] = upload
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            self._receiving[tenant] -= 1
            if not self._receiving[tenant]:
                del self._receiving[tenant]
        return upload

    def get(self, tenant: str, upload_id: str) -> Upload:
        """A tenant's file.

        Raises:
            LookupFailure: there is none.
        """
        upload = self._files.get(upload_id)
        if upload is None or upload.tenant != tenant:
            raise LookupFailure(f"traces: there is no {upload_id!r}; upload it again")
        return upload

    def of(self, tenant: str) -> list[Upload]:
        """A tenant's files, in order."""
        self.expire()
        return [upload for upload in self._files.values() if upload.tenant == tenant]

    def hold(self, uploads: list[Upload]) -> None:
        """A job needs these: they stay until :meth:`release`."""
        for upload in uploads:
            self._held[upload.upload_id] = self._held.get(upload.upload_id, 0) + 1

    def release(self, uploads: list[Upload]) -> None:
        """A job needs these no more."""
        for upload in uploads:
            self._held[upload.upload_id] -= 1
            if not self._held[upload.upload_id]:
                del self._held[upload.upload_id]

    def delete(self, tenant: str, upload_id: str) -> None:
        """Delete a file.

        Raises:
            LookupFailure: there is none.
            InputError: a job reads it.
        """
        upload = self.get(tenant, upload_id)
        if upload_id in self._held:
            raise InputError(f"traces: a job reads {upload_id!r}; cancel the job first")
        self._forget(upload)

    def expire(self) -> None:
        """Delete what nobody used for too long."""
        oldest = time.time() - self._keep_s
        for upload in list(self._files.values()):
            if upload.at < oldest and upload.upload_id not in self._held:
                self._forget(upload)

    def _forget(self, upload: Upload) -> None:
        del self._files[upload.upload_id]
        upload.path.unlink(missing_ok=True)


async def _write(path: Path, chunks: AsyncIterable[bytes], room: int) -> int:
    """Write to a new file; how much. Chunks are small and go to the page cache, which takes
    microseconds."""
    size = 0
    with path.open("xb") as file:
        async for chunk in chunks:
            size += len(chunk)
            if size > room:
                raise TooLargeError(
                    f"traces: the file is larger than the {room:,} bytes that are left for this "
                    "caller; send less, compress it (gzip, zstd), or delete other files"
                )
            file.write(chunk)
    if not size:
        raise InputError("traces: the body is empty; send the trace file as it is")
    return size
