"""Threads of tests. They are made ``daemon=True``, so that a test that failed does not keep the
process alive, and are waited for here, so that one that hangs is a failure and not a pause."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence


def ended(threads: Sequence[threading.Thread], seconds: float = 90.0) -> None:
    """Wait for all of them; fail where one still runs after so many seconds."""
    ends = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, ends - time.monotonic()))
    assert not [thread.name for thread in threads if thread.is_alive()], "still at it"
