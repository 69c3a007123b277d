from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from suffixspec_traces.model import Message, Session


def _line(message: Message) -> str:
    text = f"{message.role}{'*' if message.generated else ''}: {message.content}"
    text += "".join(f" +{c.name}({c.arguments})#{c.id}" for c in message.tool_calls)
    text += f" @{message.tool_call_id}" if message.tool_call_id is not None else ""
    return text + (f" ?{message.reasoning}" if message.reasoning is not None else "")


@pytest.fixture(scope="session")
def outline() -> Callable[[Session], list[str]]:
    """A session as text: a head (id, model, number of tools), then a line per message.

    ``*`` generated, ``+name(arguments)#id`` tool call, ``@id`` answered call, ``?reasoning``.
    """

    def outlined(session: Session) -> list[str]:
        head = f"{session.id} {session.model} {len(session.tools)}"
        return [head, *map(_line, session.messages)]

    return outlined


@pytest.fixture(scope="session")
def fixtures() -> Path:
    return Path(__file__).parents[2] / "data" / "traces"
