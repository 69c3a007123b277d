from __future__ import annotations

import gzip
import io
import json
import random
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from suffixspec_index.errors import NoCompletionsError, TraceError, TraceFormatError
from suffixspec_traces.model import ReadReport
from suffixspec_traces.reading import ReadProgress, read_traces

DATA = Path(__file__).parents[1] / "data" / "traces"


def chat(name: str, text: str = "hello") -> str:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": text}]
    return json.dumps({"id": name, "messages": messages})


def ids(
    *paths: Path | str, skip_invalid: bool = False, report: ReadReport | None = None
) -> list[str]:
    return [s.id for s in read_traces(paths, skip_invalid=skip_invalid, report=report)]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(chat(f"s{i}") for i in range(5)) + "\n")
    return path


@pytest.mark.parametrize("packed", ["gzip", "gzip twice", "zstd", "zstd twice"])
def test_compression_is_found_by_content(packed: str, lines: Path, tmp_path: Path) -> None:
    data = lines.read_bytes()
    pack = gzip.compress if "gzip" in packed else zstandard.ZstdCompressor().compress
    half = data.index(b"\n") + 1
    stored = pack(data[:half]) + pack(data[half:]) if "twice" in packed else pack(data)
    path = tmp_path / "misleading.json"
    path.write_bytes(stored)
    assert ids(path) == [f"s{i}" for i in range(5)]


@pytest.mark.parametrize("packed", ["gzip", "zstd"])
def test_a_cut_off_stream_is_reported_with_its_line(packed: str, tmp_path: Path) -> None:
    noise = random.Random(1)
    text = "\n".join(chat(f"s{i}", noise.randbytes(500).hex()) for i in range(2000))
    pack = gzip.compress if packed == "gzip" else zstandard.ZstdCompressor().compress
    path = tmp_path / "x.jsonl"
    stored = pack(text.encode())
    path.write_bytes(stored[: len(stored) // 2])
    with pytest.raises(TraceError, match="damaged or cut off") as caught:
        ids(path)
    assert caught.value.line is not None
    assert caught.value.line > 1
    report = ReadReport()
    read = ids(path, skip_invalid=True, report=report)
    assert len(read) == report.sessions > 0
    assert [s.line for s in report.skipped] == [caught.value.line]


def test_broken_lines_raise_or_are_noted(lines: Path) -> None:
    broken = lines.read_text().splitlines()
    broken[1] = broken[1][:20]
    broken[3] = '{"id": "s3", "messages": [{"role": "user", "content": 5}]}'
    lines.write_text("\n".join(broken))
    with pytest.raises(TraceError, match=r"x\.jsonl:2: not JSON") as caught:
        ids(lines)
    assert (caught.value.path, caught.value.line) == (str(lines), 2)
    report = ReadReport()
    assert ids(lines, skip_invalid=True, report=report) == ["s0", "s2", "s4"]
    assert [(s.path, s.line) for s in report.skipped] == [(str(lines), 2), (str(lines), 4)]
    assert report.skipped[1].reason.startswith("messages[0].content: expected a string")
    assert (report.files, report.sessions, report.formats) == (1, 3, {"openai_chat": 3})


def test_a_broken_first_line_does_not_hide_the_format(lines: Path) -> None:
    lines.write_text('{"id": "s", "messag\n' + lines.read_text())
    with pytest.raises(TraceError, match=r"x\.jsonl:1: not JSON"):
        ids(lines)
    assert ids(lines, skip_invalid=True) == [f"s{i}" for i in range(5)]


@pytest.mark.parametrize(
    ("record", "field"),
    [
        ('{"messages": "none"}', "messages"),
        ('{"messages": []}', "messages"),
        ('{"messages": [5]}', r"messages\[0\]"),
        ('{"messages": [{"role": "wizard", "content": ""}]}', r"messages\[0\]\.role"),
        ('{"messages": [{"role": "user", "content": 5}]}', r"messages\[0\]\.content"),
        ('{"messages": [{"role": "user", "content": [5]}]}', r"messages\[0\]\.content\[0\]"),
        ('{"messages": [{"role": "assistant", "tool_calls": {}}]}', r"messages\[0\]\.tool_calls"),
        (
            '{"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}',
            r"messages\[0\]\.tool_calls\[0\]\.function\.name",
        ),
        ('{"messages": [{"role": "assistant", "token_ids": [-1]}]}', r"messages\[0\]\.token_ids"),
        ('{"messages": [{"role": "assistant", "x_generated": 0}]}', r"messages\[0\]\.x_generated"),
        ('{"messages": [{"role": "user"}], "model": []}', "model"),
    ],
)
def test_a_wrong_type_names_the_field(record: str, field: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(chat("good") + "\n" + record + "\n")
    with pytest.raises(TraceError, match=rf"x\.jsonl:2: ({field})"):
        ids(path)


def test_marks_line_endings_and_blank_lines_do_not_matter(lines: Path) -> None:
    text = "\r\n\r\n".join(lines.read_text().splitlines())
    lines.write_bytes(b"\xef\xbb\xbf\r\n" + text.encode() + b"\r\n  \r\n")
    sessions = list(read_traces([lines]))
    assert [s.id for s in sessions] == [f"s{i}" for i in range(5)]
    assert [s.line for s in sessions] == [2, 4, 6, 8, 10]


@pytest.mark.parametrize("data", [b"", b"\n \r\n", gzip.compress(b""), b"\xef\xbb\xbf"])
def test_an_empty_file_is_an_error(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(data)
    with pytest.raises(TraceError, match=r"x\.jsonl: the file is empty"):
        ids(path)


def test_utf16_is_named(lines: Path) -> None:
    lines.write_bytes(lines.read_text().encode("utf-16"))
    with pytest.raises(TraceError, match="UTF-16; save it as UTF-8"):
        ids(lines)


def test_a_broken_document_says_where(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('[\n {"id": "a",\n\n  "messages": [}\n]\n')
    with pytest.raises(TraceError, match=r"x\.json:4: not JSON"):
        ids(path)


def test_documents_indented_or_not(tmp_path: Path) -> None:
    records = [json.loads(chat("a")), json.loads(chat("b"))]
    for indent in (None, 1):
        path = tmp_path / "x.json"
        path.write_text(json.dumps(records, indent=indent))
        sessions = list(read_traces([path]))
        assert [s.id for s in sessions] == ["a", "b"]
        assert sessions[0].line is None
    path.write_text(json.dumps(records[0]["messages"]))
    assert ids(path) == ["x-1"]


def test_an_unknown_format_lists_the_names(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"weather": "fine"}')
    with pytest.raises(TraceFormatError, match=r"not recognised.*claude_code"):
        ids(path)
    with pytest.raises(TraceFormatError, match="'tea'"):
        read_traces([path], format="tea")


def test_forcing_the_wrong_format_says_what_it_looks_like() -> None:
    with pytest.raises(TraceFormatError, match="looks like tau2, not openai_chat"):
        list(read_traces([DATA / "tau2.json"], format="openai_chat"))
    with pytest.raises(NoCompletionsError, match="looks like tau2, not claude_code"):
        list(read_traces([DATA / "tau2.json"], format="claude_code"))


def test_nothing_generated_is_an_error_that_says_why(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    greeting = {"role": "assistant", "content": "Hi!", "x_generated": False}
    path.write_text(json.dumps({"messages": [greeting]}))
    with pytest.raises(NoCompletionsError, match="x_generated"):
        ids(path)


def test_skipping_covers_whole_files_but_not_nothing_at_all(lines: Path) -> None:
    paths = [DATA / "vllm_custom.jsonl", DATA / "litellm.empty.jsonl"]
    report = ReadReport()
    assert len(ids(*paths, lines, skip_invalid=True, report=report)) == 5
    assert [s.path for s in report.skipped] == [str(p) for p in paths]
    with pytest.raises(NoCompletionsError, match="vLLM bench"):
        ids(*paths, skip_invalid=True)
    lines.write_text("{broken\n{}\n")
    with pytest.raises(
        NoCompletionsError, match=r"nothing could be read: 1 .*not recognised|not JSON"
    ):
        ids(lines, skip_invalid=True)


def test_directories_globs_and_repeated_paths(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "2.jsonl").write_text(chat("two"))
    (tmp_path / "a.json").write_text(chat("one"))
    (tmp_path / "notes.md").write_text("not a trace")
    (tmp_path / "c.traj.gz").write_bytes(gzip.compress(chat("three").encode()))
    assert ids(tmp_path) == ["one", "two", "three"]
    assert ids(tmp_path / "*.json", tmp_path) == ["one", "two", "three"]
    assert ids(f"{tmp_path}/**/*.jsonl") == ["two"]
    assert ids(f"{tmp_path}/[b]") == ["two"]


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="does not exist"):
        read_traces([tmp_path / "none.jsonl"])
    with pytest.raises(TraceError, match="matches no file"):
        read_traces([tmp_path / "*.jsonl"])
    with pytest.raises(TraceError, match="holds no file ending in"):
        read_traces([tmp_path])
    with pytest.raises(TraceError, match="no path was given"):
        read_traces([])


def test_ids_stay_distinct_across_files(lines: Path, tmp_path: Path) -> None:
    other = tmp_path / "y.jsonl"
    other.write_text(chat("s1") + "\n" + chat("s1") + "\n")
    assert ids(lines, other)[-3:] == ["s4", "s1#2", "s1#3"]


def test_standard_input(monkeypatch: pytest.MonkeyPatch, lines: Path) -> None:
    class Pipe(io.BytesIO):
        """Gives few bytes at a time and cannot seek, as a pipe may."""

        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(3 if size is None or size < 0 else min(size, 3))

        def tell(self) -> int:
            raise io.UnsupportedOperation("tell")

    pipe = Pipe(gzip.compress(lines.read_bytes()))
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=pipe))
    seen: list[ReadProgress] = []
    sessions = list(read_traces(["-"], progress=seen.append))
    assert [s.id for s in sessions] == [f"s{i}" for i in range(5)]
    assert (sessions[0].path, sessions[0].source) == ("<stdin>", "stdin")
    assert seen[-1].total_bytes is None


def test_progress_counts_stored_bytes(lines: Path, tmp_path: Path) -> None:
    packed = tmp_path / "y.jsonl.gz"
    packed.write_bytes(gzip.compress(lines.read_bytes()))
    seen: list[ReadProgress] = []
    list(read_traces([lines, packed], progress=seen.append))
    total = lines.stat().st_size + packed.stat().st_size
    assert seen[-1] == ReadProgress(str(packed), total, total, 10)
    assert [p.read_bytes for p in seen] == sorted(p.read_bytes for p in seen)


def test_lines_are_streamed(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("".join(chat(f"s{i}", "x" * 2000) + "\n" for i in range(5000)))
    seen: list[ReadProgress] = []
    sessions = read_traces([path], progress=seen.append)
    next(sessions)
    next(sessions)
    assert 0 < seen[0].read_bytes < path.stat().st_size / 4


def test_parquet_rows_are_records(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (DATA / "langsmith.jsonl").read_text().splitlines()]
    kept = ("id", "trace_id", "run_type", "start_time", "inputs", "outputs")
    columns = {
        key: [r[key] if isinstance(r.get(key), str) else json.dumps(r.get(key)) for r in rows]
        for key in kept
    }
    path = tmp_path / "runs.parquet"
    pq.write_table(pa.table(columns), path)
    assert ids(path) == ["tr", "tr9"]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(TraceError, match="Parquet"):
        ids(path)


def test_lone_surrogates_and_nul_give_right_sessions(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(chat("s", "cut \ud83d, nul \0, smile \U0001f600"))
    (session,) = read_traces([path])
    assert session.messages[1].content == "cut �, nul \0, smile 😀"


def test_arguments_nested_deeply(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    deep = '{"a":' * 400 + "1" + "}" * 400
    calls = f'[{{"function": {{"name": "f", "arguments": {deep}}}}}]'
    path.write_text(f'{{"messages": [{{"role": "assistant", "tool_calls": {calls}}}]}}')
    (session,) = read_traces([path])
    assert session.messages[0].tool_calls[0].arguments == deep
