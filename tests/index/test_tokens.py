import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suffixspec_index.errors import ConfigError, TokenError
from suffixspec_index.tokens import (
    MAX_VOCAB_SIZE,
    as_forbidden_array,
    as_token_array,
    as_vocab_size,
)


@pytest.mark.parametrize(
    "value",
    [
        [1, 2, 3],
        (1, 2, 3),
        range(1, 4),
        np.array([1, 2, 3], np.int64),
        np.array([1, 2, 3], np.uint16),
        np.array([1, 0, 2, 0, 3], np.int32)[::2],
    ],
)
def test_accepts_every_integer_form(value: object) -> None:
    array = as_token_array(value, 4, field="prompt")  # type: ignore[arg-type]
    assert array.dtype == np.int32
    assert array.flags.c_contiguous
    assert array.tolist() == [1, 2, 3]


def test_contiguous_int32_is_not_copied() -> None:
    ids = np.arange(10, dtype=np.int32)
    assert as_token_array(ids, field="prompt") is ids


@pytest.mark.parametrize("empty", [[], (), np.empty(0, np.int64)])
def test_empty_is_fine(empty: object) -> None:
    assert as_token_array(empty, 5, field="prompt").shape == (0,)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1, 2.5], r"prompt: position 0 is 1\.0, not an integer"),
        (np.array([1.0, 2.0]), r"prompt: position 0 is 1\.0"),
        (np.empty(0, np.float64), "dtype float64"),
        ([1, True], r"prompt: position 1 is True, not an integer"),
        ([False], r"prompt: position 0 is False"),
        (np.array([True]), r"prompt: position 0 is True"),
        ([1, None], r"prompt: position 1 is None"),
        (["a", "b"], r"prompt: position 0 is 'a'"),
        ("text", "one-dimensional"),
        (5, "one-dimensional"),
        (None, "one-dimensional"),
        ([[1, 2]], r"one-dimensional, got shape \(1, 2\)"),
        ([[1], [1, 2]], "cannot be read as token ids"),
        ({1: 2}, "one-dimensional"),
        ([3, -1], r"prompt: position 1 is -1, a negative id; remove padding"),
        ([3, 10], r"prompt: position 1 is 10, but the vocabulary has 10 ids \(0 to 9\)"),
        ([2**31], r"position 0 is 2147483648, but the vocabulary has 10 ids"),
        ([1, 2**70], r"position 1 is 1180591620717411303424, but ids must be below"),
        (np.array([2**63], np.uint64), "but the vocabulary has 10 ids"),
        (np.array([1, -5], np.int32), r"position 1 is -5"),
        (np.array([np.iinfo(np.int32).min], np.int32), "a negative id"),
    ],
)
def test_rejects(value: object, message: str) -> None:
    with pytest.raises(TokenError, match=message):
        as_token_array(value, 10, field="prompt")  # type: ignore[arg-type]


def test_without_a_vocabulary_ids_stay_in_32_bits() -> None:
    assert as_token_array([MAX_VOCAB_SIZE - 1], field="x").tolist() == [MAX_VOCAB_SIZE - 1]
    with pytest.raises(TokenError, match="stored in 32 bits"):
        as_token_array([MAX_VOCAB_SIZE], field="x")
    with pytest.raises(TokenError, match="stored in 32 bits"):
        as_token_array(np.array([2**31], np.int64), field="x")


@given(st.lists(st.integers(-(2**40), 2**40), max_size=20), st.integers(1, MAX_VOCAB_SIZE))
def test_accepts_exactly_what_is_in_range(ids: list[int], vocab_size: int) -> None:
    bad = [i for i, value in enumerate(ids) if not 0 <= value < vocab_size]
    for form in (ids, np.array(ids, np.int64)):
        if bad:
            with pytest.raises(TokenError, match=f"position {bad[0]} is {ids[bad[0]]}"):
                as_token_array(form, vocab_size, field="x")
        else:
            assert as_token_array(form, vocab_size, field="x").tolist() == ids


def test_forbidden_ids_are_sorted_and_distinct() -> None:
    assert as_forbidden_array([5, 1, 5]).tolist() == [1, 5]
    assert as_forbidden_array({7, 3}).tolist() == [3, 7]
    assert as_forbidden_array(()).tolist() == []
    with pytest.raises(TokenError, match="forbidden: position 0 is -1"):
        as_forbidden_array([-1])


@pytest.mark.parametrize("bad", [0, -1, 2**31, True, 1.5, "5"])
def test_vocab_size_is_checked(bad: object) -> None:
    with pytest.raises(ConfigError, match="vocab_size"):
        as_vocab_size(bad)  # type: ignore[arg-type]


def test_vocab_size_passes() -> None:
    assert as_vocab_size(None) is None
    assert as_vocab_size(49152) == 49152
