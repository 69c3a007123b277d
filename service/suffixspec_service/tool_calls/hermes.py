"""Hermes' and Qwen's style: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from suffixspec_service.tool_calls.base import ToolCall, ToolStyle


class HermesStyle(ToolStyle):
    """See the module's docstring."""

    name: ClassVar[str] = "hermes"
    opening: ClassVar[str] = "<tool_call>"
    closing: ClassVar[str] = "</tool_call>"

    def write(self, calls: Sequence[ToolCall]) -> str:
        """One pair of tags per call."""
        return "\n".join(f"<tool_call>\n{self._object(call)}\n</tool_call>" for call in calls)

    def rules(self, call: str, *, many: bool) -> str:
        """One pair of tags per call."""
        one = rf'"<tool_call>\n" {call} "\n</tool_call>"'
        return f'{one} ("\\n" {one})*' if many else one
