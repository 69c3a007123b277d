"""Which version this is."""

from __future__ import annotations

import importlib.metadata
from functools import cache


@cache
def version() -> str:
    """Of the installed distribution. Looking it up reads and parses a file, so it is done once."""
    return importlib.metadata.version("suffixspec")
