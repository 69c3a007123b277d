"""What the recorder is made of: a model that writes, tasks, and environments with real tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from suffixspec_traces.model import Message, ToolCall

Arguments = dict[str, Any]


class TextModel(Protocol):
    """A language model as the recorder uses it."""

    @property
    def name(self) -> str:
        """The model's name, written into the recording."""

    @property
    def settings(self) -> Mapping[str, object]:
        """How it generates (temperature, seed …), written into the recording."""

    def generate(
        self, prompt: NDArray[np.int32], *, key: str, max_new_tokens: int
    ) -> NDArray[np.int32]:
        """What the model says after ``prompt``: ``(n,)`` int32, its end-of-turn token included
        where it ended. Called by many threads at once, one per session.

        ``key`` names the session, so that a model can keep what it computed for it.
        """

    def release(self, key: str) -> None:
        """The session is over; what was kept for it can go."""

    def close(self) -> None:
        """Nothing more is wanted: what is being generated ends with an error at once."""


class ToolFailure(Exception):  # noqa: N818  (it is handed to the model as a result, not raised on)
    """A tool could not do what it was asked; the message is the tool's result."""


class Environment(Protocol):
    """The world one session acts on."""

    def call(self, name: str, arguments: Arguments) -> str:
        """Really run a tool; the text the agent sees. Raises :class:`ToolFailure`."""

    def close(self) -> None:
        """Remove what the environment made (directories, connections)."""


@dataclass(frozen=True, slots=True)
class Step:
    """One exchange of a script.

    The user asks; the model answers; if its answer holds a tool call, that call is run, else the
    scripted one is. The result is handed over, and ``follow_up`` asks the model to use it.

    Where ``block`` is ``None`` the call is forced as a server does for a named ``tool_choice``: the
    prompt already holds the call up to its arguments, which the model writes. Otherwise the model
    is free, and a fenced code block of that language counts as the call: ``wrap`` makes the
    arguments from the block's text.
    """

    user: str
    tool: str
    arguments: Arguments
    follow_up: str
    block: str | None = None
    wrap: Callable[[str], Arguments] | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """A scripted session: its identity, its rules, its tools and its steps.

    ``examples`` are canned messages that show the model how it is done; they are not generated.
    ``open_environment`` makes the world afresh; until it is called, nothing exists outside memory.
    """

    id: str
    workload: str
    system: str
    tools: tuple[dict[str, object], ...]
    examples: tuple[Message, ...]
    steps: tuple[Step, ...]
    open_environment: Callable[[], Environment] = field(repr=False)


TaskMaker = Callable[[int, int], Task]
"""``(seed, number) -> Task``; equal arguments give equal tasks."""


def tool(name: str, description: str, **parameters: str) -> dict[str, object]:
    """An OpenAI tool definition whose parameters are all required strings."""
    properties = {key: {"type": "string", "description": text} for key, text in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


def request(name: str, arguments: Arguments) -> str:
    """What a scripted user says to have a tool called; small models copy the arguments from it."""
    return f"Call {name} with {json.dumps(arguments, ensure_ascii=False)}"


def example(
    name: str, arguments: Arguments, result: str, follow_up: str, answer: str
) -> tuple[Message, ...]:
    """One exchange as canned messages: a request, a call, its result, and an answer about it."""
    call_id = f"example_{name}"
    call = ToolCall(name, json.dumps(arguments, ensure_ascii=False), call_id)
    return (
        Message("user", request(name, arguments)),
        Message("assistant", None, tool_calls=(call,)),
        Message("tool", result, tool_call_id=call_id, name=name),
        Message("user", follow_up),
        Message("assistant", answer),
    )


def tool_names(tools: tuple[dict[str, object], ...]) -> set[str]:
    """The names of tool definitions."""
    return {name for name, _ in map(_signature, tools)}


def tool_list(tools: tuple[dict[str, object], ...]) -> str:
    """The tools as the agent is told of them: one line each, which small models read best."""
    return "\n".join(f"- {text}" for _, text in map(_signature, tools))


def _signature(definition: dict[str, object]) -> tuple[str, str]:
    function: Any = definition["function"]
    parameters = ", ".join(function["parameters"]["properties"])
    return function["name"], f"{function['name']}({parameters}): {function['description']}"


def argument(arguments: Arguments, key: str) -> str:
    """A required string argument. Raises :class:`ToolFailure`."""
    value = arguments.get(key)
    if not isinstance(value, str):
        raise ToolFailure(f"error: the argument {key!r} is required and must be a string")
    return value
