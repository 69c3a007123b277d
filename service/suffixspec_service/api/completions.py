"""``POST /v1/completions``."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Header, Request
from numpy.typing import NDArray
from pydantic import Field
from starlette.responses import JSONResponse, Response

from suffixspec_engine.sampling import TokenLogprobs
from suffixspec_index.tokens import as_token_array
from suffixspec_service.api import answers, problems
from suffixspec_service.api.answers import ChoiceReader, Identity
from suffixspec_service.api.callers import Caller, ReadyRuntime
from suffixspec_service.api.chat_fields import Prediction
from suffixspec_service.api.fields import SamplingFields, SessionName
from suffixspec_service.api.models import check_model, check_prompt, predicted_tokens, session_name
from suffixspec_service.api.problems import RESPONSES, ApiError
from suffixspec_service.api.reading import reading
from suffixspec_service.api.streams import DONE, event, streamed, unless_gone
from suffixspec_service.callers import Tenant
from suffixspec_service.generation import Generation, GenerationRequest
from suffixspec_service.runtime import Runtime
from suffixspec_service.token_texts import TokenTexts

router = APIRouter(tags=["OpenAI"])

_DEFAULT_MAX_TOKENS = 16  # OpenAI's, for this API


class CompletionRequest(SamplingFields):
    """The body of ``POST /v1/completions``: one prompt, as text or token ids."""

    prompt: str | list[int] | list[str] | list[list[int]]
    echo: bool | None = None
    logprobs: int | None = Field(default=None, ge=0, le=20)
    prediction: Prediction | None = None
    best_of: Literal[1] | None = None
    suffix: None = None

    def single_prompt(self) -> str | list[int]:
        """The prompt.

        Raises:
            ApiError: there are several, or none.
        """
        prompt = self.prompt
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            if len(prompt) > 1:
                raise ApiError(
                    f"prompt: {len(prompt)} prompts in one request are not supported; send one "
                    "request each",
                    param="prompt",
                )
            return prompt[0]
        return prompt  # type: ignore[return-value]


@dataclass(slots=True)
class CompletionCall:
    """A request, read. ``offsets``: where each choice's next token begins in its text."""

    body: CompletionRequest
    generation: GenerationRequest
    identity: Identity
    echoed: str
    texts: TokenTexts | None
    include_metrics: bool
    created: int
    offsets: dict[int, int] = field(default_factory=dict)

    def head(self) -> dict[str, Any]:
        """What every answer and chunk begins with."""
        return {
            "id": self.generation.request_id,
            "object": "text_completion",
            "created": self.created,
            "model": self.identity.model,
            "system_fingerprint": self.identity.fingerprint,
        }

    def logprobs(self, index: int, given: list[TokenLogprobs]) -> dict[str, Any] | None:
        """``logprobs`` of a choice, or of a chunk of it, in this API's shape."""
        if self.texts is None:
            return None
        texts = self.texts
        at = self.offsets.get(index, len(self.echoed))
        offsets = []
        for one in given:
            offsets.append(at)
            at += len(texts.text_of(one.token_id))
        self.offsets[index] = at
        return {
            "tokens": [texts.text_of(one.token_id) for one in given],
            "token_logprobs": [max(one.logprob, -9999.0) for one in given],
            "top_logprobs": [
                {texts.text_of(i): max(p, -9999.0) for i, p in one.top} for one in given
            ],
            "text_offset": offsets,
        }


@router.post(
    "/v1/completions",
    responses=RESPONSES,
    summary="Let the model continue a text",
)
async def create_completion(
    request: Request,
    body: CompletionRequest,
    runtime: ReadyRuntime,
    tenant: Caller,
    x_session_id: Annotated[SessionName | None, Header()] = None,
    x_include_metrics: Annotated[bool, Header()] = False,
) -> Response:
    """As OpenAI does it; ``"stream": true`` sends server-sent events."""
    call = await reading(
        request,
        lambda: read_completion(runtime, body, x_session_id, x_include_metrics),
    )
    if body.stream:
        generation = Generation(runtime, tenant, call.generation)
        return await streamed(generation, partial(_chunks, call), runtime.config.stream_cadence_ms)
    return await unless_gone(request, _answer(call, runtime, tenant))


def read_completion(
    runtime: Runtime, body: CompletionRequest, session: str | None, include_metrics: bool
) -> CompletionCall:
    """Check a request and make its prompt tokens.

    Raises:
        SuffixSpecError: what is wrong with it.
    """
    engine, prompts = runtime.engine, runtime.prompts
    assert engine is not None
    assert prompts is not None
    check_model(runtime, body.model)
    n = body.check_choices(runtime.config.max_choices)
    prompt, text = _prompt(runtime, body.single_prompt())
    check_prompt(engine.model.max_model_len, prompt, "prompt")
    limit = body.max_tokens or _DEFAULT_MAX_TOKENS
    generation = GenerationRequest(
        api="completions",
        request_id=f"cmpl-{secrets.token_hex(12)}",
        prompt=prompt,
        params=[
            body.sampling(max_tokens=limit, logprobs=body.logprobs, choice=i) for i in range(n)
        ],
        session_name=session_name(session, body.metadata),
        prediction=predicted_tokens(prompts, body.prediction),
        max_draft=body.max_draft,
        priority=body.draft_priority,
        grammar=body.structure(),
    )
    return CompletionCall(
        body=body,
        generation=generation,
        identity=Identity.of(runtime),
        echoed=text if body.echo else "",
        texts=TokenTexts(engine.model.tokenizer) if body.logprobs is not None else None,
        include_metrics=include_metrics or bool(body.include_metrics),
        created=int(time.time()),
    )


def _prompt(runtime: Runtime, prompt: str | list[int]) -> tuple[NDArray[np.int32], str]:
    """Token ids, and the text that they read as."""
    assert runtime.prompts is not None
    assert runtime.engine is not None
    if isinstance(prompt, str):
        if not prompt:
            raise ApiError("prompt: it is empty; give at least one token", param="prompt")
        return runtime.prompts.encode(prompt), prompt
    model = runtime.engine.model
    ids = as_token_array(prompt, model.vocab_size, field="prompt")
    text = model.tokenizer.decode(ids.tolist()) if model.tokenizer is not None else ""
    return ids, text


async def _answer(call: CompletionCall, runtime: Runtime, tenant: Tenant) -> Response:
    readers = [ChoiceReader() for _ in call.generation.params]
    async with Generation(runtime, tenant, call.generation) as generation:
        async for index, step in generation:
            readers[index].read(step)
        choices = [
            {
                "index": i,
                "text": call.echoed + reader.text,
                "logprobs": call.logprobs(i, reader.logprobs),
                "finish_reason": reader.finish_reason,
            }
            for i, reader in enumerate(readers)
        ]
        content = call.head() | {"choices": choices, "usage": answers.usage(generation)}
        if call.include_metrics:
            content["metrics"] = answers.speculation(generation.metrics)
        return JSONResponse(content, headers={"X-Session-Id": generation.session_id})


async def _chunks(call: CompletionCall, generation: Generation) -> AsyncIterator[bytes]:
    head = call.head()
    if call.body.wants_usage:
        head["usage"] = None

    def chunk(index: int, text: str, **others: Any) -> bytes:
        choice = {"index": index, "text": text, "logprobs": None, "finish_reason": None}
        return event(head | {"choices": [choice | others]})

    readers = [ChoiceReader() for _ in call.generation.params]
    try:
        if call.echoed:
            for index in range(len(readers)):
                yield chunk(index, call.echoed)
        async for index, step in generation:
            said = len(readers[index].text)
            readers[index].read(step)
            text = readers[index].text[said:]
            logprobs = call.logprobs(index, list(step.logprobs)) if step.logprobs else None
            if text or logprobs or step.finish_reason is not None:
                yield chunk(
                    index, text, logprobs=logprobs, finish_reason=readers[index].finish_reason
                )
        last: dict[str, Any] = {}
        if call.body.wants_usage:
            last["usage"] = answers.usage(generation)
        if call.include_metrics:
            last["metrics"] = answers.speculation(generation.metrics)
        if last:
            yield event(head | {"choices": []} | last)
        yield DONE
    except Exception as error:  # the status is sent already, so the error goes into the stream
        yield event(problems.in_stream(error))
