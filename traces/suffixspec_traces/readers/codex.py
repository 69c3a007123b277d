"""Codex rollouts: ``~/.codex/sessions/.../rollout-*.jsonl``.

``response_item`` lines hold what went to and came from the model; ``event_msg`` lines repeat the
same text for the screen and are left out. Older rollouts have bare items without an envelope.
"""

from __future__ import annotations

from collections.abc import Iterator

from suffixspec_traces.model import Message, Session
from suffixspec_traces.readers.base import TraceReader, register
from suffixspec_traces.readers.items import ItemAssembler
from suffixspec_traces.readers.nodes import Node
from suffixspec_traces.readers.source import Sample, Source

_ENVELOPES = ("session_meta", "response_item", "event_msg", "turn_context", "compacted")
_RESULTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")


@register
class CodexReader(TraceReader):
    """Reads Codex rollouts, one session a file; a compaction begins another."""

    name = "codex"
    description = "Codex rollouts (~/.codex/sessions)"
    empty_hint = (
        "no response_item is an assistant message or a call; encrypted reasoning is not text"
    )

    def sniff(self, sample: Sample) -> bool:
        """Lines with a ``payload`` under a rollout type, or an old header before bare items."""
        objects = sample.objects()
        if any(o.get("type") in _ENVELOPES and isinstance(o.get("payload"), dict) for o in objects):
            return True
        return bool(objects) and _is_old_header(objects[0]) and any(map(_is_item, objects[1:]))

    def read(self, source: Source) -> Iterator[Session]:
        """Yield the conversation, split where its history was compacted."""
        rollout = _Rollout(source, self.name)
        for record in source.items():
            with source.checked(record.line):
                done = rollout.add(record.node, record.line)
                if done is not None:
                    yield done
        last = rollout.session()
        if last is not None:
            yield last


class _Rollout:
    """The state of a rollout being read."""

    def __init__(self, source: Source, format_name: str) -> None:
        self._source = source
        self._format = format_name
        self._id = source.stem
        self._model: str | None = None
        self._instructions: str | None = None
        self._part = 1
        self._line: int | None = None
        self._items = ItemAssembler()

    def add(self, line: Node, number: int | None) -> Session | None:
        """Add one line; returns the session that it ends, if it ends one."""
        kind = line["type"].optional_text()
        timestamp = line["timestamp"].timestamp()
        if kind in _ENVELOPES and "payload" in line:
            payload = line["payload"]
            if kind == "response_item":
                self._add_item(payload, number, timestamp)
            elif kind == "compacted":
                return self._compacted(payload, number, timestamp)
            elif kind == "session_meta":
                self._meta(payload)
            elif kind == "turn_context":
                self._model = self._model or payload["model"].optional_text()
            elif payload["type"].value == "token_count":
                self._items.close()  # it follows every response
        elif _is_old_header(line.object()):
            self._meta(line)
        elif _is_item(line.object()):
            self._add_item(line, number, timestamp)
        return None

    def session(self) -> Session | None:
        """What has been read since the last compaction."""
        if not self._items.messages:
            return None
        system = [Message("system", self._instructions)] if self._instructions else []
        return Session(
            id=self._id if self._part == 1 else f"{self._id}#{self._part}",
            messages=(*system, *self._items.messages),
            source=self._source.stem,
            model=self._model,
            format=self._format,
            path=self._source.path,
            line=self._line,
        )

    def _add_item(
        self, item: Node, number: int | None, timestamp: float | None, *, generated: bool = True
    ) -> None:
        self._line = self._line or number
        self._items.add(item, generated=generated, timestamp=timestamp)

    def _meta(self, meta: Node) -> None:
        if self._items.messages:
            return  # a forked rollout repeats the header of the one it came from
        self._id = meta["id"].label() or self._id
        base = meta["base_instructions"]
        text = base["text"] if isinstance(base.value, dict) else base
        self._instructions = text.optional_text() or meta["instructions"].optional_text()

    def _compacted(
        self, payload: Node, number: int | None, timestamp: float | None
    ) -> Session | None:
        """The history was replaced: by recorded items, else by a summary."""
        done = self.session()
        self._part += done is not None
        self._items, self._line = ItemAssembler(), None
        for item in payload["replacement_history"].elements_if_any():
            self._add_item(item, number, timestamp, generated=False)
        summary = payload["message"].optional_text()
        if summary and not self._items.messages:
            self._items.messages.append(Message("user", summary, timestamp=timestamp))
        self._items.close()
        return done


def _is_old_header(item: dict[str, object]) -> bool:
    return "type" not in item and "id" in item and "timestamp" in item and "messages" not in item


def _is_item(item: dict[str, object]) -> bool:
    kind = item.get("type")
    if kind == "message":
        content = item.get("content")
        return isinstance(content, list) and "role" in item and "model" not in item
    return kind in ("function_call", "reasoning", "local_shell_call", *_RESULTS)
