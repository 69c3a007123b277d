"""Strictly typed access to parsed JSON that knows where in the record it stands.

A trace file is written by somebody else, so every field may be missing or of another type. A
:class:`Node` is a value together with its path; asking it for a text, a list or an object either
gives just that or raises a :class:`TraceError` that names the field, what was expected and what
was found. The path is put together only when an error needs it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NoReturn

import numpy as np
import orjson
from numpy.typing import NDArray

from suffixspec_index.errors import TokenError, TraceError
from suffixspec_index.tokens import as_token_array

_SHOWN = 60  # characters of a wrong value that an error message repeats


def parse_json(data: bytes | str) -> object:
    """Parse one JSON value; O(n).

    What Python and JavaScript writers emit beyond strict JSON is understood: ``NaN`` and
    ``Infinity``, and the half of a surrogate pair left by cutting a string in the middle of an
    emoji, which becomes U+FFFD (no tokenizer takes a lone surrogate).

    Raises:
        TraceError: not JSON, not UTF-8, or nested deeper than 1024 levels.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        strict = error
    if "depth limit" in strict.msg:
        raise TraceError("JSON is nested deeper than 1024 levels")
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
    except UnicodeDecodeError as error:
        raise TraceError(
            f"not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}"
        ) from None
    try:
        return _without_lone_surrogates(json.loads(text))
    except RecursionError:
        raise TraceError("JSON is nested too deeply") from None
    except ValueError:  # also integers of thousands of digits
        raise TraceError(f"not JSON: {strict}", line=strict.lineno) from None


def _without_lone_surrogates(value: object) -> object:
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        # through UTF-16 two halves that stand side by side become one character again
        paired = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return json.loads(paired)
    return value


def json_text(value: object) -> str:
    """The compact JSON rendering of a parsed value; O(n).

    Raises:
        TraceError: the value is nested too deeply to be written.
    """
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # nested beyond 254 levels, or an integer beyond 64 bits
        pass
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        raise TraceError("a value is nested too deeply to be written as JSON") from None


def describe(value: object) -> str:
    """A short description of a JSON value for an error message."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int() | float():
            return f"a number ({_shortened(value)})"
        case str():
            return f"a string ({_shortened(value)})"
        case list():
            return f"a list of {len(value)}"
        case dict():
            return "an object"
        case _:
            return type(value).__name__


def _shortened(value: float | str) -> str:
    try:
        text = repr(value[: _SHOWN + 1] if isinstance(value, str) else value)
    except ValueError:  # an integer of too many digits to print
        return "an integer of thousands of digits"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


class Node:
    """A JSON value and the path that led to it."""

    __slots__ = ("_key", "_parent", "value")

    def __init__(
        self, value: object, parent: Node | None = None, key: str | int | None = None
    ) -> None:
        self.value = value
        self._parent = parent
        self._key = key

    @property
    def path(self) -> str:
        """Where the value stands, e.g. ``messages[3].content``; the record itself is ``record``."""
        parts: list[str] = []
        node: Node | None = self
        while node is not None:
            key = node._key
            if isinstance(key, int):
                parts.append(f"[{key}]")
            elif key is not None:
                parts.append(f".{key}")
            node = node._parent
        return "".join(reversed(parts)).removeprefix(".") or "record"

    def fail(self, reason: str) -> NoReturn:
        """Raise a TraceError that names this field."""
        raise TraceError(f"{self.path}: {reason}")

    def expected(self, what: str) -> NoReturn:
        """Raise a TraceError: the field is of the wrong type."""
        self.fail(f"expected {what}, got {describe(self.value)}")

    def __getitem__(self, key: str) -> Node:
        """A field of this object; null where it is missing. Fails where this is no object."""
        return Node(self.object().get(key), self, key)

    def __contains__(self, key: str) -> bool:
        return isinstance(self.value, dict) and self.value.get(key) is not None

    def __bool__(self) -> bool:
        """Whether a value is recorded at all: null, ``""``, ``[]`` and ``{}`` are not."""
        return self.value not in (None, "", [], {})

    def first(self, *keys: str) -> Node:
        """The first of these fields that is recorded (not null), else the first of them."""
        return self[next((key for key in keys if key in self), keys[0])]

    def within(self, key: str) -> Node:
        """The field where it is recorded, else this object: some writers wrap, some do not."""
        return self[key] if key in self else self  # noqa: SIM401  # this is no dict

    def object(self) -> dict[str, object]:
        """The value as an object."""
        if not isinstance(self.value, dict):
            self.expected("an object")
        return self.value

    def elements(self) -> Iterator[Node]:
        """The elements of a list."""
        if not isinstance(self.value, list):
            self.expected("a list")
        return (Node(item, self, i) for i, item in enumerate(self.value))

    def elements_if_any(self) -> Iterator[Node]:
        """The elements of a list; none where the field is null."""
        return iter(()) if self.value is None else self.elements()

    def text(self) -> str:
        """The value as a string."""
        if not isinstance(self.value, str):
            self.expected("a string")
        return self.value

    def optional_text(self) -> str | None:
        """The value as a string, or ``None`` where it is null."""
        return None if self.value is None else self.text()

    def label(self) -> str | None:
        """An identifier: a string, or a number written as one; ``None`` where it is null."""
        value = self.value
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.expected("a string or a number")
        return _shortened(value)

    def flag(self, default: bool) -> bool:
        """The value as a boolean, ``default`` where it is null."""
        if self.value is None:
            return default
        if not isinstance(self.value, bool):
            self.expected("true or false")
        return self.value

    def decoded(self) -> Node:
        """The value, or what it holds where it is a string of JSON (databases export those)."""
        if self.value == "null":
            return Node(None, self._parent, self._key)
        if isinstance(self.value, str) and self.value.lstrip()[:1] in ("{", "[", '"'):
            try:
                return Node(parse_json(self.value), self._parent, self._key)
            except TraceError:
                return self  # text that only looks like JSON
        return self

    def json_text(self) -> str:
        """The compact JSON rendering of the value."""
        try:
            return json_text(self.value)
        except TraceError as error:
            self.fail(error.reason)

    def timestamp(self) -> float | None:
        """Seconds since the epoch, from a number or an ISO 8601 text.

        Numbers too large to be seconds are milli-, micro- or nanoseconds. A text without an offset
        is taken as UTC; a text that is no date gives ``None``.
        """
        value = self.value
        if isinstance(value, str):
            return _from_text(value)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.expected("a time (a number or an ISO 8601 text)")
        return _from_number(value)

    def token_ids(self) -> NDArray[np.int32] | None:
        """``(n,)`` int32 token ids, or ``None`` where the field is null."""
        if self.value is None:
            return None
        if not isinstance(self.value, list):
            self.expected("a list of token ids")
        try:
            return as_token_array(self.value, field=self.path)
        except TokenError as error:
            raise TraceError(str(error)) from None


def _from_number(value: float) -> float | None:
    try:
        seconds = float(value)
    except OverflowError:
        return None
    if not math.isfinite(seconds):
        return None
    while abs(seconds) >= 1e11:  # the year 5138 in seconds, 1973 in milliseconds
        seconds /= 1000.0
    return seconds


def _from_text(value: str) -> float | None:
    text = value.strip()
    if text.isdecimal():  # OTLP writes 64-bit integers as strings
        return _from_number(float(text))
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return moment.timestamp()
    except (ValueError, OverflowError):
        return None
