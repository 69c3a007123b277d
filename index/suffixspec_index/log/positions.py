"""Positions of logs that number their records: ``<epoch>.<records before>``.

The epoch is drawn when a log is created, so that a position of another log, or of one that was
deleted and made anew, is recognised and not mistaken for a place in this one.
"""

from __future__ import annotations

import secrets

from suffixspec_index.errors import InputError
from suffixspec_index.log.base import START


def new_epoch() -> str:
    """Sixteen random hex digits."""
    return secrets.token_hex(8)


def position_of(epoch: str, ordinal: int) -> str:
    """The position after record ``ordinal`` (they count from 1)."""
    return f"{epoch}.{ordinal}"


def ordinal_of(position: str, epoch: str, last: int) -> int | None:
    """The last record before a position; ``None`` where it is none of this log's.

    Raises:
        InputError: it is no text.
    """
    if position == START:
        return 0
    if not isinstance(position, str):
        raise InputError(f"position: must be what the log gave, got {position!r}")
    name, dot, digits = position.partition(".")
    if not dot or name != epoch or not digits.isdecimal():
        return None
    ordinal = int(digits)
    return ordinal if ordinal <= last else None
