"""Putting single model calls back together into the conversations they belong to.

API logs and observability tools record each call with its whole prompt, so turn seven repeats
turns one to six. A call whose input extends an earlier call's input and output continues that
conversation; any other begins one. Only outputs count as generated, and each only once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from suffixspec_index.errors import TraceError
from suffixspec_traces.model import Message, Session
from suffixspec_traces.readers.messages import inherited
from suffixspec_traces.readers.nodes import json_text, parse_json


@dataclass(frozen=True, slots=True)
class Call:
    """One recorded request to a model.

    ``choices`` holds the messages of each alternative answer; the first one is taken to be what
    the conversation went on with. ``group`` is the session or trace the call belongs to: calls of
    different groups are never joined. ``continues`` names the call (by ``id``) whose conversation
    this input continues without repeating it.
    """

    id: str
    inputs: tuple[Message, ...]
    choices: tuple[tuple[Message, ...], ...]
    group: str | None = None
    model: str | None = None
    timestamp: float | None = None
    tools: tuple[dict[str, object], ...] = ()
    continues: str | None = None
    line: int | None = None


@dataclass(slots=True)
class _Conversation:
    first: Call
    messages: list[Message] = field(default_factory=list)
    tools: tuple[dict[str, object], ...] = ()

    def forked(self, call: Call, length: int) -> _Conversation:
        """A new conversation that inherits the first messages of this one."""
        return _Conversation(call, [inherited(m) for m in self.messages[:length]], self.tools)


_End = tuple[_Conversation, int]  # a conversation, and its length when a call ended there


class CallMerger:
    """Collects calls and yields the conversations they make up.

    Messages are kept once, however many prompts repeat them, so memory grows with the distinct
    text and not with its square. Adding a call costs O(its messages), and so does placing it.
    """

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._ids: set[str] = set()
        self._messages: dict[tuple[object, ...], Message] = {}
        self._prints: dict[int, int] = {}  # of messages that live as long as this object

    def add(self, call: Call) -> None:
        """Add a call; calls may come in any order where they have timestamps.

        One that was answered with nothing, or was recorded before under the same id, is left out.
        """
        if not call.choices or call.id in self._ids:
            return
        self._ids.add(call.id)
        shared = tuple(self._shared(message) for message in call.inputs)
        choices = tuple(_stamped(choice, call.timestamp) for choice in call.choices)
        self._calls.append(dataclasses.replace(call, inputs=shared, choices=choices))

    def sessions(self, *, source: str, format_name: str, path: str) -> Iterator[Session]:
        """The conversations, by the time of their first call."""
        names: dict[str, int] = {}
        for conversation in self._conversations():
            first = conversation.first
            name = first.group or first.id
            names[name] = names.get(name, 0) + 1
            yield Session(
                id=name if names[name] == 1 else f"{name}#{names[name]}",
                messages=tuple(conversation.messages),
                source=source,
                model=first.model,
                format=format_name,
                tools=conversation.tools,
                path=path,
                line=first.line,
            )

    def _shared(self, message: Message) -> Message:
        message = inherited(message)
        key = (message.role, message.content, message.tool_calls, message.tool_call_id)
        return self._messages.setdefault((*key, message.name, message.reasoning), message)

    def _conversations(self) -> list[_Conversation]:
        found: list[_Conversation] = []
        ends: dict[tuple[str | None, int], list[_End]] = {}
        by_call: dict[str, _End] = {}
        for call in _in_time_order(self._calls):
            conversation, known = self._continued(call, by_call) or self._extended(call, ends)
            if conversation.first is call:
                found.append(conversation)
            conversation.messages.extend(call.inputs[known:])
            prompt_length = len(conversation.messages)
            conversation.messages.extend(call.choices[0])
            conversation.tools = call.tools or conversation.tools
            for choice in call.choices[1:]:
                fork = conversation.forked(call, prompt_length)
                fork.messages.extend(choice)
                found.append(fork)
            end = (conversation, len(conversation.messages))
            by_call[call.id] = end
            key = (call.group, self._chain(conversation.messages)[-1])
            ends.setdefault(key, []).append(end)
        return found

    def _continued(self, call: Call, by_call: dict[str, _End]) -> tuple[_Conversation, int] | None:
        """The conversation that the call names as its past, forked where it has gone on since."""
        if call.continues is None or call.continues not in by_call:
            return None
        conversation, length = by_call[call.continues]
        if len(conversation.messages) != length:
            conversation = conversation.forked(call, length)
        return conversation, 0

    def _extended(
        self, call: Call, ends: dict[tuple[str | None, int], list[_End]]
    ) -> tuple[_Conversation, int]:
        """The longest conversation that the call's input begins with, and its length; else a new
        one."""
        chain = self._chain(call.inputs)
        for length in range(len(chain) - 1, 0, -1):
            waiting = ends.get((call.group, chain[length]), [])
            while waiting:
                conversation, at = waiting.pop(0)
                if len(conversation.messages) == at == length:
                    return conversation, length
        return _Conversation(call), 0

    def _chain(self, messages: Iterable[Message]) -> list[int]:
        """The hash of the first n messages, for every n from none to all."""
        chain = [0]
        for message in messages:
            known = self._prints.get(id(message))
            if known is None:
                known = self._prints[id(message)] = _fingerprint(message)
            chain.append(hash((chain[-1], known)))
        return chain


def _stamped(choice: tuple[Message, ...], timestamp: float | None) -> tuple[Message, ...]:
    """An answer's messages have the time of their call, where they have none themselves."""
    if timestamp is None:
        return choice
    return tuple(
        dataclasses.replace(m, timestamp=timestamp) if m.timestamp is None else m for m in choice
    )


def _in_time_order(calls: list[Call]) -> list[Call]:
    """By time where every call has one, else as recorded; equal times stay as recorded."""
    timed = [(call.timestamp, call) for call in calls if call.timestamp is not None]
    if len(timed) < len(calls):
        return calls
    return [call for _, call in sorted(timed, key=lambda pair: pair[0])]


def _fingerprint(message: Message) -> int:
    """Equal for a message and the same message sent back as history: SDKs strip blanks, drop
    reasoning and rewrite ids and the spacing of arguments on the way."""
    calls = tuple((call.name, _canonical(call.arguments)) for call in message.tool_calls)
    return hash((message.role, (message.content or "").strip(), calls))


def _canonical(arguments: str) -> str:
    try:
        return json_text(parse_json(arguments))
    except TraceError:
        return arguments.strip()
