"""``POST /v1/responses``: text, functions and streaming events; nothing is stored."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from starlette.responses import JSONResponse, Response

from suffixspec_service.api import answers, problems
from suffixspec_service.api.answers import ChoiceReader
from suffixspec_service.api.callers import Caller, ReadyRuntime
from suffixspec_service.api.chat import ChatCall, read_chat
from suffixspec_service.api.fields import SessionName
from suffixspec_service.api.problems import RESPONSES
from suffixspec_service.api.reading import reading
from suffixspec_service.api.responses_fields import ResponsesRequest
from suffixspec_service.api.streams import event, streamed, unless_gone
from suffixspec_service.callers import Tenant
from suffixspec_service.generation import Generation
from suffixspec_service.runtime import Runtime
from suffixspec_service.tool_calls import CallDelta, Delta

router = APIRouter(tags=["OpenAI"])


@dataclass(slots=True)
class ResponseCall:
    """A request, read, and the ids of its answer."""

    body: ResponsesRequest
    chat: ChatCall
    response_id: str = field(default_factory=lambda: f"resp_{secrets.token_hex(16)}")
    message_id: str = field(default_factory=lambda: f"msg_{secrets.token_hex(16)}")

    def response(self, status: str, **others: Any) -> dict[str, Any]:
        """The response object."""
        body = self.body
        given = body.text.format if body.text is not None else None
        text = given.model_dump(by_alias=True, exclude_none=True) if given else {"type": "text"}
        choice = body.tool_choice or "auto"
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": self.chat.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": self.chat.identity.model,
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "service_tier": "default",
            "store": False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": text},
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
            "tools": [tool.model_dump() for tool in body.tools or ()],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": body.user,
            "metadata": body.metadata or {},
        } | others

    def final(self, reader: ChoiceReader, generation: Generation) -> dict[str, Any]:
        """The response when it is over."""
        cut = reader.finish_reason == "length"
        others: dict[str, Any] = {
            "output": self.output(reader, "incomplete" if cut else "completed"),
            "usage": usage(generation),
        }
        if cut:
            others["incomplete_details"] = {"reason": "max_output_tokens"}
        if self.chat.include_metrics:
            others["metrics"] = answers.speculation(generation.metrics)
        return self.response("incomplete" if cut else "completed", **others)

    def output(self, reader: ChoiceReader, status: str) -> list[dict[str, Any]]:
        """The items that were said."""
        items = []
        if reader.text or not reader.calls:
            items.append(self.message(reader, status))
        return items + [call_item(made, status) for made in reader.calls]

    def message(self, reader: ChoiceReader, status: str) -> dict[str, Any]:
        """The item of the text."""
        return {
            "id": self.message_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [self.part(reader)],
        }

    def part(self, reader: ChoiceReader) -> dict[str, Any]:
        """The text as a part of its item."""
        logprobs = self.chat.logprobs(reader.logprobs)
        return {
            "type": "output_text",
            "text": reader.text,
            "annotations": [],
            "logprobs": logprobs["content"] if logprobs else [],
        }


def call_item(made: dict[str, str], status: str) -> dict[str, Any]:
    """The item of a call."""
    return {
        "id": made["id"].replace("call_", "fc_"),
        "type": "function_call",
        "status": status,
        "call_id": made["id"],
        "name": made["name"],
        "arguments": made["arguments"],
    }


def usage(generation: Generation) -> dict[str, Any]:
    """``usage``, under this API's names."""
    counted = answers.usage(generation)
    return {
        "input_tokens": counted["prompt_tokens"],
        "input_tokens_details": {
            "cached_tokens": counted["prompt_tokens_details"]["cached_tokens"],
            "cache_write_tokens": 0,
        },
        "output_tokens": counted["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counted["total_tokens"],
    }


@router.post(
    "/v1/responses",
    responses=RESPONSES,
    summary="Ask the model, in the form of OpenAI's newer API",
)
async def create_response(
    request: Request,
    body: ResponsesRequest,
    runtime: ReadyRuntime,
    tenant: Caller,
    x_session_id: Annotated[SessionName | None, Header()] = None,
    x_include_metrics: Annotated[bool, Header()] = False,
) -> Response:
    """Text and function calls; ``"stream": true`` sends server-sent events."""
    call = await reading(
        request, lambda: _read(runtime, tenant, body, x_session_id, x_include_metrics)
    )
    if body.stream:
        generation = Generation(runtime, tenant, call.chat.generation)
        return await streamed(generation, partial(_events, call), runtime.config.stream_cadence_ms)
    return await unless_gone(request, _answer(call, runtime, tenant))


def _read(
    runtime: Runtime,
    tenant: Tenant,
    body: ResponsesRequest,
    session: str | None,
    include_metrics: bool,
) -> ResponseCall:
    chat = read_chat(runtime, tenant, body.as_chat(), session, include_metrics, api="responses")
    return ResponseCall(body, chat)


async def _answer(call: ResponseCall, runtime: Runtime, tenant: Tenant) -> Response:
    (reader,) = call.chat.readers()
    async with Generation(runtime, tenant, call.chat.generation) as generation:
        async for _, step in generation:
            reader.read(step)
        return JSONResponse(
            call.final(reader, generation), headers={"X-Session-Id": generation.session_id}
        )


class _Narrator:
    """Tells the items of an answer as this API's events, numbered in order."""

    def __init__(self, call: ResponseCall, reader: ChoiceReader) -> None:
        self._call, self._reader = call, reader
        self._number = 0
        self._index = -1  # of the open item
        self._open: str | None = None  # "message" or "call"
        self._which = -1  # of the reader's calls

    def say(self, kind: str, **fields: Any) -> bytes:
        """One event."""
        value = {"type": kind, "sequence_number": self._number} | fields
        self._number += 1
        return event(value, kind)

    def delta(self, delta: Delta) -> Iterator[bytes]:
        """The events of one delta, an item's beginning included."""
        if isinstance(delta, CallDelta):
            if delta.name is not None:
                yield from self.close()
                self._index, self._open, self._which = self._index + 1, "call", delta.index
                blank = call_item(self._made() | {"arguments": ""}, "in_progress")
                yield self.say("response.output_item.added", output_index=self._index, item=blank)
            if delta.arguments:
                yield self.say(
                    "response.function_call_arguments.delta",
                    item_id=call_item(self._made(), "")["id"],
                    output_index=self._index,
                    delta=delta.arguments,
                )
            return
        yield from self.message()
        yield self.say("response.output_text.delta", **self._place(), delta=delta, logprobs=[])

    def message(self) -> Iterator[bytes]:
        """Begin the item of the text, unless it is open."""
        if self._open == "message":
            return
        yield from self.close()
        self._index, self._open = self._index + 1, "message"
        blank = self._call.message(ChoiceReader(), "in_progress") | {"content": []}
        yield self.say("response.output_item.added", output_index=self._index, item=blank)
        empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        yield self.say("response.content_part.added", **self._place(), part=empty)

    def close(self, status: str = "completed") -> Iterator[bytes]:
        """End the open item."""
        kind, self._open = self._open, None
        if kind == "message":
            part = self._call.part(self._reader)
            yield self.say(
                "response.output_text.done",
                **self._place(),
                text=part["text"],
                logprobs=part["logprobs"],
            )
            yield self.say("response.content_part.done", **self._place(), part=part)
            item = self._call.message(self._reader, status)
        elif kind == "call":
            item = call_item(self._made(), status)
            yield self.say(
                "response.function_call_arguments.done",
                item_id=item["id"],
                output_index=self._index,
                name=item["name"],
                arguments=item["arguments"],
            )
        else:
            return
        yield self.say("response.output_item.done", output_index=self._index, item=item)

    def _made(self) -> dict[str, str]:
        return self._reader.calls[self._which]

    def _place(self) -> dict[str, Any]:
        return {
            "item_id": self._call.message_id,
            "output_index": self._index,
            "content_index": 0,
        }


async def _events(call: ResponseCall, generation: Generation) -> AsyncIterator[bytes]:
    (reader,) = call.chat.readers()
    narrator = _Narrator(call, reader)
    try:
        yield narrator.say("response.created", response=call.response("in_progress"))
        yield narrator.say("response.in_progress", response=call.response("in_progress"))
        async for _, step in generation:
            for delta in reader.read(step):
                for data in narrator.delta(delta):
                    yield data
        if not reader.calls:
            for data in narrator.message():  # also where nothing was said
                yield data
        cut = reader.finish_reason == "length"
        for data in narrator.close("incomplete" if cut else "completed"):
            yield data
        yield narrator.say(
            "response.incomplete" if cut else "response.completed",
            response=call.final(reader, generation),
        )
    except Exception as error:  # the status is sent already, so the error goes into the stream
        told = problems.in_stream(error)["error"]
        yield narrator.say("error", code=told["code"], message=told["message"], param=told["param"])
