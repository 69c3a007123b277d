"""Logging that is silent until somebody wants it, as a library's should be.

Whoever configures structlog (as the commands do) gets the service's events there. Without that
they go to the standard library's logging, where a program that configured nothing sees warnings
and errors on standard error and nothing else; structlog's own default would print everything to
standard output, among a program's results.
"""

from __future__ import annotations

import logging
from typing import Any

import structlog


def get_logger(name: str) -> Logger:
    """The logger of a module."""
    return Logger(name)


class Logger:
    """Has structlog's methods (``info("event", key=value)``, ``bind``, ...).

    Where events go is looked up at each call: modules are imported before logging is configured.
    """

    def __init__(self, name: str) -> None:
        self._configured = structlog.get_logger(name)
        self._plain = structlog.wrap_logger(
            logging.getLogger(name),
            processors=[
                structlog.stdlib.filter_by_level,
                structlog.dev.ConsoleRenderer(
                    colors=False, exception_formatter=structlog.dev.plain_traceback
                ),
            ],
            wrapper_class=structlog.stdlib.BoundLogger,
            cache_logger_on_first_use=False,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._configured if structlog.is_configured() else self._plain, name)
