"""Where a journal keeps things, and how files are put there so that a crash leaves old or new.

```
FOLDER/
  journal.json              what this is, its version
  lock                      held by the one process that writes
  changes                   a counter that the writer moves, for readers in other processes
  <digest of a namespace>/
    namespace.json          its key, the epoch of its positions
    trimmed.json            up to where the byte budget removed records, how many
    purging.json            a purge that is not finished: it is finished at the next start
    <first ordinal>.seg     segments, see segment.py
```
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from suffixspec_index.errors import (
    InputError,
    LogCorruptError,
    LogFormatError,
    LogRefusedError,
    LogUnavailableError,
)
from suffixspec_index.log.positions import new_epoch
from suffixspec_index.namespaces import NamespaceKey
from suffixspec_index.replacing import sync_folder

VERSION = 1
_FORMAT = "suffixspec journal"
_SUFFIX = ".seg"
_REFUSALS = (PermissionError, NotADirectoryError, IsADirectoryError)


@contextlib.contextmanager
def io_errors(path: Path, what: str) -> Iterator[None]:
    """Turn the system's errors into ours."""
    try:
        yield
    except OSError as error:
        text = f"{path}: cannot be {what}: {error.strerror or error}"
        if isinstance(error, _REFUSALS) or error.errno in _full():
            raise LogRefusedError(f"{text}; check its rights and the disk's space") from error
        raise LogUnavailableError(f"{text}; check the disk") from error


def _full() -> tuple[int, ...]:
    import errno

    return (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


def write_file(path: Path, data: bytes) -> None:
    """Write beside the place, flush to the disk, rename."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """As :func:`write_file`."""
    write_file(path, json.dumps(content, sort_keys=True).encode() + b"\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """What a file holds; ``None`` where there is none.

    Raises:
        LogCorruptError: it is damaged.
    """
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise LogCorruptError(
            f"{path}: is damaged: {error}; restore it from a copy, or remove its folder"
        ) from None
    if not isinstance(content, dict):
        raise LogCorruptError(f"{path}: is damaged: no object; restore it from a copy")
    return content


def prepare_folder(folder: Path, *, read_only: bool) -> None:
    """Make the folder of a journal, or verify that it is one.

    Raises:
        LogFormatError: it is something else, or of another version. LogRefusedError,
        LogUnavailableError: it cannot be used.
    """
    with io_errors(folder, "opened"):
        content = read_json(folder / "journal.json")
        if content is None:
            if read_only:
                raise LogUnavailableError(
                    f"{folder}: there is no journal yet; start who writes it, or check the path"
                )
            strangers = {path.name for path in folder.iterdir()} if folder.exists() else set()
            strangers -= {"lock", "changes", ".journal.json.tmp"}
            if strangers:
                raise LogFormatError(
                    f"{folder}: holds {sorted(strangers)[0]!r} and is no journal; name an empty "
                    "or new folder"
                )
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / "journal.json", {"format": _FORMAT, "version": VERSION})
            return
    if content.get("format") != _FORMAT:
        raise LogFormatError(f"{folder}: journal.json is not of a journal; name another folder")
    if content.get("version") != VERSION:
        raise LogFormatError(
            f"{folder}: is of version {content.get('version')!r}, this program reads version "
            f"{VERSION}; update suffixspec, or name a new folder"
        )


def write_namespace(folder: Path, key: NamespaceKey) -> str:
    """Make the folder of a namespace; returns its epoch."""
    folder.mkdir(exist_ok=True)
    epoch = new_epoch()
    content = {
        "version": VERSION,
        "tenant": key.tenant,
        "model": key.model,
        "tokenizer": key.tokenizer,
        "adapter": key.adapter,
        "epoch": epoch,
    }
    write_json(folder / "namespace.json", content)
    sync_folder(folder.parent)
    return epoch


def read_namespace(folder: Path) -> tuple[NamespaceKey, str] | None:
    """The key and the epoch of a namespace's folder; ``None`` where it is not finished.

    Raises:
        LogCorruptError: what it says is damaged, or stands in the wrong folder.
    """
    content = read_json(folder / "namespace.json")
    if content is None:
        return None
    try:
        key = NamespaceKey(
            content["tenant"], content["model"], content["tokenizer"], content["adapter"]
        )
        epoch = str(content["epoch"])
    except (KeyError, InputError) as error:
        raise LogCorruptError(f"{folder}: namespace.json is damaged: {error}") from None
    if key.digest != folder.name:
        raise LogCorruptError(f"{folder}: holds namespace {key}, which belongs in {key.digest}")
    return key, epoch


def namespace_folders(folder: Path) -> list[Path]:
    """The folders of all namespaces."""
    with io_errors(folder, "listed"), os.scandir(folder) as entries:
        return [Path(e.path) for e in entries if e.is_dir() and len(e.name) == 32]


def segments(folder: Path) -> list[int]:
    """First ordinals of a namespace's segments, rising. Empty for an unknown namespace."""
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise LogUnavailableError(f"{folder}: cannot be listed: {error}; check the disk") from error
    return sorted(
        int(name.removesuffix(_SUFFIX))
        for name in names
        if name.endswith(_SUFFIX) and name.removesuffix(_SUFFIX).isdecimal()
    )


def segment_path(folder: Path, first: int) -> Path:
    """The file of a segment."""
    return folder / f"{first:020d}{_SUFFIX}"


class WriterLock:
    """Held by the one process that writes to a journal; let go when it ends, however it ends.

    Raises:
        LogRefusedError: another process (or another log of this one) writes.
    """

    def __init__(self, folder: Path) -> None:
        try:
            import fcntl
        except ImportError:  # pragma: no cover - not on POSIX systems
            raise LogRefusedError("journal: writing needs file locks of a POSIX system") from None
        path = folder / "lock"
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._file, 200, 0).decode("utf-8", "replace").strip()
            os.close(self._file)
            raise LogRefusedError(
                f"{folder}: is written by {holder or 'another process'}; a journal has one writer: "
                "open it read-only, name another folder, or share through Redis"
            ) from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def release(self) -> None:
        """Let others write."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class ChangeCounter:
    """Eight bytes that processes of one machine see at once: whether anything was written."""

    def __init__(self, folder: Path, *, writable: bool) -> None:
        path = folder / "changes"
        flags = os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY
        file = os.open(path, flags | getattr(os, "O_CLOEXEC", 0), 0o644)
        try:
            if writable and os.fstat(file).st_size < 8:
                os.ftruncate(file, 8)
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            self._map = mmap.mmap(file, 8, access=access)
        finally:
            os.close(file)

    def value(self) -> int:
        """The count now."""
        return int.from_bytes(self._map[:8], "little")

    def move(self) -> None:
        """Count one change. One writer at a time."""
        self._map[:8] = ((self.value() + 1) & (1 << 64) - 1).to_bytes(8, "little")

    def close(self) -> None:
        """Unmap the file."""
        self._map.close()


__all__ = [
    "ChangeCounter",
    "WriterLock",
    "io_errors",
    "namespace_folders",
    "prepare_folder",
    "read_json",
    "read_namespace",
    "segment_path",
    "segments",
    "write_file",
    "write_json",
    "write_namespace",
]
