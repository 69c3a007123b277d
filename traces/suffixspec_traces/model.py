"""What a trace is once it has been read: sessions of messages, whatever file they came from.

Every reader turns its format into these types, and everything after it (rendering, tokenizing,
replay, reports) sees only these.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call the model made. ``arguments`` is the JSON text as generated where it is known,
    else the compact JSON rendering of the recorded object."""

    name: str
    arguments: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    ``generated`` says whether the model wrote it during this session: canned greetings and
    inherited text are assistant messages that were not generated, and must not be counted.
    ``prompt_token_ids`` / ``token_ids`` are the exact ids of the generation where the format
    records them; otherwise the text is tokenized again.
    """

    role: Role
    content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None
    generated: bool = False
    timestamp: float | None = None  # seconds since the epoch
    prompt_token_ids: NDArray[np.int32] | None = None
    token_ids: NDArray[np.int32] | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """One recorded conversation, in order."""

    id: str
    messages: tuple[Message, ...]
    source: str = ""  # the workload or file it belongs to; reports group by it
    model: str | None = None
    format: str = ""  # the reader's name
    tools: tuple[dict[str, object], ...] = ()  # OpenAI tool definitions, where recorded
    path: str | None = None
    line: int | None = None

    @property
    def generated_messages(self) -> int:
        """How many messages the model wrote."""
        return sum(m.generated for m in self.messages)


@dataclass(frozen=True, slots=True)
class Turn:
    """One generation as a request sees it: the whole prompt, then the output, as token ids.

    ``prompt`` and ``output`` are ``(n,)`` int32; they may be views of one shared buffer and must
    not be written to. ``tool`` is the tool that the output calls (``None``: it calls none), and
    ``after_tool`` the tool whose result came just before.
    """

    prompt: NDArray[np.int32]
    output: NDArray[np.int32]
    tool: str | None = None
    after_tool: str | None = None
    timestamp: float | None = None


@dataclass(frozen=True, slots=True)
class TokenSession:
    """A session rendered and tokenized: what the replay decodes. ``start`` is in seconds."""

    id: str
    turns: tuple[Turn, ...]
    source: str = ""
    model: str | None = None
    start: float | None = None

    @property
    def output_tokens(self) -> int:
        """Generated tokens over all turns."""
        return sum(len(t.output) for t in self.turns)


@dataclass(frozen=True, slots=True)
class SkippedLine:
    """A trace line that could not be read and was skipped on request."""

    path: str
    line: int | None
    reason: str


@dataclass(slots=True)
class ReadReport:
    """What reading found: counts for the head of a report."""

    files: int = 0
    sessions: int = 0
    formats: dict[str, int] = field(default_factory=dict)  # reader name -> sessions
    skipped: list[SkippedLine] = field(default_factory=list)
