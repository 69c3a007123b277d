"""Tool calls: one contract of styles (:mod:`.base`), a file per style, one parser for all."""

from __future__ import annotations

from suffixspec_service.tool_calls.base import Tool, ToolCall, ToolStyle
from suffixspec_service.tool_calls.grammar import calls_grammar
from suffixspec_service.tool_calls.hermes import HermesStyle
from suffixspec_service.tool_calls.mistral import MistralStyle
from suffixspec_service.tool_calls.parser import CallDelta, Delta, ToolCallParser
from suffixspec_service.tool_calls.plain import JsonStyle

STYLES: dict[str, ToolStyle] = {
    style.name: style for style in (HermesStyle(), MistralStyle(), JsonStyle())
}


def style_of(chat_template: str | None) -> ToolStyle:
    """The style that a model's chat template speaks of; Hermes' where it speaks of none."""
    template = chat_template or ""
    if "[TOOL_CALLS]" in template:
        return STYLES["mistral"]
    if "<|python_tag|>" in template or '"parameters": dictionary' in template:
        return STYLES["json"]
    return STYLES["hermes"]


__all__ = [
    "STYLES",
    "CallDelta",
    "Delta",
    "Tool",
    "ToolCall",
    "ToolCallParser",
    "ToolStyle",
    "calls_grammar",
    "style_of",
]
