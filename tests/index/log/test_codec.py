"""Records as bytes: round trips, damage, sizes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suffixspec_index.errors import (
    ConfigError,
    InputError,
    LogCorruptError,
    LogError,
    LogFormatError,
    MissingDependencyError,
)
from suffixspec_index.log import Record, RecordKind, codec
from suffixspec_index.log.codec import COMPRESSIONS, decode_records, encode_records
from tests.index.log.contract import record

_ids = st.integers(0, 2**61 - 1)
_times = st.integers(-(2**50), 2**50).map(lambda micros: micros / 1e6)
_records = st.builds(
    Record,
    kind=st.sampled_from(RecordKind),
    origin=st.integers(0, 2**63 - 1),
    number=_ids,
    sequence=_ids,
    time=_times,
    tokens=st.lists(st.integers(0, 2**31 - 2), max_size=40).map(lambda t: np.array(t, np.int32)),
    offset=_ids,
    final=st.booleans(),
    before=st.one_of(st.just(float("inf")), _times),
)


@settings(deadline=None)  # the first call compiles
@given(st.lists(_records, max_size=12), st.sampled_from(sorted(COMPRESSIONS.values())))
def test_every_batch_comes_back(records: list[Record], compression: int) -> None:
    assert decode_records(encode_records(records, compression)) == records


def test_tokens_can_be_written_to() -> None:
    (found,) = decode_records(encode_records([record(1)]))
    found.tokens[0] = 5


def test_any_damage_is_noticed() -> None:
    rng = random.Random(3)
    data = encode_records([record(n, [rng.randrange(50_000) for _ in range(30)]) for n in range(9)])
    for _ in range(3_000):
        broken = bytearray(data)
        match rng.randrange(3):
            case 0:
                broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
            case 1:
                del broken[rng.randrange(len(broken)) :]
            case _:
                at = rng.randrange(len(broken))
                broken[at:at] = rng.randbytes(rng.randrange(1, 9))
        with pytest.raises(LogError):
            decode_records(bytes(broken))


def test_noise_with_a_right_checksum_is_refused() -> None:
    """Whatever passes for a body, nothing but a LogError comes of it."""
    rng = random.Random(4)
    for _ in range(2_000):
        method, raw = rng.choice([0, 1, 2, 9]), rng.randbytes(rng.randrange(40))
        tail = len(raw).to_bytes(4, "little") + raw
        lead = bytes((codec.VERSION, method))
        data = lead + codec._checksum(lead, tail) + tail
        try:
            found = decode_records(data)
        except LogError:
            continue
        for one in found:
            one.check()


def test_a_batch_that_unpacks_to_more_than_it_says_is_refused() -> None:
    import zlib

    body = zlib.compress(b"\0" * 1_000_000)
    for said in (10, 0xFFFFFFFF):
        tail = said.to_bytes(4, "little") + body
        lead = bytes((codec.VERSION, codec.ZLIB))
        with pytest.raises(LogCorruptError):
            decode_records(lead + codec._checksum(lead, tail) + tail)


def test_another_version_says_so() -> None:
    data = encode_records([record(1)])
    lead, tail = bytes((2, data[1])), data[10:]
    data = lead + codec._checksum(lead, tail) + tail
    with pytest.raises(LogFormatError, match="update suffixspec"):
        decode_records(data)


def test_repetitive_tokens_take_little() -> None:
    said = np.random.default_rng(0).integers(0, 50_000, 200)
    records = [record(n, said) for n in range(100)]
    for compression in (codec.ZLIB, codec.ZSTD):
        assert len(encode_records(records, compression)) < 0.2 * 100 * 200


def test_zstandard_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = encode_records([record(1, range(500))], codec.ZSTD)
    monkeypatch.setattr(codec, "zstandard", lambda: None)
    assert codec.as_compression(None) == codec.ZLIB
    assert decode_records(encode_records([record(1)])) == [record(1)]
    for use in (
        lambda: codec.as_compression("zstd"),
        lambda: decode_records(packed),
        lambda: encode_records([record(1, range(500))], codec.ZSTD),
    ):
        with pytest.raises(MissingDependencyError, match="pip install zstandard"):
            use()


def test_wrong_arguments() -> None:
    with pytest.raises(ConfigError):
        codec.as_compression("lz4")
    changes: Any
    for changes in ({"origin": -1}, {"time": 1e300}, {"sequence": 1 << 61}, {"number": 1.5}):
        with pytest.raises(InputError):
            encode_records([record(**({"number": 1} | changes))])
