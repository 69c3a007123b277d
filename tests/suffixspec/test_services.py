"""From settings to the parts of a service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from suffixspec.services import make_runtime, service_config
from suffixspec.settings import load_settings
from suffixspec_index.errors import ConfigError
from suffixspec_index.sharing import SharingConfig

pytest.importorskip("fastapi")
pytest.importorskip("grpc")


async def test_sharing_is_as_configured(tmp_path: Path) -> None:
    given = {"resend_bytes": 1 << 20, "resend_within": 0.5, "retention": 604800.0, "linger": 0.01}
    flags: dict[str, Any] = {f"service.sharing.{name}": value for name, value in given.items()}
    flags |= {"service.model": None, "service.data_dir": str(tmp_path)}
    settings = load_settings(flags=flags).settings
    runtime = make_runtime(settings, service_config(settings), drafts_only=True)
    try:
        assert runtime.sharing is not None
        assert runtime.sharing.config == SharingConfig(**given)  # type: ignore[arg-type]
    finally:
        await runtime.close()


def test_wrong_sharing_is_found_before_a_model_is_loaded(tmp_path: Path) -> None:
    flags = {"service.sharing.resend_within": -1, "service.model": str(tmp_path / "none")}
    settings = load_settings(flags=flags).settings
    with pytest.raises(ConfigError, match=r"service\.sharing\.resend_within: must be from 0"):
        make_runtime(settings, service_config(settings))
