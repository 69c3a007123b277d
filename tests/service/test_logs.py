from __future__ import annotations

import logging
import subprocess
import sys

import pytest
import structlog

from suffixspec_service.logs import get_logger

UNCONFIGURED = """
from suffixspec_service.logs import get_logger
log = get_logger("suffixspec_service.test")
log.info("answered", status=200)
log.warning("slow", ms=4)
try:
    raise ValueError("broken")
except ValueError as error:
    log.error("failed", exc_info=error)
"""


def test_nobody_configured_logging() -> None:
    """A program's standard output is its own; what went wrong is told all the same."""
    found = subprocess.run(
        [sys.executable, "-c", UNCONFIGURED], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout == ""
    assert "answered" not in found.stderr
    assert "slow" in found.stderr
    assert "ms=4" in found.stderr
    assert "failed" in found.stderr
    assert "ValueError: broken" in found.stderr


def test_the_standard_librarys_logging(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "suffixspec_service.test")
    get_logger("suffixspec_service.test").info("answered", status=200)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("suffixspec_service.test", "INFO")
    assert "answered" in record.message
    assert "status=200" in record.message


def test_structlog_may_be_configured_later() -> None:
    log = get_logger("suffixspec_service.test")
    with structlog.testing.capture_logs() as logs:
        log.bind(tenant="acme").info("answered", status=200)
    assert logs == [{"event": "answered", "status": 200, "tenant": "acme", "log_level": "info"}]
