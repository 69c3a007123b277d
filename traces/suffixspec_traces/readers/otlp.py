"""The JSON encoding of OpenTelemetry spans (OTLP): finding spans, opening attribute values."""

from __future__ import annotations

from collections.abc import Iterator

from suffixspec_traces.readers.nodes import Node

_SCOPES = ("scopeSpans", "scope_spans", "instrumentationLibrarySpans")


def spans(export: Node) -> Iterator[Node]:
    """The spans of one export request."""
    for resource in export.first("resourceSpans", "resource_spans").elements():
        for key in _SCOPES:
            for scope in resource[key].elements_if_any():
                yield from scope["spans"].elements_if_any()


def attributes(owner: Node) -> Node:
    """The ``attributes`` of a span or event as one object of plain values."""
    listed = owner["attributes"]
    if isinstance(listed.value, dict):  # some exporters write the plain object
        return listed
    pairs = {entry["key"].text(): _plain(entry["value"]) for entry in listed.elements_if_any()}
    return Node(pairs, owner, "attributes")


def nested(flat: Node, prefix: str) -> Node:
    """Attributes such as ``llm.input_messages.0.message.role`` as the structure they spell.

    Returns the part below ``prefix``: objects, and lists where the keys are numbers; null where no
    attribute has the prefix.
    """
    root: dict[str, object] = {}
    for key, value in flat.object().items():
        if not key.startswith(prefix + "."):
            continue
        *path, last = key[len(prefix) + 1 :].split(".")
        place = root
        for step in path:
            below = place.setdefault(step, {})
            if not isinstance(below, dict):
                break  # a value where another key needs an object: the value stays
            place = below
        else:
            place[last] = value
    return Node(_with_lists(root) if root else None, flat, prefix)


def _with_lists(tree: dict[str, object]) -> object:
    opened = {k: _with_lists(v) if isinstance(v, dict) else v for k, v in tree.items()}
    if opened and all(key.isdecimal() and len(key) < 10 for key in opened):
        return [opened[key] for key in sorted(opened, key=int)]
    return opened


def _plain(value: Node) -> object:
    """OTLP's ``AnyValue`` as the plain value it stands for."""
    if not isinstance(value.value, dict):
        return value.value
    for key in ("stringValue", "intValue", "doubleValue", "boolValue", "bytesValue"):
        if key in value:
            return value[key].value
    if "arrayValue" in value:
        return [_plain(item) for item in value["arrayValue"]["values"].elements_if_any()]
    if "kvlistValue" in value:
        pairs = value["kvlistValue"]["values"].elements_if_any()
        return {pair["key"].text(): _plain(pair["value"]) for pair in pairs}
    return None
