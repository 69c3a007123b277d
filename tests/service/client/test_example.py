from __future__ import annotations

import asyncio
import importlib.util
import re
from pathlib import Path

import pytest

from tests.service.grpc_service import running

EXAMPLE = Path(__file__).parents[3] / "examples" / "grpc_drafting.py"


async def test_the_toy_engine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location("grpc_drafting", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, "grpc_drafting", module)  # for dataclasses
    spec.loader.exec_module(module)
    async with running() as service:
        await asyncio.to_thread(module.main, service.address)
        assert service.live == (0, 0, 0)
        assert len(service.records) == 5
    rates = [
        float(rate) for rate in re.findall(r"([\d.]+) tokens per step", capsys.readouterr().out)
    ]
    assert len(rates) == 2
    assert rates[1] > 1.5
