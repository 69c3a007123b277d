"""suffixspec's verification engine: exact speculative generation with torch and transformers.

    from suffixspec_engine import Engine, SamplingParams

    with Engine("smollm2", speculative={"method": "suffix"}) as engine:
        print(engine.generate(["Once upon a time"], SamplingParams(temperature=0))[0].text)

Names are imported on first use: torch is not loaded before it is needed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from suffixspec_engine.engine import Engine
    from suffixspec_engine.engine_config import EngineConfig
    from suffixspec_engine.grammar import GrammarSpec
    from suffixspec_engine.models import TargetModel, load_model
    from suffixspec_engine.request import RequestOutput, StepEvent
    from suffixspec_engine.sampling import SamplingParams
    from suffixspec_engine.streams import BlockingStream, RequestStream

_HOMES = {
    "BlockingStream": "streams",
    "Engine": "engine",
    "EngineConfig": "engine_config",
    "GrammarSpec": "grammar",
    "RequestOutput": "request",
    "RequestStream": "streams",
    "SamplingParams": "sampling",
    "StepEvent": "request",
    "TargetModel": "models",
    "load_model": "models",
}

__all__ = [
    "BlockingStream",
    "Engine",
    "EngineConfig",
    "GrammarSpec",
    "RequestOutput",
    "RequestStream",
    "SamplingParams",
    "StepEvent",
    "TargetModel",
    "load_model",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
