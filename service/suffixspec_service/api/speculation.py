"""Drafting over HTTP: the calls of ``drafting.proto`` with the same names and fields, as JSON.

For engines without gRPC, and for looking by hand. A lease is a secret, so it stands in the body:
paths are logged.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from suffixspec_index.draft import Draft, Source
from suffixspec_service.api.callers import AnyRuntime, Caller
from suffixspec_service.api.problems import RESPONSES
from suffixspec_service.drafting import DraftingCalls, NewRequest, OpenLease, Step
from suffixspec_service.drafting.messages import Tokens

router = APIRouter(prefix="/v1/speculation", tags=["speculation"], responses=RESPONSES)

TokenId = Annotated[int, Field(strict=True, ge=0, lt=2**31 - 1)]
Count = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
Number = Annotated[int, Field(strict=True, ge=0, lt=2**64, description="The client's own.")]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class OpenBody(_Body):
    """A lease in a namespace: the tenant's model, tokenizer and adapter."""

    model: str = Field(description="The target model's name.")
    tokenizer: str = Field(description="A fingerprint of its tokenizer.")
    vocab_size: Annotated[int, Field(strict=True, ge=1, lt=2**31)] = Field(
        description="Token ids are below it."
    )
    adapter: str = Field("", description="The LoRA adapter or the like; empty: none.")
    replaces: str = Field("", description="A lease of the tenant that is closed first.")
    paths_only: bool = Field(False, description="Drafts that are trees are cut to a path.")
    ttl_seconds: float | None = Field(
        None, description="Seconds without a call after which it ends; null: the default."
    )


class LeaseBody(_Body):
    """Names a lease."""

    lease: str = Field(description="As `open` answered.")


class RequestBody(_Body):
    """A request that begins."""

    request: Number
    session: str = Field(description="The conversation it belongs to.")
    prompt: list[TokenId] = Field(description="The whole prompt, or what comes after `base`.")
    base: Count = Field(
        0, description="First tokens of what the session last held that the prompt goes on from."
    )
    base_crc32: Annotated[int, Field(strict=True, ge=0, lt=2**32)] | None = Field(
        None, description="CRC-32 of those tokens as little-endian int32; null: not compared."
    )
    max_tokens: Count | None = Field(None, description="Output tokens at most; null: no limit.")
    prediction: list[TokenId] | None = Field(None, description="Tokens expected as output.")


class BeginBody(LeaseBody):
    """Requests that begin, all or none."""

    requests: list[RequestBody]


class GainBody(_Body):
    """What a request gained."""

    request: Number
    token_ids: list[TokenId]


class ProposeBody(_Body):
    """What to draft for."""

    request: Number
    limit: Count | None = Field(None, description="Most tokens; null: the service's.")


class StepBody(LeaseBody):
    """What requests gained, and what to draft for then."""

    advance: list[GainBody] = []
    propose: list[ProposeBody] = []


class FinishBody(LeaseBody):
    """Requests that end."""

    requests: list[Number]
    discard: bool = Field(False, description="Do not remember their outputs.")


class SessionsBody(LeaseBody):
    """Sessions to forget."""

    sessions: list[str]


class IngestBody(LeaseBody):
    """Finished sequences from elsewhere."""

    sequences: list[list[TokenId]]


class LeaseAnswer(BaseModel):
    """What was granted."""

    lease: str
    ttl_seconds: float
    max_draft_tokens: int
    trees: bool
    max_requests: int
    max_rows: int
    max_context_tokens: int
    namespace: str


class DraftAnswer(BaseModel):
    """A draft: token `i` goes on from token `parents[i]`; -1: the context's last."""

    request: int
    token_ids: list[int]
    parents: list[int]
    probs: list[float] = Field(description="That a token and all it goes on from are accepted.")
    sources: list[str]
    match_len: int = Field(description="Last tokens of the context that were found.")


class StepAnswer(BaseModel):
    """A draft per request in `propose`."""

    drafts: list[DraftAnswer]


class AcceptanceAnswer(BaseModel):
    """What became of drafts."""

    steps: int
    steps_with_draft: int
    output_tokens: int
    drafted: int
    accepted: int
    accepted_per_position: list[int]
    by_source: dict[str, tuple[int, int]] = Field(description="Drafted and accepted tokens.")


class FinishAnswer(BaseModel):
    """One per request."""

    requests: list[AcceptanceAnswer]


class StatisticsAnswer(BaseModel):
    """Sizes and counts."""

    index: dict[str, int] | None
    open_leases: int
    open_requests: int
    open_sessions: int
    finished_requests: int
    acceptance: AcceptanceAnswer


@router.post("/open")
async def open_lease(body: OpenBody, runtime: AnyRuntime, caller: Caller) -> LeaseAnswer:
    """Open a lease."""
    terms = await _calls(runtime).open(caller, OpenLease(**body.model_dump()))
    return LeaseAnswer(**asdict(terms))


@router.post("/keep_alive")
async def keep_alive(body: LeaseBody, runtime: AnyRuntime, caller: Caller) -> dict[str, float]:
    """Renew a lease; every other call renews it too."""
    return {"ttl_seconds": _calls(runtime).keep_alive(caller, body.lease)}


@router.post("/close")
async def close(body: LeaseBody, runtime: AnyRuntime, caller: Caller) -> dict[str, int]:
    """End a lease and what is open under it."""
    return {"dropped_requests": await _calls(runtime).close(caller, body.lease)}


@router.post("/begin")
async def begin(body: BeginBody, runtime: AnyRuntime, caller: Caller) -> dict[str, list[int]]:
    """Begin requests."""
    requests = [
        NewRequest(
            request=request.request,
            session=request.session,
            prompt=_tokens(request.prompt),
            base=request.base,
            base_crc32=request.base_crc32,
            max_tokens=request.max_tokens,
            prediction=None if request.prediction is None else _tokens(request.prediction),
        )
        for request in body.requests
    ]
    return {"context_tokens": await _calls(runtime).begin(caller, body.lease, requests)}


@router.post("/step")
async def step(body: StepBody, runtime: AnyRuntime, caller: Caller) -> StepAnswer:
    """Tell what requests gained, then draft."""
    wanted = [row.request for row in body.propose]
    unlimited = 2**31 - 1
    order = Step(
        advanced=[row.request for row in body.advance],
        lengths=[len(row.token_ids) for row in body.advance],
        token_ids=_tokens([token for row in body.advance for token in row.token_ids]),
        proposed=wanted,
        limits=[unlimited if row.limit is None else row.limit for row in body.propose],
    )
    drafts = await _calls(runtime).step(caller, body.lease, order)
    return StepAnswer(drafts=[_draft(n, d) for n, d in zip(wanted, drafts, strict=True)])


@router.post("/finish")
async def finish(body: FinishBody, runtime: AnyRuntime, caller: Caller) -> FinishAnswer:
    """End requests; their outputs are remembered for later ones."""
    calls = _calls(runtime)
    counts = await calls.finish(caller, body.lease, body.requests, discard=body.discard)
    return FinishAnswer(requests=[_acceptance(one) for one in counts])


@router.post("/end_sessions")
async def end_sessions(body: SessionsBody, runtime: AnyRuntime, caller: Caller) -> dict[str, int]:
    """Forget what is held for sessions alone; unknown ones are ignored."""
    await _calls(runtime).end_sessions(caller, body.lease, body.sessions)
    return {}


@router.post("/ingest")
async def ingest(body: IngestBody, runtime: AnyRuntime, caller: Caller) -> dict[str, int]:
    """Remember finished sequences from elsewhere."""
    sequences = [_tokens(sequence) for sequence in body.sequences]
    return {"tokens": await _calls(runtime).ingest(caller, body.lease, sequences)}


@router.post("/purge")
async def purge(body: LeaseBody, runtime: AnyRuntime, caller: Caller) -> dict[str, int]:
    """Forget every sequence and idle session of the namespace, and what was learned in it."""
    await _calls(runtime).purge(caller, body.lease)
    return {}


@router.post("/statistics")
async def statistics(body: LeaseBody, runtime: AnyRuntime, caller: Caller) -> StatisticsAnswer:
    """Sizes and counts of the namespace."""
    found = await _calls(runtime).statistics(caller, body.lease)
    return StatisticsAnswer(
        index=None if found.index is None else asdict(found.index),
        open_leases=found.open_leases,
        open_requests=found.open_requests,
        open_sessions=found.open_sessions,
        finished_requests=found.finished_requests,
        acceptance=_acceptance(found.acceptance),
    )


def _calls(runtime: Any) -> DraftingCalls:
    return DraftingCalls(runtime.drafting, runtime.index_pool)


def _tokens(token_ids: list[int]) -> Tokens:
    return np.array(token_ids, np.int32)


def _draft(request: int, draft: Draft) -> DraftAnswer:
    return DraftAnswer(
        request=request,
        token_ids=draft.token_ids.tolist(),
        parents=draft.parents.tolist(),
        probs=draft.probs.tolist(),
        sources=[Source(source).label for source in draft.sources.tolist()],
        match_len=draft.match_len,
    )


def _acceptance(counts: Any) -> AcceptanceAnswer:
    return AcceptanceAnswer(
        steps=counts.steps,
        steps_with_draft=counts.steps_with_draft,
        output_tokens=counts.output_tokens,
        drafted=counts.drafted,
        accepted=counts.accepted,
        accepted_per_position=counts.accepted_per_position,
        by_source=counts.by_source,
    )
