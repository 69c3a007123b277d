"""What is asked of the drafting service and what it answers, whatever the transport."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.errors import InputError
from suffixspec_index.index import IndexStatistics
from suffixspec_service.drafting.acceptance import Acceptance

Tokens = NDArray[np.int32]
NO_TOKENS = np.empty(0, np.int32)
_WIRE = np.dtype("<i4")


def as_tokens(data: bytes, field: str) -> Tokens:
    """Token ids from the wire: int32, little-endian. No copy, so the array is read-only.

    Raises:
        InputError: not a whole number of int32.
    """
    if len(data) % 4:
        raise InputError(
            f"{field}: {len(data)} bytes are not a whole number of int32; send token ids as int32, "
            "little-endian, end to end"
        )
    return np.frombuffer(data, _WIRE)


def as_wire(tokens: NDArray[np.int32]) -> bytes:
    """Token ids as they travel."""
    return tokens.astype(_WIRE, copy=False).tobytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLease:
    """A lease that is asked for.

    Attributes:
        model, tokenizer, adapter: with the caller's tenant they are the namespace.
        vocab_size: token ids are below it.
        replaces: a lease of the tenant that is closed first; unknown ones are ignored.
        paths_only: drafts that are trees are reduced to their best path.
        ttl_seconds: after which it ends without a call; ``None``: as configured.
    """

    model: str
    tokenizer: str
    vocab_size: int
    adapter: str = ""
    replaces: str = ""
    paths_only: bool = False
    ttl_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTerms:
    """A lease that was granted; see ``Lease`` in ``drafting.proto``."""

    lease: str
    ttl_seconds: float
    max_draft_tokens: int
    trees: bool
    max_requests: int
    max_rows: int
    max_context_tokens: int
    namespace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """A request that begins.

    Attributes:
        request: the client's number for it.
        session: the conversation it belongs to.
        prompt: ``(n,)`` int32, whole, or what comes after ``base``.
        base: tokens of what the session last held that the prompt goes on from.
        base_crc32: of those tokens' bytes; ``None``: not compared.
        max_tokens: output tokens at most; ``None``: no limit.
        prediction: ``(m,)`` int32 the caller expects; ``None``: none.
    """

    request: int
    session: str
    prompt: Tokens
    base: int = 0
    base_crc32: int | None = None
    max_tokens: int | None = None
    prediction: Tokens | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """What one step of an engine gained, and what it wants drafts for.

    Attributes:
        advanced: requests that gained tokens, each once.
        lengths: per request in ``advanced``: how many.
        token_ids: those tokens, ``(n,)`` int32, end to end.
        proposed: requests to draft for, each once.
        limits: most tokens of each draft: one for all, one per request, or none.
    """

    advanced: Sequence[int] = ()
    lengths: Sequence[int] = ()
    token_ids: Tokens = field(default_factory=lambda: NO_TOKENS)
    proposed: Sequence[int] = ()
    limits: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftingStatistics:
    """Of a lease's namespace and its tenant; see ``StatisticsReply`` in ``drafting.proto``."""

    index: IndexStatistics | None
    open_leases: int
    open_requests: int
    open_sessions: int
    finished_requests: int
    acceptance: Acceptance
