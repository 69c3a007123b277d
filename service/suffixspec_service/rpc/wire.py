"""Messages of ``drafting.proto`` from and to what :mod:`~suffixspec_service.drafting` works with.

Used by both ends of a call, so that they agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from suffixspec_index.draft import DraftBatch
from suffixspec_index.errors import InputError
from suffixspec_index.index import IndexStatistics
from suffixspec_service.drafting.acceptance import SOURCES, Acceptance
from suffixspec_service.drafting.messages import (
    DraftingStatistics,
    LeaseTerms,
    NewRequest,
    OpenLease,
    Step,
    as_tokens,
    as_wire,
)
from suffixspec_service.rpc.generated import drafting_pb2 as pb

_FLOAT = np.dtype("<f4")
_INT = np.dtype("<i4")
_INDEX_FIELDS = (
    "sequences",
    "tokens",
    "nodes",
    "global_bytes",
    "sessions",
    "session_bytes",
    "bytes",
    "evicted_sequences",
    "evicted_sessions",
)
_ACCEPTANCE_FIELDS = ("steps", "steps_with_draft", "output_tokens", "drafted", "accepted")


def read_open(message: pb.OpenRequest) -> OpenLease:
    """What a client asks for."""
    return OpenLease(
        model=message.model,
        tokenizer=message.tokenizer,
        adapter=message.adapter,
        vocab_size=message.vocab_size,
        replaces=message.replaces,
        paths_only=message.paths_only,
        ttl_seconds=message.ttl_seconds or None,
    )


def write_open(wish: OpenLease) -> pb.OpenRequest:
    """The other way."""
    return pb.OpenRequest(
        model=wish.model,
        tokenizer=wish.tokenizer,
        adapter=wish.adapter,
        vocab_size=wish.vocab_size,
        replaces=wish.replaces,
        paths_only=wish.paths_only,
        ttl_seconds=wish.ttl_seconds or 0.0,
    )


def read_terms(message: pb.Lease) -> LeaseTerms:
    """A lease that was granted."""
    return LeaseTerms(
        lease=message.lease,
        ttl_seconds=message.ttl_seconds,
        max_draft_tokens=message.max_draft_tokens,
        trees=message.trees,
        max_requests=message.max_requests,
        max_rows=message.max_rows,
        max_context_tokens=message.max_context_tokens,
        namespace=message.namespace,
    )


def write_terms(terms: LeaseTerms) -> pb.Lease:
    """The other way."""
    return pb.Lease(
        lease=terms.lease,
        ttl_seconds=terms.ttl_seconds,
        max_draft_tokens=terms.max_draft_tokens,
        trees=terms.trees,
        max_requests=terms.max_requests,
        max_rows=terms.max_rows,
        max_context_tokens=terms.max_context_tokens,
        namespace=terms.namespace,
    )


def read_begin(message: pb.BeginRequest) -> list[NewRequest]:
    """Requests that begin.

    Raises:
        InputError: token ids are not whole int32.
    """
    return [
        NewRequest(
            request=request.request,
            session=request.session,
            prompt=as_tokens(request.prompt, "prompt"),
            base=request.base,
            base_crc32=request.base_crc32 if request.HasField("base_crc32") else None,
            max_tokens=request.max_tokens if request.HasField("max_tokens") else None,
            prediction=as_tokens(request.prediction, "prediction") if request.prediction else None,
        )
        for request in message.requests
    ]


def write_begin(lease: str, requests: Sequence[NewRequest]) -> pb.BeginRequest:
    """The other way."""
    message = pb.BeginRequest(lease=lease)
    for request in requests:
        message.requests.append(
            pb.NewRequest(
                request=request.request,
                session=request.session,
                prompt=as_wire(request.prompt),
                base=request.base,
                base_crc32=request.base_crc32,
                max_tokens=request.max_tokens,
                prediction=as_wire(request.prediction) if request.prediction is not None else b"",
            )
        )
    return message


def read_step(message: pb.StepRequest) -> Step:
    """A step.

    Raises:
        InputError: token ids are not whole int32.
    """
    return Step(
        advanced=list(message.advanced),
        lengths=list(message.advanced_lengths),
        token_ids=as_tokens(message.token_ids, "token_ids"),
        proposed=list(message.proposed),
        limits=list(message.limits),
    )


def write_step(lease: str, step: Step) -> pb.StepRequest:
    """The other way."""
    return pb.StepRequest(
        lease=lease,
        advanced=step.advanced,
        advanced_lengths=step.lengths,
        token_ids=as_wire(step.token_ids),
        proposed=step.proposed,
        limits=step.limits,
    )


def write_drafts(batch: DraftBatch) -> pb.StepReply:
    """Drafts."""
    return pb.StepReply(
        lengths=(batch.offsets[1:] - batch.offsets[:-1]).tolist(),
        token_ids=batch.token_ids.astype(_INT, copy=False).tobytes(),
        parents=batch.parents.astype(_INT, copy=False).tobytes(),
        probs=batch.probs.astype(_FLOAT, copy=False).tobytes(),
        sources=batch.sources.tobytes(),
        match_lens=batch.match_lens.tolist(),
    )


def read_drafts(message: pb.StepReply) -> DraftBatch:
    """The other way; the arrays are read-only views of the message.

    Raises:
        InputError: the arrays do not fit together.
    """
    lengths = list(message.lengths)
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    batch = DraftBatch(
        offsets,
        np.frombuffer(message.token_ids, _INT),
        np.frombuffer(message.parents, _INT),
        np.frombuffer(message.probs, _FLOAT),
        np.frombuffer(message.sources, np.uint8),
        np.array(message.match_lens, np.int32),
    )
    n = int(offsets[-1])
    arrays = (batch.token_ids, batch.parents, batch.probs, batch.sources)
    if any(len(array) != n for array in arrays) or len(batch.match_lens) != len(lengths):
        raise InputError("reply: the arrays of a batch of drafts do not fit together")
    return batch


def write_acceptance(counts: Acceptance) -> pb.Acceptance:
    """Counts."""
    return pb.Acceptance(
        **{name: getattr(counts, name) for name in _ACCEPTANCE_FIELDS},
        accepted_per_position=counts.accepted_per_position,
        drafted_by_source=counts.drafted_by_source,
        accepted_by_source=counts.accepted_by_source,
    )


def read_acceptance(message: pb.Acceptance) -> Acceptance:
    """The other way."""
    return Acceptance(
        **{name: getattr(message, name) for name in _ACCEPTANCE_FIELDS},
        accepted_per_position=list(message.accepted_per_position),
        drafted_by_source=_padded(message.drafted_by_source),
        accepted_by_source=_padded(message.accepted_by_source),
    )


def write_statistics(found: DraftingStatistics) -> pb.StatisticsReply:
    """Sizes and counts."""
    message = pb.StatisticsReply(
        open_leases=found.open_leases,
        open_requests=found.open_requests,
        open_sessions=found.open_sessions,
        finished_requests=found.finished_requests,
        acceptance=write_acceptance(found.acceptance),
    )
    if found.index is not None:
        values = {name: getattr(found.index, name) for name in _INDEX_FIELDS}
        message.index.CopyFrom(pb.IndexStatistics(**values))
    return message


def read_statistics(message: pb.StatisticsReply) -> DraftingStatistics:
    """The other way. The index's open requests are not sent; they are counted as 0."""
    index = None
    if message.HasField("index"):
        values: dict[str, Any] = {name: getattr(message.index, name) for name in _INDEX_FIELDS}
        index = IndexStatistics(requests=0, **values)
    return DraftingStatistics(
        index=index,
        open_leases=message.open_leases,
        open_requests=message.open_requests,
        open_sessions=message.open_sessions,
        finished_requests=message.finished_requests,
        acceptance=read_acceptance(message.acceptance),
    )


def _padded(counts: Sequence[int]) -> list[int]:
    """One number per source; an older service knows fewer."""
    return [*counts, *[0] * (SOURCES - len(counts))]
