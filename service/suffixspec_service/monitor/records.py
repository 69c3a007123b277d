"""What one request was: the event that all monitoring is counted from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Piece(NamedTuple):
    """A token of an output as text, or a draft token that was rejected.

    Attributes:
        text: what it reads as; joined, the accepted pieces are the output.
        source: who drafted it, a :attr:`~suffixspec_index.draft.Source.label`; ``"none"``: the
            model itself.
        accepted: false for a draft token that the model did not agree with. Such pieces stand
            where they would have stood: before the token that the model wrote instead.
        match_len: match length of its draft; 0: not known, or no draft.
        step: which step of the request, from 0; -1: not known.
    """

    text: str
    source: str = "none"
    accepted: bool = True
    match_len: int = 0
    step: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One finished request. Every generation and every closed drafting request makes one.

    Attributes:
        tenant: whose.
        namespace: what it shared drafts with: ``str`` of a
            :class:`~suffixspec_index.namespaces.NamespaceKey`.
        model: the target model.
        api: the door it came through, e.g. ``"chat"``, ``"completions"``, ``"responses"``,
            ``"grpc"``, ``"drafting"``.
        request_id, session_id: its names.
        started_at: when it arrived, seconds since the epoch.
        ttft_s: seconds to the first output token; ``None``: there was none, or it was not
            measured.
        duration_s: seconds from arrival to end.
        prompt_tokens: of them ``cached_tokens`` did not have to be computed.
        output_tokens: tokens gained.
        steps: forward passes that gave output tokens; of them ``steps_with_draft`` had a draft.
        drafted, accepted: draft tokens; a tree counts all its nodes.
        accepted_per_position: ``[d]``: how often a draft token at depth ``d`` was accepted.
        by_source: source label to ``(drafted, accepted)``.
        status: ``"ok"``, the finish reason, or an error code: a word from a small set.
        pieces: the output token by token; ``None`` where text is not kept.
        gaps_s: seconds between deliveries of output to the caller, in order; empty: not measured.
    """

    tenant: str
    namespace: str
    model: str
    api: str
    request_id: str
    session_id: str
    started_at: float
    ttft_s: float | None
    duration_s: float
    prompt_tokens: int
    output_tokens: int
    steps: int
    steps_with_draft: int
    drafted: int
    accepted: int
    cached_tokens: int = 0
    accepted_per_position: tuple[int, ...] = ()
    by_source: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    status: str = "ok"
    pieces: tuple[Piece, ...] | None = None
    gaps_s: tuple[float, ...] = ()
