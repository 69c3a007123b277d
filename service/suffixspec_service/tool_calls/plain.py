"""Llama 3's style: the bare object, ``{"name": ..., "parameters": {...}}``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from suffixspec_service.tool_calls.base import ToolCall, ToolStyle


class JsonStyle(ToolStyle):
    """See the module's docstring. ``<|python_tag|>`` before it, ``arguments`` instead of
    ``parameters`` and a list of objects are read too."""

    name: ClassVar[str] = "json"
    opening: ClassVar[str] = ""
    closing: ClassVar[str] = ""
    arguments_key: ClassVar[str] = "parameters"

    def write(self, calls: Sequence[ToolCall]) -> str:
        """One object after the other."""
        return "; ".join(self._object(call) for call in calls)

    def rules(self, call: str, *, many: bool) -> str:
        """One object after the other."""
        return f'{call} ("; " {call})*' if many else call
