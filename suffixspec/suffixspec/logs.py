"""Structured logging to standard error, so that standard output holds results only."""

from __future__ import annotations

import logging
import sys

import structlog

from suffixspec.settings import LogSettings


def configure_logging(settings: LogSettings) -> None:
    """Send structlog's events to standard error, as text or as one JSON object per line."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: list[structlog.typing.Processor]
    if settings.format == "json":
        renderer = [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()]
    else:
        renderer = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    structlog.configure(
        processors=[*shared, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[settings.level.upper()]
        ),
        # Asked for anew each time: whoever runs a command may put another stream in its place.
        logger_factory=lambda *_: structlog.PrintLogger(file=sys.stderr),
        cache_logger_on_first_use=False,  # --verbose and tests configure again
    )
