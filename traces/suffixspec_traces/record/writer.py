"""Sessions as OpenAI chat JSONL, with token ids where they are known."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import orjson

from suffixspec_traces.model import Message, Session


def session_record(
    session: Session, extra: Mapping[str, object] | None = None
) -> dict[str, object]:
    """One JSON-ready object; ``extra`` keys (settings, creation time) stand before the messages."""
    record: dict[str, object] = {"id": session.id, "source": session.source, "model": session.model}
    record.update(extra or {})
    if session.tools:
        record["tools"] = list(session.tools)
    record["messages"] = [_message(m) for m in session.messages]
    return record


def _message(message: Message) -> dict[str, object]:
    record: dict[str, object] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        record["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        record["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        record["name"] = message.name
    if message.reasoning is not None:
        record["reasoning_content"] = message.reasoning
    if message.role == "assistant" and not message.generated:
        record["x_generated"] = False
    if message.timestamp is not None:
        record["timestamp"] = round(message.timestamp, 3)
    if message.prompt_token_ids is not None:
        record["prompt_token_ids"] = message.prompt_token_ids.tolist()
    if message.token_ids is not None:
        record["token_ids"] = message.token_ids.tolist()
    return record


def write_sessions(
    path: Path, sessions: Iterable[Session], extra: Mapping[str, object] | None = None
) -> int:
    """Write sessions one a line, as they come; gzip where the name ends in ``.gz``.

    The same sessions give the same bytes. Returns how many sessions were written.
    """
    return write_records(path, (session_record(session, extra) for session in sessions))


def write_records(path: Path, records: Iterable[Mapping[str, object]]) -> int:
    """As :func:`write_sessions`, for what :func:`session_record` made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with _writing(path) as file:
        for record in records:
            file.write(orjson.dumps(record) + b"\n")
            count += 1
    return count


@contextmanager
def _writing(path: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    with path.open("wb") as raw:
        if path.suffix != ".gz":
            yield raw
            return
        # No name and no time in the header, so that equal sessions make equal files.
        with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed:
            yield packed
