"""One request inside the engine, and what it tells its caller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from suffixspec_engine.cache import SequenceCache
from suffixspec_engine.metrics import RequestMetrics
from suffixspec_engine.sampling import GrammarMatcher, RowState, SamplingParams, TokenLogprobs
from suffixspec_index.draft import Draft, Source
from suffixspec_index.proposers.base import Proposer, RequestHandle

FinishReason = Literal["stop", "length", "error", "cancelled"]


@dataclass(frozen=True, slots=True)
class StepEvent:
    """What one step gave one request.

    Attributes:
        request_id: whose.
        token_ids: the tokens gained; empty where a request ends without one more.
        sources: per token: who drafted it, or ``Source.NONE`` where the model added it.
        text: the text that became certain: the beginning of a stop string is held back.
        logprobs: per token, if asked for.
        finish_reason: why the request ended here; ``None`` if it goes on.
        stop_reason: the stop token or stop string, or what went wrong.
        draft: what was proposed in this step; ``None``: nothing.
        accepted: nodes of the draft that were accepted, in order.
    """

    request_id: str
    token_ids: tuple[int, ...]
    sources: tuple[Source, ...]
    text: str = ""
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    draft: Draft | None = field(default=None, compare=False, repr=False)
    accepted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A finished request.

    Attributes:
        request_id, session_id: whose.
        prompt_token_ids: ``(n,)`` int32.
        token_ids: ``(m,)`` int32, the output, a stop token included.
        sources: ``(m,)`` uint8, a :class:`~suffixspec_index.draft.Source` per token.
        text: without a stop token or stop string; empty where the model has no tokenizer.
        finish_reason, stop_reason: as in :class:`StepEvent`.
        logprobs: per token, if asked for.
        metrics: counts and times.
    """

    request_id: str
    session_id: str
    prompt_token_ids: NDArray[np.int32]
    token_ids: NDArray[np.int32]
    sources: NDArray[np.uint8]
    text: str
    finish_reason: FinishReason
    stop_reason: int | str | None
    logprobs: tuple[TokenLogprobs, ...] | None
    metrics: RequestMetrics


@dataclass(slots=True, eq=False)
class Request:
    """A request from submission to its end. Only the engine's thread changes it, but for
    ``cancelled``, which anyone may set.

    Attributes:
        reserve: most tokens its cache will hold.
        proposer: who drafts for it; ``None``: nobody (any more).
        max_draft: most draft tokens per step; ``None``: as many as the proposer gives.
        priority: what its gains count against those of others, where draft tokens are scarce.
        owns_session: the session was made for this request and ends with it.
        emit: called with every event, in the engine's thread.
        handle: the proposer's.
        cache: its keys and values, from admission on.
        prefilling: its prompt has begun to be computed.
        emitted: characters of the text already given out.
    """

    request_id: str
    session_id: str
    namespace: str
    prompt: NDArray[np.int32]
    params: SamplingParams
    state: RowState
    reserve: int
    emit: Callable[[StepEvent], None]
    proposer: Proposer | None = None
    prediction: NDArray[np.int32] | None = None
    max_draft: int | None = None
    priority: float = 1.0
    grammar: GrammarMatcher | None = None
    owns_session: bool = False
    handle: RequestHandle | None = None
    cache: SequenceCache | None = None
    prefilling: bool = False
    cancelled: bool = False
    emitted: int = 0
    sources: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None

    @property
    def generating(self) -> bool:
        """Whether the whole prompt has been computed."""
        return bool(self.state.output_token_ids)

    @property
    def uncomputed(self) -> int:
        """Tokens whose keys and values are not in the cache yet: rest of the prompt, or 1."""
        assert self.cache is not None
        return len(self.prompt) + len(self.state.output_token_ids) - self.cache.length

    def next_tokens(self, count: int) -> list[int]:
        """The next ``count`` tokens to compute."""
        assert self.cache is not None
        if self.generating:
            return self.state.output_token_ids[-1:]
        start = self.cache.length
        tokens: list[int] = self.prompt[start : start + count].tolist()
        return tokens

    def output(self) -> RequestOutput:
        """What the caller gets at the end."""
        assert self.finish_reason is not None
        return RequestOutput(
            request_id=self.request_id,
            session_id=self.session_id,
            prompt_token_ids=self.prompt,
            token_ids=np.array(self.state.output_token_ids, np.int32),
            sources=np.array(self.sources, np.uint8),
            text=self.state.text,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            logprobs=tuple(self.logprobs) if self.params.logprobs is not None else None,
            metrics=self.metrics,
        )
