"""The engine's public face."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import suffixspec_engine


def test_every_exported_name_is_there_and_nothing_else() -> None:
    assert dir(suffixspec_engine) == sorted(suffixspec_engine.__all__)
    for name in suffixspec_engine.__all__:
        assert getattr(suffixspec_engine, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        suffixspec_engine.nothing  # noqa: B018


def test_importing_it_loads_no_torch() -> None:
    code = "import sys, suffixspec_engine; print('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.strip() == "False"
