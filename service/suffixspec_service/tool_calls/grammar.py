"""Grammars that force tool calls, and what else may be said instead."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from suffixspec_engine.grammar import GrammarSpec
from suffixspec_service.tool_calls.base import Tool, ToolStyle

_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def calls_grammar(
    tools: Sequence[Tool],
    style: ToolStyle,
    *,
    many: bool,
    otherwise: Mapping[str, Any] | None = None,
) -> GrammarSpec:
    """The output is one call (``many``: or more) of one of ``tools`` with fitting arguments.

    Args:
        tools: at least one.
        style: how calls are written.
        many: more than one call may be made.
        otherwise: a JSON schema; JSON that fits it may be said instead of calls.
    """
    lines = [f"start: calls{' | answer' if otherwise is not None else ''}"]
    lines.append(f"calls: {style.rules('call', many=many)}")
    lines.append("call: " + " | ".join(f"call_{i}" for i in range(len(tools))))
    for number, tool in enumerate(tools):
        head = f'{{"name": {json.dumps(tool.name)}, "{style.arguments_key}": '
        lines.append(f'call_{number}: {json.dumps(head)} arguments_{number} "}}"')
        lines.append(f"arguments_{number}: %json {_compact(tool.parameters)}")
    if otherwise is not None:
        lines.append(f"answer: %json {json.dumps(dict(otherwise))}")
    return GrammarSpec.grammar("\n".join(lines))


def _compact(schema: Mapping[str, Any]) -> str:
    """The schema, written without blanks but those that models write: a small model can spend
    its whole output on white space."""
    parameters = dict(schema) or {"type": "object", "properties": {}}
    parameters.setdefault("type", "object")
    return json.dumps(parameters | {"x-guidance": _SPACING})
