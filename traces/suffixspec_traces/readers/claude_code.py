"""Claude Code: saved sessions and the output of ``--output-format stream-json``.

One generation is spread over several lines that share ``message.id`` (each holds one content
block), with tool results in between. Sub-agents (side chains) are conversations of their own, and
so is what follows a compaction or a prompt that was edited and sent again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field

from suffixspec_traces.model import Message, Session
from suffixspec_traces.readers.base import TraceReader, register
from suffixspec_traces.readers.blocks import assistant_message, block_messages
from suffixspec_traces.readers.messages import as_generated, inherited
from suffixspec_traces.readers.nodes import Node
from suffixspec_traces.readers.source import Sample, Source

_SYNTHETIC = "<synthetic>"  # the "model" of messages that Claude Code itself put in


@dataclass(slots=True)
class _Conversation:
    """A conversation being read. ``at`` holds the message count after each line's uuid."""

    id: str
    line: int | None
    model: str | None = None
    messages: list[Message] = field(default_factory=list)
    by_message_id: dict[str, int] = field(default_factory=dict)
    at: dict[str, int] = field(default_factory=dict)

    def forked(self, length: int, number: int, line: int | None) -> _Conversation:
        """A new conversation that inherits the first messages of this one."""
        fork = _Conversation(f"{self.id.partition('#')[0]}#{number}", line, self.model)
        fork.messages = [inherited(message) for message in self.messages[:length]]
        fork.at = {uuid: count for uuid, count in self.at.items() if count <= length}
        return fork


@register
class ClaudeCodeReader(TraceReader):
    """Reads Claude Code sessions."""

    name = "claude_code"
    description = "Claude Code sessions (~/.claude/projects) and stream-json output"
    empty_hint = "no assistant line in it; the system prompt and hidden reasoning are never stored"

    def sniff(self, sample: Sample) -> bool:
        """A line of type ``user`` or ``assistant`` around an API message."""
        return any(_is_line(item) for item in sample.objects())

    def read(self, source: Source) -> Iterator[Session]:
        """Yield main conversations and side chains in order of their first line."""
        log = _Log(source.stem)
        for record in source.items():
            with source.checked(record.line):
                log.add(record.node, record.line)
        for conversation in log.conversations:
            if conversation.messages:
                yield Session(
                    id=conversation.id,
                    messages=tuple(conversation.messages),
                    source=source.stem,
                    model=conversation.model,
                    format=self.name,
                    path=source.path,
                    line=conversation.line,
                )


class _Log:
    """Sorts lines into conversations."""

    def __init__(self, stem: str) -> None:
        self._session = stem
        self._open: dict[str, _Conversation] = {}  # by session, and by side chain in it
        self._forks: dict[str, int] = {}
        self._uuids: set[str] = set()
        self._sidechains: dict[str, str] = {}  # line uuid -> key of its side chain
        self.conversations: list[_Conversation] = []

    def add(self, line: Node, number: int | None) -> None:
        """Add one line; kinds that are no message (summaries, progress, results) add nothing."""
        kind = line["type"].optional_text()
        uuid = line["uuid"].label()
        session = line.first("sessionId", "session_id").label()
        if session is None and kind == "system" and isinstance(line["message"].value, dict):
            session = line["message"]["session_id"].label()  # as wrapped by some loggers
        self._session = session or self._session
        if uuid is not None:
            if uuid in self._uuids:
                return  # a resumed session repeats the lines it resumes
            self._uuids.add(uuid)
        conversation = self._conversation(line, number)
        if kind == "system" and line["subtype"].value == "compact_boundary":
            conversation = self._begin(conversation, 0, number)
        elif kind == "user":
            conversation = self._user(line, conversation, number)
        elif kind == "assistant":
            _assistant(line, conversation)
        if uuid is not None:
            conversation.at[uuid] = len(conversation.messages)

    def _conversation(self, line: Node, number: int | None) -> _Conversation:
        key = self._session
        chain = self._side_chain(line)
        if chain is not None:
            key = f"{key}/{chain}"
        if key not in self._open:
            self._open[key] = _Conversation(key, number)
            self.conversations.append(self._open[key])
        return self._open[key]

    def _side_chain(self, line: Node) -> str | None:
        """What tells this line's side chain from others; ``None`` on the main conversation."""
        task = line["parent_tool_use_id"].label()
        if task is not None:
            return task
        if not line["isSidechain"].flag(False):
            return None
        agent = line["agentId"].label()
        uuid, parent = line["uuid"].label() or "", line["parentUuid"].label() or ""
        if agent is None:  # older versions: the chain that the parent is of, else a new one
            agent = self._sidechains.get(parent, f"sidechain-{uuid or len(self._open)}")
        self._sidechains[uuid] = agent
        return agent

    def _begin(self, conversation: _Conversation, length: int, number: int | None) -> _Conversation:
        key = conversation.id.partition("#")[0]
        self._forks[key] = self._forks.get(key, 1) + 1
        fork = conversation.forked(length, self._forks[key], number)
        if not conversation.messages:  # nothing was said yet: it goes on under its own name
            return conversation
        self._open[key] = fork
        self.conversations.append(fork)
        return fork

    def _user(self, line: Node, conversation: _Conversation, number: int | None) -> _Conversation:
        timestamp = line["timestamp"].timestamp()
        messages = [
            dataclasses.replace(message, timestamp=timestamp)
            for message in block_messages(line["message"])
        ]
        resumes = conversation.at.get(line["parentUuid"].label() or "")
        if resumes is not None and all(message.role == "user" for message in messages):
            # what the model said after the parent is not this prompt's past: it was rewound
            rewound = any(message.generated for message in conversation.messages[resumes:])
            if rewound:
                conversation = self._begin(conversation, resumes, number)
        conversation.messages.extend(messages)
        return conversation


def _assistant(line: Node, conversation: _Conversation) -> None:
    body = line["message"]
    model = body["model"].optional_text()
    genuine = model != _SYNTHETIC and not line["isApiErrorMessage"].flag(False)
    if genuine and conversation.model is None:
        conversation.model = model
    part = dataclasses.replace(
        assistant_message(body["content"]), timestamp=line["timestamp"].timestamp()
    )
    message_id = body["id"].label()
    position = conversation.by_message_id.get(message_id or "")
    if position is None:
        if message_id is not None:
            conversation.by_message_id[message_id] = len(conversation.messages)
        conversation.messages.append(as_generated(part, genuine))
        return
    whole = _joined(conversation.messages[position], part)
    conversation.messages[position] = as_generated(whole, genuine)


def _joined(first: Message, more: Message) -> Message:
    """One generation out of two of its lines; calls logged twice are kept once."""
    known = {call.id for call in first.tool_calls if call.id is not None}
    new = tuple(call for call in more.tool_calls if call.id not in known)
    return dataclasses.replace(
        first,
        content=_text(first.content, more.content),
        reasoning=_text(first.reasoning, more.reasoning),
        tool_calls=first.tool_calls + new,
    )


def _text(left: str | None, right: str | None) -> str | None:
    return right if left is None else left + (right or "")


def _is_line(item: dict[str, object]) -> bool:
    message = item.get("message")
    return (
        item.get("type") in ("user", "assistant")
        and isinstance(message, dict)
        and message.get("role") == item["type"]
        and "content" in message
    )
