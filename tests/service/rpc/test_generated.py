from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suffixspec_index.draft import Draft, DraftBatch, Source
from suffixspec_index.errors import InputError
from suffixspec_index.index import IndexStatistics
from suffixspec_service.drafting import (
    Acceptance,
    DraftingStatistics,
    LeaseTerms,
    NewRequest,
    OpenLease,
    Step,
)
from suffixspec_service.drafting.acceptance import SOURCES
from suffixspec_service.rpc import generate, wire
from suffixspec_service.rpc.generated import drafting_pb2 as pb

tokens = st.lists(st.integers(0, 2**31 - 1), max_size=20).map(lambda ids: np.array(ids, np.int32))
numbers = st.integers(0, 2**64 - 1)
counts = st.integers(0, 2**32 - 1)
many = st.lists(numbers, max_size=5)


def test_the_generated_code_is_current() -> None:
    pytest.importorskip("grpc_tools")
    assert generate.main(["--check"]) == 0


def test_sources_are_those_of_drafts() -> None:
    named = {value: pb.Source.Name(value) for value in pb.Source.values()}
    assert named == {source.value: f"SOURCE_{source.name}" for source in Source}


@given(
    st.builds(
        NewRequest,
        request=numbers,
        session=st.text(),
        prompt=tokens,
        base=counts,
        base_crc32=st.none() | counts,
        max_tokens=st.none() | counts,
        prediction=st.none() | tokens.filter(len),
    )
)
def test_requests_travel(request: NewRequest) -> None:
    sent = wire.write_begin("lease", [request])
    (found,) = wire.read_begin(pb.BeginRequest.FromString(sent.SerializeToString()))
    for name in ("request", "session", "base", "base_crc32", "max_tokens"):
        assert getattr(found, name) == getattr(request, name)
    np.testing.assert_array_equal(found.prompt, request.prompt)
    assert (found.prediction is None) == (request.prediction is None)
    if request.prediction is not None:
        np.testing.assert_array_equal(found.prediction, request.prediction)


@given(st.builds(Step, many, st.lists(counts, max_size=5), tokens, many, st.lists(counts)))
def test_steps_travel(step: Step) -> None:
    sent = wire.write_step("lease", step).SerializeToString()
    found = wire.read_step(pb.StepRequest.FromString(sent))
    for name in ("advanced", "lengths", "proposed", "limits"):
        assert list(getattr(found, name)) == list(getattr(step, name))
    np.testing.assert_array_equal(found.token_ids, step.token_ids)


@given(
    st.lists(
        st.builds(
            lambda ids, source, match: Draft(
                ids,
                np.arange(-1, len(ids) - 1, dtype=np.int32),
                np.linspace(1, 0, len(ids), dtype=np.float32),
                np.full(len(ids), source, np.uint8),
                match,
            ),
            tokens,
            st.sampled_from(Source),
            st.integers(0, 2**31 - 1),
        )
    )
)
def test_drafts_travel(drafts: list[Draft]) -> None:
    batch = DraftBatch.of(drafts)
    sent = wire.write_drafts(batch).SerializeToString()
    found = wire.read_drafts(pb.StepReply.FromString(sent))
    for name in DraftBatch.__slots__:
        one, other = getattr(found, name), getattr(batch, name)
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@given(
    st.builds(
        Acceptance,
        numbers,
        numbers,
        numbers,
        numbers,
        numbers,
        many,
        st.lists(numbers, min_size=SOURCES, max_size=SOURCES),
        st.lists(numbers, min_size=SOURCES, max_size=SOURCES),
    ),
    st.none() | st.builds(IndexStatistics, *[numbers] * 3, st.just(0), *[numbers] * 6),
    counts,
)
def test_statistics_travel(
    acceptance: Acceptance, index: IndexStatistics | None, count: int
) -> None:
    statistics = DraftingStatistics(
        index=index,
        open_leases=count,
        open_requests=count,
        open_sessions=count,
        finished_requests=count,
        acceptance=acceptance,
    )
    sent = wire.write_statistics(statistics).SerializeToString()
    assert wire.read_statistics(pb.StatisticsReply.FromString(sent)) == statistics


@given(
    st.builds(
        OpenLease,
        model=st.text(),
        tokenizer=st.text(),
        vocab_size=counts,
        adapter=st.text(),
        replaces=st.text(),
        paths_only=st.booleans(),
        ttl_seconds=st.none() | st.floats(0.1, 100),
    ),
    st.builds(
        LeaseTerms,
        lease=st.text(),
        ttl_seconds=st.floats(0, 100),
        max_draft_tokens=counts,
        trees=st.booleans(),
        max_requests=counts,
        max_rows=counts,
        max_context_tokens=counts,
        namespace=st.text(),
    ),
)
def test_leases_travel(wish: OpenLease, terms: LeaseTerms) -> None:
    sent = wire.write_open(wish).SerializeToString()
    assert wire.read_open(pb.OpenRequest.FromString(sent)) == wish
    assert wire.read_terms(wire.write_terms(terms)) == terms


def test_arrays_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="whole number of int32"):
        wire.read_step(pb.StepRequest(token_ids=b"abc"))
    good = wire.write_drafts(DraftBatch.of([Draft.path([1, 2], source=Source.GLOBAL)]))
    for field, value in (("token_ids", b""), ("sources", b"123"), ("lengths", [3])):
        bad = pb.StepReply()
        bad.CopyFrom(good)
        bad.ClearField(field)  # type: ignore[arg-type]
        bad.MergeFrom(pb.StepReply(**{field: value}))  # type: ignore[arg-type]
        with pytest.raises(InputError, match="do not fit"):
            wire.read_drafts(bad)
