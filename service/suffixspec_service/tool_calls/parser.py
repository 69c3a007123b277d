"""From a model's text to text and tool calls, while it is being written.

All styles are recognised, whatever the model was asked for: Hermes' tags anywhere, Mistral's and
Llama's markers anywhere, and bare JSON where it begins the output. What looks like a call and turns
out to be none is given out as the text it is.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection
from dataclasses import dataclass

from suffixspec_engine.text import held_back
from suffixspec_service.tool_calls.scanner import CallScanner, State

_OPENINGS = ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>")
_CLOSING = "</tool_call>"
_BETWEEN = " \t\r\n,;[]"
_NAMED = re.compile(r"([\w.-]{1,64})(?:\[ARGS\])?\s*\{")
_MAYBE_NAMED = re.compile(r"[\w.-]{1,64}(?:\[(?:A(?:R(?:G(?:S\]?)?)?)?)?)?\s*")


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A piece of a tool call.

    Attributes:
        index: which call, from 0.
        call_id, name: in the first piece of a call; ``None`` later.
        arguments: JSON text that is new.
    """

    index: int
    arguments: str = ""
    call_id: str | None = None
    name: str | None = None


Delta = str | CallDelta


class ToolCallParser:
    """Reads one output. O(characters).

    Args:
        names: of the tools there are.

    Attributes:
        calls: complete calls so far.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._buffer = ""  # read and not decided
        self._after_call = False
        self._said = False  # text other than blanks was given out
        self._opening: str | None = None  # the marker that calls began with; "": bare JSON
        self._here = 0  # complete calls since then
        self._skipped = ""  # brackets and blanks between the marker and the call being read
        self._scanner: CallScanner | None = None
        self._index = -1
        self._named = False  # the call being read has been given out with its name
        self._wrapped = False  # the scanner was given what the model leaves out
        self.calls = 0

    def feed(self, text: str) -> list[Delta]:
        """Read more text; what became certain by it."""
        self._buffer += text
        deltas: list[Delta] = []
        while self._step(deltas):
            pass
        return _merged(deltas)

    def finish(self) -> list[Delta]:
        """The output is over; what was held back."""
        deltas: list[Delta] = []
        scanner = self._scanner
        if scanner is not None and not self._named:
            deltas.append(self._marker() + scanner.text)
        elif scanner is None:
            deltas.append(self._marker())
        self._scanner = None
        if self._opening is None or not self._here:
            deltas.append(self._buffer)
        self._buffer = ""
        return _merged(deltas)

    def _step(self, deltas: list[Delta]) -> bool:
        """Decide on some of the buffer; whether there may be more to decide."""
        if not self._buffer:
            return False
        if self._scanner is not None:
            return self._scan(self._scanner, deltas)
        if self._opening is not None:
            return self._between_calls(deltas)
        return self._in_text(deltas)

    def _in_text(self, deltas: list[Delta]) -> bool:
        if self._after_call:  # the line ends with the call
            self._buffer = self._buffer.lstrip("\n")
            if not self._buffer:
                return False
            self._after_call = False
        found = [(at, mark) for mark in _OPENINGS if (at := self._buffer.find(mark)) >= 0]
        if not self._said:
            stripped = self._buffer.lstrip()
            if stripped[:1] in ("{", "["):
                if found and self._buffer.startswith(
                    found[0][1], len(self._buffer) - len(stripped)
                ):
                    pass  # "[TOOL_CALLS]" begins with a bracket too
                elif any(mark.startswith(stripped) for mark in _OPENINGS):
                    return False
                else:
                    self._open("", stripped)
                    return True
        if found:
            at, mark = min(found)
            self._give(self._buffer[:at], deltas)
            self._open(mark, self._buffer[at + len(mark) :])
            return True
        keep = held_back(self._buffer, _OPENINGS)
        if not self._said and not self._buffer.strip():
            keep = len(self._buffer)  # blanks before a call are no text
        self._give(self._buffer[: len(self._buffer) - keep], deltas)
        self._buffer = self._buffer[len(self._buffer) - keep :]
        return False

    def _between_calls(self, deltas: list[Delta]) -> bool:
        """Behind a marker, or behind a call."""
        rest = self._buffer.lstrip(_BETWEEN)
        if not rest:
            return False
        if rest[0] == "{":
            self._skipped = self._buffer[: len(self._buffer) - len(rest)]
            self._start(CallScanner(self._names), rest)
            return True
        if _CLOSING.startswith(rest) and rest != _CLOSING:
            return False
        if rest.startswith(_CLOSING):
            self._opening, self._buffer = None, rest[len(_CLOSING) :]
            self._after_call = True
            return True
        if any(mark.startswith(rest) for mark in _OPENINGS):
            if rest in _OPENINGS:
                self._open(rest, "")
            return False
        for mark in _OPENINGS:
            if rest.startswith(mark):
                self._open(mark, rest[len(mark) :])
                return True
        if self._opening == "[TOOL_CALLS]":
            named = _NAMED.match(rest)
            if named and named.group(1) in self._names:
                self._start_named(named.group(1), rest[named.end() - 1 :])
                return True
            if _MAYBE_NAMED.fullmatch(rest):
                return False
        self._give(self._marker() + self._buffer, deltas)
        self._opening, self._buffer, self._said = None, "", True
        return False

    def _start_named(self, name: str, arguments: str) -> None:
        """Mistral's newer form: the name, then the arguments alone."""
        scanner = CallScanner(self._names)
        for char in f'{{"name": {json.dumps(name)}, "arguments": ':
            scanner.feed(char)
        self._start(scanner, arguments)
        self._wrapped = True

    def _start(self, scanner: CallScanner, rest: str) -> None:
        self._scanner, self._buffer, self._named = scanner, rest, False
        self._wrapped = False

    def _scan(self, scanner: CallScanner, deltas: list[Delta]) -> bool:
        read = 0
        for char in self._buffer:
            scanner.feed(char)
            read += 1
            if self._wrapped and scanner.arguments_complete:
                scanner.feed("}")
            if scanner.state is not State.OPEN:
                break
        self._buffer = self._buffer[read:]
        if scanner.state is State.OTHER:
            self._give(self._marker() + scanner.text, deltas)
            self._scanner, self._opening, self._said = None, None, True
            self._skipped = ""
            return True
        if scanner.streamed:
            self._name_it(scanner.name, deltas)
            new = scanner.take_arguments()
            if new:
                deltas.append(CallDelta(self._index, new))
        if scanner.state is State.CALL:
            if not scanner.streamed:
                whole = scanner.whole()
                assert whole is not None
                self._name_it(whole[0], deltas)
                deltas.append(CallDelta(self._index, whole[1]))
            self._scanner = None
            self.calls += 1
            self._here += 1
            return True
        return False

    def _name_it(self, name: str | None, deltas: list[Delta]) -> None:
        if not self._named:
            self._named = True
            self._index += 1
            deltas.append(CallDelta(self._index, "", f"call_{secrets.token_hex(12)}", name))

    def _open(self, mark: str, rest: str) -> None:
        self._opening, self._buffer, self._here = mark, rest, 0
        self._skipped = ""

    def _marker(self) -> str:
        """What calls began with, where none came of it: then it is text."""
        return "" if self._here else (self._opening or "") + self._skipped

    def _give(self, text: str, deltas: list[Delta]) -> None:
        if text:
            self._said = self._said or bool(text.strip())
            deltas.append(text)


def _merged(deltas: list[Delta]) -> list[Delta]:
    """Neighbouring texts joined, and arguments with the name they follow at once kept apart, as
    OpenAI does."""
    merged: list[Delta] = []
    for delta in deltas:
        if delta == "":
            continue
        if isinstance(delta, str) and merged and isinstance(merged[-1], str):
            merged[-1] += delta
        else:
            merged.append(delta)
    return merged
