"""Checks of small fields, the same for every transport."""

from __future__ import annotations

from collections.abc import Sequence

from suffixspec_index.errors import InputError
from suffixspec_service.drafting.messages import OpenLease
from suffixspec_service.spaces import ModelIdentity

_MAX_NAME = 256
_MAX_NUMBER = 2**64 - 1
_MAX_COUNT = 2**31 - 1


def check_name(value: object, field: str) -> None:
    """A name that a client gives: a text, not empty, of at most 256 characters.

    Raises:
        InputError: it is not.
    """
    if not isinstance(value, str) or not value or len(value) > _MAX_NAME:
        raise InputError(
            f"{field}: must be a text of 1 to {_MAX_NAME} characters, got {_short(value)}"
        )


def check_request_number(number: object) -> None:
    """A client's number for a request: an unsigned 64-bit integer.

    Raises:
        InputError: it is not.
    """
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= _MAX_NUMBER:
        raise InputError(f"request: must be an integer from 0 to 2**64 - 1, got {_short(number)}")


def check_count(value: object, field: str) -> None:
    """A number of tokens.

    Raises:
        InputError: it is not one.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_COUNT:
        raise InputError(f"{field}: must be an integer from 0 to {_MAX_COUNT}, got {_short(value)}")


def check_once(numbers: Sequence[int], field: str) -> None:
    """Each request is named once.

    Raises:
        InputError: one is named twice.
    """
    if len(set(numbers)) < len(numbers):
        twice = next(n for i, n in enumerate(numbers) if n in numbers[:i])
        raise InputError(f"{field}: names request {twice} twice; join its tokens in one row")


def check_rows(count: int, most: int, field: str) -> None:
    """A message does not hold too many rows.

    Raises:
        InputError: it does.
    """
    if count > most:
        raise InputError(
            f"{field}: {count} are more than the {most} allowed; send several messages"
        )


def identity_of(wish: OpenLease) -> ModelIdentity:
    """The model that a lease is for.

    Raises:
        InputError: a name or the size of the vocabulary is wrong.
    """
    check_name(wish.model, "model")
    check_name(wish.tokenizer, "tokenizer")
    if wish.adapter:
        check_name(wish.adapter, "adapter")
    size = wish.vocab_size
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= _MAX_COUNT:
        raise InputError(
            f"vocab_size: must be from 1 to {_MAX_COUNT}, got {_short(size)}; it is the number of "
            "the model's token ids"
        )
    return ModelIdentity(name=wish.model, tokenizer=wish.tokenizer, vocab_size=size)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
