"""Reading one tool call's JSON object while it is being written."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto

ARGUMENT_KEYS = ("arguments", "parameters")
_SPACE = " \t\r\n"


class State(Enum):
    """How far the object is."""

    OPEN = auto()
    CALL = auto()  # complete, and a call of a known tool
    OTHER = auto()  # complete or broken, and no call: plain text


@dataclass(slots=True)
class _Value:
    """The value of one key of the outer object: where it begins and ends in the text."""

    key: str
    start: int
    end: int | None = None


class CallScanner:
    """Follows ``{"name": ..., "arguments": {...}}`` character by character. O(1) each.

    The name is known as soon as its string is closed, and the arguments' text is given out as it
    comes, provided they are an object and stand behind the name. Otherwise (or where the call is
    nested in ``"function"``) everything is given out at the end.

    Args:
        names: of the tools there are; an object that names another is no call.

    Attributes:
        text: everything read.
        name: the tool's; ``None``: not known yet.
        state: see :class:`State`.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._chars: list[str] = []
        self.name: str | None = None
        self.state = State.OPEN
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._string_start = 0
        self._key: str | None = None  # of the outer object, its colon not seen yet
        self._value: _Value | None = None  # being read
        self._arguments: _Value | None = None  # being given out, or that has been
        self._given = 0

    @property
    def text(self) -> str:
        """Everything read."""
        return "".join(self._chars)

    def feed(self, char: str) -> None:
        """Read one more character; not to be called once ``state`` is not ``OPEN``."""
        at = len(self._chars)
        self._chars.append(char)
        if self._in_string:
            self._inside_string(char, at)
            return
        if self._value is not None and self._value.start < 0 and char not in _SPACE:
            self._value.start = at
            if self._value.key in ARGUMENT_KEYS and char == "{" and self.name is not None:
                self._arguments = self._value
        if char == '"':
            self._in_string, self._string_start = True, at
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._close(at)
        elif self._depth == 1 and char == ":" and self._key is not None:
            self._value, self._key = _Value(self._key, -1), None
        elif self._depth == 1 and char == ",":
            self._end_value(at)

    def take_arguments(self) -> str:
        """The arguments' text that is new since the last call."""
        if self._arguments is None:
            return ""
        end = self._arguments.end if self._arguments.end is not None else len(self._chars)
        begin = self._arguments.start + self._given
        self._given = max(self._given, end - self._arguments.start)
        return "".join(self._chars[begin:end])

    def whole(self) -> tuple[str, str] | None:
        """Name and arguments of a complete call; ``None``: it is none."""
        try:
            value = json.loads(self.text)
        except ValueError:
            return None
        if isinstance(value, dict) and isinstance(value.get("function"), dict):
            value = value["function"]
        name = value.get("name") if isinstance(value, dict) else None
        if not isinstance(name, str) or name not in self._names:
            return None
        arguments: object = next((value[key] for key in ARGUMENT_KEYS if key in value), {})
        if isinstance(arguments, str):  # JSON within JSON
            return name, arguments
        return name, json.dumps(arguments, ensure_ascii=False)

    @property
    def streamed(self) -> bool:
        """Whether the arguments are given out as they come."""
        return self._arguments is not None

    @property
    def arguments_complete(self) -> bool:
        """Whether the arguments' object is closed."""
        return self._arguments is not None and self._arguments.end is not None

    def _inside_string(self, char: str, at: int) -> None:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = False
            if self._depth == 1:
                self._end_outer_string(at)

    def _end_outer_string(self, at: int) -> None:
        raw = "".join(self._chars[self._string_start : at + 1])
        if self._value is None:
            self._key = _loaded(raw)
        elif self._value.key == "name" and self._value.start == self._string_start:
            name = _loaded(raw)
            if name in self._names:
                self.name = name
            else:
                self.state = State.OTHER

    def _end_value(self, at: int) -> None:
        if self._value is not None:
            self._value.end = at
        self._value = None

    def _close(self, at: int) -> None:
        self._depth -= 1
        if self._depth == 1 and self._value is not None and self._value is self._arguments:
            self._value.end = at + 1
        if self._depth == 0:
            known = self.name is not None if self.streamed else self.whole() is not None
            self.state = State.CALL if known else State.OTHER


def _loaded(raw: str) -> str | None:
    try:
        value = json.loads(raw)
    except ValueError:
        return None
    return value if isinstance(value, str) else None
