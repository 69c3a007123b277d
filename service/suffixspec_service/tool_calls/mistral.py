"""Mistral's style: ``[TOOL_CALLS][{"name": ..., "arguments": {...}}]``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from suffixspec_service.tool_calls.base import ToolCall, ToolStyle


class MistralStyle(ToolStyle):
    """See the module's docstring. The newer ``[TOOL_CALLS]name[ARGS]{...}`` is read too."""

    name: ClassVar[str] = "mistral"
    opening: ClassVar[str] = "[TOOL_CALLS]"
    closing: ClassVar[str] = ""

    def write(self, calls: Sequence[ToolCall]) -> str:
        """One list of calls."""
        return f"[TOOL_CALLS][{', '.join(self._object(call) for call in calls)}]"

    def rules(self, call: str, *, many: bool) -> str:
        """One list of calls. Its marker is a special token, which text cannot spell; the list
        alone is read as calls too."""
        more = f'(", " {call})*' if many else ""
        return f'"[" {call} {more} "]"'
