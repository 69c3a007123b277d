"""``/v1/models``, and whether a request names the right one."""

from __future__ import annotations

from typing import Any

import numpy as np
from fastapi import APIRouter
from numpy.typing import NDArray

from suffixspec_service.api.callers import AnyRuntime, Caller
from suffixspec_service.api.chat_fields import Prediction
from suffixspec_service.api.problems import ApiError
from suffixspec_service.prompts import PromptBuilder
from suffixspec_service.runtime import Runtime

router = APIRouter(tags=["OpenAI"])


@router.get("/v1/models", responses={401: {"description": "No valid API key."}})
async def list_models(runtime: AnyRuntime, tenant: Caller) -> dict[str, Any]:
    """The model that is served; none where the service only drafts."""
    return {"object": "list", "data": [_described(runtime, name) for name in _names(runtime)]}


@router.get(
    "/v1/models/{model:path}",
    responses={
        401: {"description": "No valid API key."},
        404: {"description": "No such model."},
    },
)
async def retrieve_model(model: str, runtime: AnyRuntime, tenant: Caller) -> dict[str, Any]:
    """One model."""
    check_model(runtime, model)
    return _described(runtime, model)


def check_model(runtime: Runtime, name: str) -> None:
    """Raise :class:`ApiError` (404) unless the service has a model of this name."""
    names = _names(runtime)
    if name not in names:
        served = f"it serves {', '.join(map(repr, names))}" if names else "it runs none"
        raise ApiError(
            f"model: the service has no model {name!r}; {served}",
            status=404,
            param="model",
            code="model_not_found",
        )


def check_prompt(max_model_len: int, prompt: NDArray[np.int32], param: str) -> None:
    """Raise :class:`ApiError` where a prompt is empty or leaves no room for output."""
    if not len(prompt):
        raise ApiError(f"{param}: it is empty; give at least one token", param=param)
    if len(prompt) >= max_model_len:
        raise ApiError(
            f"{param}: {len(prompt)} tokens leave no room for output; the model's length is "
            f"{max_model_len} tokens, so shorten it",
            param=param,
            code="context_length_exceeded",
        )


def session_name(header: str | None, metadata: dict[str, str] | None) -> str | None:
    """The session that a request names: by header, else by ``metadata.session_id``."""
    return header or (metadata or {}).get("session_id") or None


def predicted_tokens(
    prompts: PromptBuilder, prediction: Prediction | None
) -> NDArray[np.int32] | None:
    """The tokens of a predicted output; ``None`` where nothing is predicted."""
    if prediction is None or not prediction.text:
        return None
    return prompts.encode(prediction.text, special=False)


def _names(runtime: Runtime) -> list[str]:
    return [runtime.model.name] if runtime.engine is not None and runtime.model else []


def _described(runtime: Runtime, name: str) -> dict[str, Any]:
    assert runtime.engine is not None
    return {
        "id": name,
        "object": "model",
        "created": int(runtime.started_at),
        "owned_by": "suffixspec",
        "max_model_len": runtime.engine.model.max_model_len,
    }
