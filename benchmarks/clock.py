"""The one clock of all rows."""

from __future__ import annotations

import time

clock = time.thread_time
"""Seconds of processor time of the calling thread, which does all the work on both sides.

Not wall-clock time: what a neighbour on a shared machine takes away would be counted as ours or as
the peer's by chance, and would be all there is to see in a 99th percentile.
"""
