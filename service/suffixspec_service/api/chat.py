"""``POST /v1/chat/completions``."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from starlette.responses import JSONResponse, Response

from suffixspec_engine.sampling import TokenLogprobs
from suffixspec_service.api import answers, problems
from suffixspec_service.api.answers import ChoiceReader, Identity
from suffixspec_service.api.callers import Caller, ReadyRuntime
from suffixspec_service.api.chat_fields import ChatRequest, NamedTool
from suffixspec_service.api.fields import SessionName
from suffixspec_service.api.models import check_model, check_prompt, predicted_tokens, session_name
from suffixspec_service.api.problems import RESPONSES
from suffixspec_service.api.reading import reading
from suffixspec_service.api.streams import DONE, event, streamed, unless_gone
from suffixspec_service.callers import Tenant
from suffixspec_service.generation import Generation, GenerationRequest
from suffixspec_service.runtime import Runtime
from suffixspec_service.token_texts import TokenTexts
from suffixspec_service.tool_calls import CallDelta, Delta

router = APIRouter(tags=["OpenAI"])


@dataclass(frozen=True, slots=True)
class ChatCall:
    """A request, read: what is to be generated, and how it is to be answered."""

    body: ChatRequest
    generation: GenerationRequest
    identity: Identity
    tool_names: tuple[str, ...]
    texts: TokenTexts | None
    include_metrics: bool
    created: int

    @property
    def named(self) -> bool:
        """Whether one function was forced; OpenAI then says ``stop``."""
        return isinstance(self.body.tool_choice, NamedTool)

    def readers(self) -> list[ChoiceReader]:
        """One per choice."""
        return [ChoiceReader(self.tool_names) for _ in self.generation.params]

    def finish_reason(self, reader: ChoiceReader) -> str | None:
        """As OpenAI has it."""
        if self.named and reader.finish_reason == "tool_calls":
            return "stop"
        return reader.finish_reason

    def logprobs(self, given: list[TokenLogprobs]) -> dict[str, Any] | None:
        """``logprobs`` of a choice, or of a chunk of it."""
        return None if self.texts is None else answers.chat_logprobs(self.texts, given)

    def head(self, kind: str) -> dict[str, Any]:
        """What every answer and chunk begins with."""
        return {
            "id": self.generation.request_id,
            "object": kind,
            "created": self.created,
            "model": self.identity.model,
            "system_fingerprint": self.identity.fingerprint,
        }


@router.post(
    "/v1/chat/completions",
    responses=RESPONSES,
    summary="Ask the model for the next message of a conversation",
)
async def create_chat_completion(
    request: Request,
    body: ChatRequest,
    runtime: ReadyRuntime,
    tenant: Caller,
    x_session_id: Annotated[SessionName | None, Header()] = None,
    x_include_metrics: Annotated[bool, Header()] = False,
) -> Response:
    """As OpenAI does it; ``"stream": true`` sends server-sent events."""
    call = await reading(
        request,
        lambda: read_chat(runtime, tenant, body, x_session_id, x_include_metrics),
    )
    if body.stream:
        generation = Generation(runtime, tenant, call.generation)
        return await streamed(generation, partial(_chunks, call), runtime.config.stream_cadence_ms)
    return await unless_gone(request, _answer(call, runtime, tenant))


def read_chat(
    runtime: Runtime,
    tenant: Tenant,
    body: ChatRequest,
    session: str | None,
    include_metrics: bool,
    api: str = "chat",
) -> ChatCall:
    """Check a request and render its prompt. That may take milliseconds.

    Raises:
        SuffixSpecError: what is wrong with it.
    """
    engine, prompts = runtime.engine, runtime.prompts
    assert engine is not None
    assert prompts is not None
    check_model(runtime, body.model)
    n = body.check_choices(runtime.config.max_choices)
    tools = body.offered_tools()
    logprobs = body.logprobs_per_token()
    messages = [message.rendered(i) for i, message in enumerate(body.messages)]
    prompt = prompts.chat(messages, tools, body.chat_template_kwargs, scope=tenant.name)
    check_prompt(engine.model.max_model_len, prompt, "messages")
    params = [
        body.sampling(max_tokens=body.output_limit, logprobs=logprobs, choice=i) for i in range(n)
    ]
    generation = GenerationRequest(
        api=api,
        request_id=f"chatcmpl-{secrets.token_hex(12)}",
        prompt=prompt,
        params=params,
        session_name=session_name(session, body.metadata),
        prediction=predicted_tokens(prompts, body.prediction),
        max_draft=body.max_draft,
        priority=body.draft_priority,
        grammar=body.grammar(tools, prompts.style),
    )
    return ChatCall(
        body=body,
        generation=generation,
        identity=Identity.of(runtime),
        tool_names=tuple(tool.name for tool in tools),
        texts=TokenTexts(engine.model.tokenizer) if logprobs is not None else None,
        include_metrics=include_metrics or bool(body.include_metrics),
        created=int(time.time()),
    )


async def _answer(call: ChatCall, runtime: Runtime, tenant: Tenant) -> Response:
    readers = call.readers()
    async with Generation(runtime, tenant, call.generation) as generation:
        async for index, step in generation:
            readers[index].read(step)
        content = call.head("chat.completion") | {
            "choices": [_choice(call, i, reader) for i, reader in enumerate(readers)],
            "usage": answers.usage(generation),
            "service_tier": "default",
        }
        if call.include_metrics:
            content["metrics"] = answers.speculation(generation.metrics)
        return JSONResponse(content, headers={"X-Session-Id": generation.session_id})


def _choice(call: ChatCall, index: int, reader: ChoiceReader) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": reader.text if reader.text or not reader.calls else None,
        "refusal": None,
    }
    if reader.calls:
        message["tool_calls"] = [
            {
                "id": made["id"],
                "type": "function",
                "function": {"name": made["name"], "arguments": made["arguments"]},
            }
            for made in reader.calls
        ]
    return {
        "index": index,
        "message": message,
        "logprobs": call.logprobs(reader.logprobs),
        "finish_reason": call.finish_reason(reader),
    }


async def _chunks(call: ChatCall, generation: Generation) -> AsyncIterator[bytes]:
    head = call.head("chat.completion.chunk")
    if call.body.wants_usage:
        head["usage"] = None

    def chunk(index: int, delta: dict[str, Any], **others: Any) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return event(head | {"choices": [choice | others]})

    readers = call.readers()
    try:
        for index in range(len(readers)):
            yield chunk(index, {"role": "assistant", "content": "", "refusal": None})
        async for index, step in generation:
            deltas = [_delta(delta) for delta in readers[index].read(step)]
            logprobs = call.logprobs(list(step.logprobs)) if step.logprobs else None
            for number, delta in enumerate(deltas or ([{}] if logprobs else [])):
                yield chunk(index, delta, logprobs=logprobs if number == 0 else None)
            if step.finish_reason is not None:
                yield chunk(index, {}, finish_reason=call.finish_reason(readers[index]))
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


def _delta(delta: Delta) -> dict[str, Any]:
    if not isinstance(delta, CallDelta):
        return {"content": delta}
    made: dict[str, Any] = {"index": delta.index, "function": {"arguments": delta.arguments}}
    if delta.name is not None:
        made |= {"id": delta.call_id, "type": "function"}
        made["function"]["name"] = delta.name
    return {"tool_calls": [made]}
