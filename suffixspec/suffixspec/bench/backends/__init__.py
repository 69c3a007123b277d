"""Who serves the requests: an engine in this process, or a server."""

from __future__ import annotations

from suffixspec.bench.backends.base import Backend, Sampling

__all__ = ["Backend", "Sampling"]
