"""Replacing a file in one step: readers see the old one or the new one, after a crash too."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write, beside ``path``. At the end of the block it is flushed to the disk and put
    in the place of ``path``; if the block raises, ``path`` stays as it was, and nothing is left.

    Only its owner can read it; change its mode within the block where others may.

    Raises:
        OSError: it cannot be written.
    """
    temporary: Path | None = None
    try:
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}.", suffix=".tmp", delete=False
        ) as file:
            temporary = Path(file.name)
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        temporary = None
        sync_folder(path.parent)
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def sync_folder(path: Path) -> None:
    """Make renames and removals durable, where folders can be opened (not on Windows)."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
