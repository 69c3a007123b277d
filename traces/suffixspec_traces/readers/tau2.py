"""tau2-bench result files: simulations between an agent and a simulated user who has tools too.

Only what the agent's model sees and writes is kept: the user's own tool calls and their results
are dropped, and the greeting that every simulation opens with was written by nobody.
"""

from __future__ import annotations

from collections.abc import Iterator

from suffixspec_traces.model import Message, Session, ToolCall
from suffixspec_traces.readers.base import TraceReader, register
from suffixspec_traces.readers.messages import as_generated, tool_calls, tool_definitions
from suffixspec_traces.readers.nodes import Node
from suffixspec_traces.readers.source import Sample, Source


@register
class Tau2Reader(TraceReader):
    """Reads tau2-bench results, one session per simulation."""

    name = "tau2"
    description = "tau2-bench results (simulations)"
    empty_hint = "the simulations hold no agent message besides the greeting"

    def sniff(self, sample: Sample) -> bool:
        """An object with a ``simulations`` list."""
        return any(isinstance(o.get("simulations"), list) for o in sample.objects())

    def read(self, source: Source) -> Iterator[Session]:
        """Yield one session per simulation."""
        for record in source.items():
            with source.checked(record.line):
                results = record.node
                histories = _histories(results["tasks"])
                for simulation in results["simulations"].elements():
                    with source.checked(record.line):
                        yield self._session(simulation, results["info"], histories, source)

    def _session(
        self, simulation: Node, info: Node, histories: dict[str, int], source: Source
    ) -> Session:
        task = simulation["task_id"].label() or ""
        environment = _object(info, "environment_info")
        policy = environment["policy"].optional_text()
        messages = [Message("system", policy)] if policy else []
        inherited = histories.get(task, 0)
        for position, node in enumerate(_flat(simulation["messages"])):
            messages.extend(_messages(node, fresh=position >= inherited))
        return Session(
            id=simulation["id"].label() or f"{task}-{simulation['trial'].label() or 0}",
            messages=tuple(messages),
            source=source.stem,
            model=_object(info, "agent_info")["llm"].optional_text(),
            format=self.name,
            tools=_tools(environment["tool_defs"]),
            path=source.path,
        )


def _object(node: Node, key: str) -> Node:
    """An object that may be missing altogether."""
    if node.value is None or node[key].value is None:
        return Node({})
    return node[key]


def _tools(definitions: Node) -> tuple[dict[str, object], ...]:
    return tool_definitions(definitions) if isinstance(definitions.value, list) else ()


def _histories(tasks: Node) -> dict[str, int]:
    """How many messages each task begins with, written before the simulation."""
    lengths: dict[str, int] = {}
    for task in tasks.elements_if_any():
        history = _object(task, "initial_state")["message_history"]
        lengths[task["id"].label() or ""] = len(list(_flat(history)))
    return lengths


def _flat(messages: Node) -> Iterator[Node]:
    """The messages, bundles of several tool results taken apart."""
    for node in messages.elements_if_any():
        if "tool_messages" in node:
            yield from node["tool_messages"].elements()
        else:
            yield node


def _messages(node: Node, *, fresh: bool) -> list[Message]:
    role = node["role"].text()
    content = node["content"].optional_text()
    timestamp = node["timestamp"].timestamp()
    if role == "tool":
        if node["requestor"].value == "user":
            return []
        call_id = node["id"].label()
        return [Message("tool", content, tool_call_id=call_id, timestamp=timestamp)]
    if role == "user":
        return [Message("user", content, timestamp=timestamp)] if content else []
    if role == "system":
        return [Message("system", content, timestamp=timestamp)]
    if role != "assistant":
        node["role"].fail(f"unknown role {role[:40]!r}")
    message = Message("assistant", content, tool_calls=_exact_calls(node), timestamp=timestamp)
    # the greeting has no usage and no raw answer; a model's message has both
    return [as_generated(message, fresh and ("usage" in node or "raw_data" in node))]


def _exact_calls(node: Node) -> tuple[ToolCall, ...]:
    """The calls, with the arguments' text as the model wrote it where the raw answer is kept."""
    calls = tool_calls(node["tool_calls"])
    raw = node["raw_data"]
    if not calls or not isinstance(raw.value, dict) or "message" not in raw:
        return calls
    exact = tool_calls(raw["message"]["tool_calls"])
    same = [call.name for call in exact] == [call.name for call in calls]
    return exact if same else calls
