"""``suffixspec.v1.Generation``: the engine's events as a stream."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np

from suffixspec_index.errors import ConfigError, GenerationError, InputError
from suffixspec_service.drafting.messages import Tokens, as_tokens
from suffixspec_service.rpc.generated import generation_pb2 as pb
from suffixspec_service.rpc.generated import generation_pb2_grpc as pb_grpc
from suffixspec_service.rpc.interceptors import caller

if TYPE_CHECKING:
    from suffixspec_engine.metrics import RequestMetrics
    from suffixspec_engine.request import StepEvent
    from suffixspec_engine.sampling import SamplingParams
    from suffixspec_service.runtime import Runtime


class GenerationServicer(pb_grpc.GenerationServicer):
    """See ``generation.proto``. Errors are turned into statuses by the interceptors."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def Generate(
        self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.GenerateEvent]:
        """Generates; a call that ends early, by its deadline too, ends the request in the
        engine."""
        self._check_model(request.model)
        from suffixspec_service.generation import Generation, GenerationRequest

        wanted = GenerationRequest(
            api="grpc",
            request_id=f"gen-{uuid.uuid4().hex}",
            prompt=await self._prompt(request),
            params=(sampling_params(request.sampling),),
            session_name=request.session or None,
            prediction=await self._prediction(request),
            max_draft=request.max_draft if request.HasField("max_draft") else None,
        )
        async with Generation(self._runtime, caller(), wanted) as generation:
            async for _, event in generation:
                yield event_message(event, generation.metrics[0])

    def _check_model(self, name: str) -> None:
        model = self._runtime.model
        if model is None:
            raise ConfigError("model: this service drafts for other engines and runs no model")
        if name and name != model.name:
            raise InputError(f"model: {name!r} is not served; {model.name!r} is")

    async def _prompt(self, request: pb.GenerateRequest) -> Tokens:
        if request.WhichOneof("prompt") == "token_ids":
            return as_tokens(request.token_ids, "token_ids")
        if request.WhichOneof("prompt") is None:
            raise InputError("prompt: is missing; give text or token_ids")
        return await self._encoded(request.text)

    async def _prediction(self, request: pb.GenerateRequest) -> Tokens | None:
        kind = request.WhichOneof("prediction")
        if kind == "prediction_text":
            return await self._encoded(request.prediction_text)
        if kind == "prediction_token_ids":
            return as_tokens(request.prediction_token_ids, "prediction_token_ids")
        return None

    async def _encoded(self, text: str) -> Tokens:
        engine = self._runtime.engine
        assert engine is not None
        return await self._runtime.in_pool(engine.encode, text)


def sampling_params(message: pb.SamplingParameters) -> SamplingParams:
    """The engine's parameters.

    Raises:
        ConfigError: a value is out of range; names it.
    """
    from suffixspec_engine.sampling import SamplingParams

    given = {field.name: value for field, value in message.ListFields() if field.has_presence}
    return SamplingParams(
        **({"max_tokens": None} | given),
        stop=tuple(message.stop),
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        logit_bias=dict(message.logit_bias),
    )


def event_message(event: StepEvent, metrics: RequestMetrics) -> pb.GenerateEvent:
    """What a step gained.

    Raises:
        GenerationError: the request failed.
    """
    if event.finish_reason in ("error", "cancelled"):
        raise GenerationError(f"generation: {event.stop_reason or event.finish_reason}")
    message = pb.GenerateEvent(
        token_ids=np.array(event.token_ids, "<i4").tobytes(),
        sources=bytes(event.sources),
        text=event.text,
    )
    if event.finish_reason is None:
        return message
    message.finish_reason = event.finish_reason
    if isinstance(event.stop_reason, str):
        message.stop_string = event.stop_reason
    elif event.stop_reason is not None:
        message.stop_token_id = event.stop_reason
    message.usage.CopyFrom(
        pb.GenerateUsage(
            prompt_tokens=metrics.prompt_tokens,
            cached_tokens=metrics.cached_tokens,
            output_tokens=metrics.output_tokens,
            steps=metrics.steps,
            steps_with_draft=metrics.draft_steps,
            drafted=metrics.drafted,
            accepted=metrics.accepted,
        )
    )
    return message
