"""Whatever a file holds, reading it gives sessions or a TraceError, never anything else."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from suffixspec_index.errors import TraceError
from suffixspec_traces.model import Session, SkippedLine
from suffixspec_traces.readers import Source, reader_named, readers

DATA = Path(__file__).parents[2] / "data" / "traces"
FILES = sorted(path.name for path in DATA.iterdir() if path.suffix != ".log")
NAMES = [reader.name for reader in readers()]

DEEP = "@deep@"  # stands for lists nested 700 times

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**25), 10**25),
    st.floats(),
    st.sampled_from(["", "\0", "\ud800", "{}", "[", '{"a": [', "assistant", "message", "1e999"]),
    st.text(max_size=5),
    st.just(DEEP),
    st.builds(list),
    st.builds(dict),
    st.builds(lambda: [None]),
    st.builds(lambda: [[]]),
    st.builds(lambda: {"role": "assistant"}),
)


def encoded(value: object) -> str:
    return json.dumps(value).replace(f'"{DEEP}"', "[" * 700 + "]" * 700)


def read(data: bytes, forced: str | None = None) -> None:
    """Read bytes with every reader (or one), strictly and leniently."""
    paths: list[object] = []
    for name in [forced] if forced else NAMES:
        for skipped in (None, list[SkippedLine]()):
            try:
                source = Source(io.BytesIO(data), "x", skipped=skipped)
                for reader in readers():
                    assert reader.sniff(source.sample) in (True, False)
                sessions = list(reader_named(name).read(source))
            except TraceError as error:
                paths.append(error.path)
                continue
            for session in sessions:
                check(session)
    assert set(paths) <= {"x"}


def check(session: Session) -> None:
    assert isinstance(session.id, str)
    assert isinstance(session.source, str)
    assert session.model is None or isinstance(session.model, str)
    for message in session.messages:
        assert message.content is None or isinstance(message.content, str)
        (message.content or "").encode()  # what no tokenizer could take must not come through
        assert message.role == "assistant" or not message.generated
        for call in message.tool_calls:
            assert isinstance(call.name, str)
            assert isinstance(call.arguments, str)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a value."""
    items = (
        list(value.items())
        if isinstance(value, dict)
        else list(enumerate(value))
        if isinstance(value, list)
        else []
    )
    return [(value, key) for key, _ in items] + [p for _, item in items for p in places(item)]


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_mutated_files(name: str, data: st.DataObject) -> None:
    text = (DATA / name).read_text()
    records = (
        [json.loads(text)]
        if name.endswith(("json", "traj"))
        else [json.loads(line) for line in text.splitlines()]
    )
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = data.draw(st.sampled_from(places(records)))
        if data.draw(st.booleans()) or isinstance(container, list):
            container[key] = data.draw(ODD)
        else:
            container.pop(key)
        if not places(records):
            break
    read("\n".join(map(encoded, records)).encode(), name.partition(".")[0])


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        ODD,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["messages", "role", "content", "type", "history", "steps", "data", "traj"]
                ),
                inner,
                max_size=3,
            )
        ),
        max_leaves=8,
    )
)
def test_any_json(value: object) -> None:
    read(encoded(value).encode())


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(FILES), st.integers(0, 6000), st.binary(max_size=6), st.booleans())
def test_damaged_bytes(name: str, at: int, junk: bytes, packed: bool) -> None:
    data = (DATA / name).read_bytes()
    data = gzip.compress(data) if packed else data
    read(data[:at] + junk + data[at + len(junk) :], name.partition(".")[0])
    read(data[:at], name.partition(".")[0])


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes(data: bytes) -> None:
    read(data, "openai_chat")
    for magic in (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1", b"\xff\xfe", b"{"):
        read(magic + data, "openai_chat")
