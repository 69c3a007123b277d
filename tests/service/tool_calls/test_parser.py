"""Tool calls read while they are written: however the text is cut, the result is the same."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suffixspec_service.tool_calls import STYLES, CallDelta, ToolCall, ToolCallParser
from suffixspec_service.tool_calls.scanner import CallScanner, State

NAMES = ("get_weather", "search")
WEATHER = '{"city": "Rome", "when": {"day": 3}}'
OUTPUTS: dict[str, tuple[str, str, list[tuple[str, str]]]] = {
    "hermes": (
        '<tool_call>\n{"name": "get_weather", "arguments": ' + WEATHER + "}\n</tool_call>",
        "",
        [("get_weather", WEATHER)],
    ),
    "text before": (
        'Let me see.\n<tool_call>{"name": "search", "arguments": {"q": "a<b"}}</tool_call>',
        "Let me see.\n",
        [("search", '{"q": "a<b"}')],
    ),
    "two of them, text after": (
        '<tool_call>{"name": "search", "arguments": {}}</tool_call>\n'
        '<tool_call>{"name": "get_weather", "arguments": {"city": "{"}}</tool_call> done',
        " done",
        [("search", "{}"), ("get_weather", '{"city": "{"}')],
    ),
    "arguments first": (
        '<tool_call>{"arguments": {"q": 1}, "name": "search"}</tool_call>',
        "",
        [("search", '{"q": 1}')],
    ),
    "arguments as text": (
        '{"name": "search", "arguments": "{\\"q\\": 1}"}',
        "",
        [("search", '{"q": 1}')],
    ),
    "nested": (
        '{"type": "function", "function": {"name": "search", "arguments": {"q": 1}}}',
        "",
        [("search", '{"q": 1}')],
    ),
    "llama": ('{"name": "search", "parameters": {"q": 1}}', "", [("search", '{"q": 1}')]),
    "llama, marked": (
        '<|python_tag|>{"name": "search", "parameters": {"q": 1}}',
        "",
        [("search", '{"q": 1}')],
    ),
    "llama, two": (
        '{"name": "search", "parameters": {}}; {"name": "get_weather", "parameters": {}}',
        "",
        [("search", "{}"), ("get_weather", "{}")],
    ),
    "mistral": (
        '[TOOL_CALLS][{"name": "search", "arguments": {"q": 1}}, '
        '{"name": "get_weather", "arguments": {}}]',
        "",
        [("search", '{"q": 1}'), ("get_weather", "{}")],
    ),
    "mistral, unmarked": (
        '[{"name": "search", "arguments": {"q": 1}}]',
        "",
        [("search", '{"q": 1}')],
    ),
    "mistral, named": (
        '[TOOL_CALLS]search[ARGS]{"q": {"r": 1}}',
        "",
        [("search", '{"q": {"r": 1}}')],
    ),
    "no arguments": ('<tool_call>{"name": "search"}</tool_call>', "", [("search", "{}")]),
    "plain": ("It is 3 < 4 [so it is].", "It is 3 < 4 [so it is].", []),
    "json that is no call": ('{"name": "Ada", "age": 3}', '{"name": "Ada", "age": 3}', []),
    "unknown tool": (
        '{"name": "rm", "arguments": {}}',
        '{"name": "rm", "arguments": {}}',
        [],
    ),
    "list that is no call": ("[1, 2]", "[1, 2]", []),
    "tag that is no call": (
        "The tag <tool_call> means a call",
        "The tag <tool_call> means a call",
        [],
    ),
    "empty": ("", "", []),
}


def read(pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    """Text, and calls put together as a client does it."""
    parser = ToolCallParser(NAMES)
    text = ""
    calls: list[list[str]] = []
    deltas = [delta for piece in pieces for delta in parser.feed(piece)] + parser.finish()
    for delta in deltas:
        if isinstance(delta, CallDelta):
            if delta.name is not None:
                assert delta.call_id is not None
                assert delta.index == len(calls)
                calls.append([delta.name, ""])
            calls[delta.index][1] += delta.arguments
        else:
            text += delta
    return text, [(name, arguments) for name, arguments in calls]


@pytest.mark.parametrize("name", OUTPUTS)
def test_whole(name: str) -> None:
    output, text, calls = OUTPUTS[name]
    assert read([output]) == (text, calls)


@pytest.mark.parametrize("name", OUTPUTS)
def test_character_by_character(name: str) -> None:
    output, text, calls = OUTPUTS[name]
    assert read(list(output)) == (text, calls)


@given(st.sampled_from(sorted(OUTPUTS)), st.lists(st.integers(0, 120), max_size=6))
def test_cut_anywhere(name: str, cuts: list[int]) -> None:
    output, text, calls = OUTPUTS[name]
    places = sorted({0, len(output), *(cut % (len(output) + 1) for cut in cuts)})
    pieces = [output[a:b] for a, b in itertools.pairwise(places)]
    assert read(pieces) == (text, calls)


@given(st.text(alphabet='<tool_call>/[TOOL_CALLS]{}",:name ', max_size=60))
def test_nothing_is_lost_or_invented(output: str) -> None:
    text, calls = read(list(output))
    if not calls:
        assert (
            text.replace("</tool_call>", "").split() == output.replace("</tool_call>", "").split()
        )
    assert read([output]) == (text, calls)


@pytest.mark.parametrize("output", ["[{", "[ {]", "[{}]", '[{"a": 1}, 2]', "[TOOL_CALLS][{"])
def test_a_list_that_is_no_call_is_text(output: str) -> None:
    assert read(list(output)) == read([output]) == (output, [])


def test_arguments_come_as_they_are_written() -> None:
    parser = ToolCallParser(NAMES)
    first = parser.feed('<tool_call>{"name": "search", "arguments": {"q": "lo')
    assert [d.arguments for d in first if isinstance(d, CallDelta)] == ["", '{"q": "lo']
    assert parser.feed("ng") == [CallDelta(0, "ng")]
    assert parser.feed('"}') == [CallDelta(0, '"}')]
    assert parser.feed("}</tool_call>") == []


def test_a_call_that_is_cut_off_is_given_as_far_as_it_came() -> None:
    _, calls = read(['<tool_call>{"name": "search", "arguments": {"q": '])
    assert calls == [("search", '{"q": ')]


@given(
    st.dictionaries(
        st.text(max_size=8),
        st.recursive(
            st.none() | st.integers() | st.text(max_size=8),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
            max_leaves=6,
        ),
        max_size=4,
    )
)
def test_scanner_agrees_with_json(arguments: dict[str, object]) -> None:
    scanner = CallScanner(NAMES)
    out = ""
    for char in json.dumps({"name": "search", "arguments": arguments, "more": [1]}):
        assert scanner.state is State.OPEN
        scanner.feed(char)
        out += scanner.take_arguments()
    assert scanner.state is State.CALL
    assert scanner.name == "search"
    assert json.loads(out) == arguments


@pytest.mark.parametrize("style", STYLES)
def test_what_a_style_writes_is_read_again(style: str) -> None:
    calls = [ToolCall("search", '{"q": "é \\" }"}'), ToolCall("get_weather", "{}")]
    text, found = read(list(STYLES[style].write(calls)))
    assert text.strip() == ""
    assert [(name, json.loads(a)) for name, a in found] == [
        (call.name, json.loads(call.arguments)) for call in calls
    ]
