"""mini-swe-agent trajectories (``.traj.json``).

Version 1 puts actions as code blocks into the text and answers as the user; version 1.1 uses tool
calls, or items of the Responses API. The closing message of role ``exit`` is the agent's own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from suffixspec_traces.model import Message, Session
from suffixspec_traces.readers.base import TraceReader, register
from suffixspec_traces.readers.items import ItemAssembler
from suffixspec_traces.readers.messages import openai_message
from suffixspec_traces.readers.nodes import Node
from suffixspec_traces.readers.source import Sample, Source


@register
class MiniSWEAgentReader(TraceReader):
    """Reads mini-swe-agent trajectories, one session a file."""

    name = "mini_swe_agent"
    description = "mini-swe-agent trajectories, versions 1 and 1.1 (.traj.json)"
    empty_hint = "the run ended before the model answered"

    def sniff(self, sample: Sample) -> bool:
        """A mini-swe-agent ``trajectory_format``, or ``messages`` beside the run's ``info``."""
        return any(_is_trajectory(item) for item in sample.objects())

    def read(self, source: Source) -> Iterator[Session]:
        """Yield the session of each trajectory."""
        for record in source.items():
            with source.checked(record.line):
                node = record.node
                yield Session(
                    id=node["instance_id"].label() or source.stem,
                    messages=tuple(_messages(node["messages"])),
                    source=source.stem,
                    model=_model(node["info"]),
                    format=self.name,
                    path=source.path,
                    line=record.line,
                )


def _messages(nodes: Node) -> Iterator[Message]:
    assembler = ItemAssembler()
    for node in nodes.elements():
        if "role" in node and node["role"].value != "exit":
            message = openai_message(node)
            if message.timestamp is None:
                message = dataclasses.replace(message, timestamp=_time(node["extra"]))
            assembler.close()
            assembler.messages.append(message)
        elif "output" in node and isinstance(node["output"].value, list):  # a whole response
            assembler.close()
            for item in node["output"].elements():
                assembler.add(item, generated=True, timestamp=_time(node["extra"]))
        elif "role" not in node:
            assembler.add(node, generated=True, timestamp=_time(node["extra"]))
    return iter(assembler.messages)


def _time(extra: Node) -> float | None:
    if not isinstance(extra.value, dict):
        return None
    if "timestamp" in extra:
        return extra["timestamp"].timestamp()
    response = extra["response"]
    return response["created"].timestamp() if isinstance(response.value, dict) else None


def _model(info: Node) -> str | None:
    node = info
    for key in ("config", "model", "model_name"):
        if not isinstance(node.value, dict):
            return None
        node = node[key]
    return node.optional_text()


def _is_trajectory(item: dict[str, object]) -> bool:
    if not isinstance(item.get("messages"), list):
        return False
    version = item.get("trajectory_format")
    if isinstance(version, str):
        return version.startswith("mini-swe-agent")
    info = item.get("info")
    return isinstance(info, dict) and bool(
        {"mini_version", "model_stats", "submission"} & info.keys()
    )
