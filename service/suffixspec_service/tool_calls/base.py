"""The contract of a tool-call style: how a family of models writes calls, and reads answers."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call.

    Attributes:
        name: what the model calls it.
        description: what it is for; empty: not said.
        parameters: JSON schema of its arguments.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]

    def as_openai(self) -> dict[str, Any]:
        """The tool as chat templates expect it."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that stands in a conversation: ``arguments`` is JSON text."""

    name: str
    arguments: str


class ToolStyle(ABC):
    """One way of writing tool calls.

    Attributes:
        name: of the style.
        opening: the text that begins calls; empty: they begin the output, with a brace.
        closing: the text that ends a call; empty: the JSON does.
        arguments_key: what the arguments are called.
    """

    name: ClassVar[str]
    opening: ClassVar[str]
    closing: ClassVar[str]
    arguments_key: ClassVar[str] = "arguments"

    @abstractmethod
    def write(self, calls: Sequence[ToolCall]) -> str:
        """Calls as the model would have written them."""

    @abstractmethod
    def rules(self, call: str, *, many: bool) -> str:
        """Lark: what follows ``start:`` so that the output is calls, each derived from the rule
        named ``call``, the JSON object. ``many``: more than one is allowed."""

    def _object(self, call: ToolCall) -> str:
        return json.dumps(
            {"name": call.name, self.arguments_key: arguments_of(call)}, ensure_ascii=False
        )


def arguments_of(call: ToolCall) -> Any:
    """The arguments as a value; as text where they are no JSON (a model wrote them)."""
    try:
        return json.loads(call.arguments or "{}")
    except ValueError:
        return call.arguments
