import json

import pytest
import structlog

from suffixspec.logs import configure_logging
from suffixspec.settings import LogSettings


def test_text_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogSettings(level="info"))
    log = structlog.get_logger()
    log.debug("hidden")
    log.info("loaded", sessions=3)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "loaded" in captured.err
    assert "sessions=3" in captured.err
    assert "hidden" not in captured.err


def test_json_is_one_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogSettings(level="debug", format="json"))
    structlog.get_logger().warning("slow", ms=4)
    event = json.loads(capsys.readouterr().err)
    assert (event["event"], event["ms"], event["level"]) == ("slow", 4, "warning")
    assert event["timestamp"].endswith("Z")
