from __future__ import annotations

import pytest

from suffixspec_index.errors import TraceError
from suffixspec_traces.readers.nodes import Node, describe, json_text, parse_json


def test_a_path_names_the_field() -> None:
    node = Node({"messages": [{"content": 5}]})
    content = next(node["messages"].elements())["content"]
    with pytest.raises(
        TraceError, match=r"^messages\[0\]\.content: expected a string, got a number"
    ):
        content.text()
    with pytest.raises(TraceError, match=r"^record: expected a list, got an object"):
        node.elements()
    with pytest.raises(TraceError, match=r"^\[1\]: expected an object, got null"):
        list(Node([1, None]).elements())[1]["x"]


def test_missing_and_null_are_the_same() -> None:
    node = Node({"a": None, "b": ""})
    assert "a" not in node
    assert "c" not in node
    assert "b" in node
    assert node["c"].optional_text() is None
    assert list(node["a"].elements_if_any()) == []
    assert node.first("a", "b").value == ""
    assert not node["b"]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (1_700_000_000, 1_700_000_000.0),
        (1_700_000_000.25, 1_700_000_000.25),
        (1_700_000_000_000, 1_700_000_000.0),
        (1_700_000_000_000_000, 1_700_000_000.0),
        ("1700000000000000000", 1_700_000_000.0),
        ("2023-11-14T22:13:20Z", 1_700_000_000.0),
        ("2023-11-14 22:13:20", 1_700_000_000.0),
        ("2023-11-15T00:13:20.123456789+02:00", 1_700_000_000.123456),
        ("yesterday", None),
        ("", None),
        (float("nan"), None),
        (float("inf"), None),
        (10**400, None),
        (None, None),
    ],
)
def test_times(value: object, seconds: float | None) -> None:
    assert Node(value).timestamp() == seconds


@pytest.mark.parametrize("value", [True, [], {}])
def test_a_time_of_the_wrong_type_is_an_error(value: object) -> None:
    with pytest.raises(TraceError, match="expected a time"):
        Node(value).timestamp()


def test_python_and_javascript_json_is_understood() -> None:
    assert parse_json(b'{"reward": NaN}') != {"reward": 0}
    assert parse_json(rb'"cut \ud83d"') == "cut �"
    assert parse_json(rb'["\ud83d\ude00", "\ud83d x \ude00"]') == ["😀", "� x �"]
    assert parse_json(rb'"\u0000"') == "\0"
    assert parse_json(b"1" + b"0" * 400) == 10**400


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"[" * 2000 + b"]" * 2000, "nested deeper"),
        (b'{"a": "\xff"}', "not UTF-8: byte 7 is 0xff"),
        (b'{"a": 1', "not JSON"),
        (b"\0\0\0", "not JSON"),
        (b"1" + b"0" * 5000, "not JSON"),
        (b"NaN" + b"]", "not JSON"),
        (b"[" * 1020 + rb'"\ud800"' + b"]" * 1020, "nested too deeply"),
    ],
)
def test_broken_json_is_a_trace_error(data: bytes, says: str) -> None:
    with pytest.raises(TraceError, match=says):
        parse_json(data)


def test_json_text_writes_what_can_be_parsed() -> None:
    deep: object = 1
    for _ in range(300):
        deep = [deep]
    assert json_text(deep) == "[" * 300 + "1" + "]" * 300
    assert json_text({"ä": [1, None, 10**30]}) == '{"ä":[1,null,' + "1" + "0" * 30 + "]}"


@pytest.mark.parametrize(
    "value", [[1, -1], [2**31], [1.5], ["1"], [True], [[1]], "12", {}, [10**30]]
)
def test_wrong_token_ids_are_an_error(value: object) -> None:
    with pytest.raises(TraceError, match="token_ids"):
        Node({"token_ids": value})["token_ids"].token_ids()


def test_token_ids() -> None:
    ids = Node([0, 2**31 - 2]).token_ids()
    assert ids is not None
    assert ids.tolist() == [0, 2**31 - 2]
    empty = Node([]).token_ids()
    assert empty is not None
    assert empty.shape == (0,)


def test_values_are_described_shortly() -> None:
    assert describe(10**5000) == "a number (an integer of thousands of digits)"
    assert len(describe("x" * 10_000)) < 100
    assert describe(True) == "true"
