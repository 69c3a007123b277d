"""The files of the page, read once. Its style is the reports' style and what comes on top."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file as it is sent."""

    name: str
    body: bytes
    media_type: str
    etag: str

    @classmethod
    def read(cls, file: Traversable) -> Asset:
        """Read a packaged file."""
        body = file.read_bytes()
        digest = hashlib.blake2b(body, digest_size=12).hexdigest()
        return cls(file.name, body, _TYPES[file.name.rpartition(".")[2]], f'"{digest}"')


def _read_all() -> dict[str, Asset]:
    own = resources.files("suffixspec_service.dashboard").joinpath("assets")
    report = resources.files("suffixspec_traces.report").joinpath("assets", "report.css")
    files = [*own.iterdir(), report]
    return {f.name: Asset.read(f) for f in files if f.name.rpartition(".")[2] in _TYPES}


ASSETS = _read_all()
"""By name. Nothing else can be asked for."""
