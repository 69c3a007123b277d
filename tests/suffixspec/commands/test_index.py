from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from suffixspec import cli
from suffixspec.commands.index import EXIT_DAMAGED, app
from suffixspec_index.errors import (
    ConfigError,
    InputError,
    LogFormatError,
    LogUnavailableError,
    SuffixSpecError,
)
from suffixspec_index.log import Record, RecordKind, open_log
from suffixspec_index.namespaces import NamespaceKey
from tests.index.log.contract import numbers, read_all, record

ONE = NamespaceKey("acme", "model-a", "tokenizer")
OTHER = NamespaceKey("other", "model-b", "tokenizer", "adapter")


@pytest.fixture
def journal(tmp_path: Path) -> str:
    """A journal of two namespaces."""
    url = f"journal:{tmp_path / 'journal'}"
    with open_log(url) as log:
        log.append(ONE, [record(1, range(100)), record(2, range(50))])
        chunk: dict[str, Any] = {"kind": RecordKind.CHUNK, "sequence": 9}
        log.append(ONE, [record(3, [1, 2], **chunk, final=False)])
        log.append(ONE, [record(4, [3], **chunk, offset=2)])
        log.append(OTHER, [record(5, range(10), time=4_000_000_000.0)])
    return url


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, (result.output, result.exception)
    return result


def run_json(*arguments: str, code: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", code=code).stdout)


def failure(*arguments: str) -> BaseException:
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, SuffixSpecError)
    return result.exception


def test_stats(journal: str) -> None:
    found = run_json("stats", journal)["namespaces"]
    assert [(row["tenant"], row["records"], row["tokens"]) for row in found] == [
        ("acme", 4, 153),
        ("other", 1, 10),
    ]
    assert found[0]["namespace"] == ONE.digest
    (row,) = run_json("stats", journal, "--tenant", "other")["namespaces"]
    assert row["adapter"] == "adapter"
    output = run("stats", journal, "--namespace", ONE.digest[:6].upper()).output
    assert "acme" in output
    assert "other" not in output


@pytest.mark.parametrize("command", ["stats", "verify"])
def test_tables_on_narrow_terminals(
    journal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    output = run(command, journal).output
    assert "…" not in output
    assert max(map(len, output.splitlines())) <= 80
    empty = f"journal:{tmp_path / 'empty'}"
    open_log(empty).close()
    assert run(command, empty).output == f"{empty}: holds nothing\n"


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz"])
def test_export_and_import(journal: str, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    assert run_json("export", journal, str(file))["records"] == 5
    copy = f"journal:{tmp_path / 'copy'}"
    assert run_json("import", str(file), copy)["records"] == 5
    with open_log(journal) as old, open_log(copy) as new:
        for key in (ONE, OTHER):
            assert [_said(r) for r in read_all(new, key)] == [_said(r) for r in read_all(old, key)]
            assert read_all(new, key)[0].origin != read_all(old, key)[0].origin
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


def _said(found: Record) -> tuple[object, ...]:
    return found.kind, found.number, found.time, found.offset, found.final, found.tokens.tolist()


def test_purge_marks_travel_too(journal: str, tmp_path: Path) -> None:
    run("purge", journal, "--all", "--older-than", "1d", "--yes")
    run("export", journal, str(tmp_path / "log.jsonl"))
    copy = f"journal:{tmp_path / 'copy'}"
    run("import", str(tmp_path / "log.jsonl"), copy)
    with open_log(copy) as log:
        assert numbers(log, ONE) == []
        assert numbers(log, OTHER) == [5]


def test_purge_asks_and_names_what_goes(journal: str) -> None:
    assert isinstance(failure("purge", journal, "--yes"), ConfigError)
    result = CliRunner().invoke(app, ["purge", journal, "--tenant", "acme"], input="n\n")
    assert result.exit_code == 1
    assert "acme/model-a" in result.stderr
    with open_log(journal) as log:
        assert len(numbers(log, ONE)) == 4
    assert run_json("purge", journal, "--tenant", "acme", "--yes") == {
        "namespaces": 1,
        "records": 4,
    }
    with open_log(journal) as log:
        assert numbers(log, ONE) == []
        assert numbers(log, OTHER) == [5]


def test_verify(journal: str) -> None:
    first, second = run_json("verify", journal)["namespaces"]
    assert (first["sequences"], first["unfinished"], first["orphans"]) == (3, 0, 0)
    assert second["tokens"] == 10
    folder = Path(journal.removeprefix("journal:")) / ONE.digest
    (segment,) = folder.glob("*.seg")
    data = bytearray(segment.read_bytes())
    data[150] ^= 1
    segment.write_bytes(data)
    damaged = run_json("verify", journal, code=EXIT_DAMAGED)["namespaces"][0]
    assert damaged["damaged"] == 1
    assert damaged["sequences"] == 1
    assert "acme" in run("verify", journal, code=EXIT_DAMAGED).output


def test_wrong_places_and_files(journal: str, tmp_path: Path) -> None:
    assert isinstance(failure("stats", f"journal:{tmp_path / 'none'}"), LogUnavailableError)
    assert isinstance(failure("stats", "tape:x"), ConfigError)
    assert isinstance(failure("stats", journal, "--tenant", "nobody"), InputError)
    assert isinstance(failure("import", str(tmp_path / "none"), journal), InputError)
    assert isinstance(failure("export", journal, str(tmp_path / "no" / "log.jsonl")), InputError)
    age = failure("purge", journal, "--all", "--older-than", "long", "--yes")
    assert "--older-than" in str(age)
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text('{"role": "user"}\n')
    assert isinstance(failure("import", str(wrong), journal), LogFormatError)
    head = '{"format": "suffixspec log", "version": 1}\n'
    space = '{"namespace": {"tenant": "t", "model": "m", "tokenizer": "k"}}\n'
    said = (
        '{"kind": "sequence", "origin": 1, "number": 1, "sequence": 1, "time": 1, "tokens": %s}\n'
    )
    for lines in (
        [head, said % "[1]"],
        [head, space, said % "[-1]"],
        [head, space, "{}\n"],
        [head, space, "no json\n"],
        [head, '{"namespace": {"owner": "t"}}\n'],
    ):
        wrong.write_text("".join(lines))
        error = failure("import", str(wrong), journal)
        assert isinstance(error, InputError)
        assert f"line {len(lines)}" in str(error)
    assert isinstance(failure("import", str(tmp_path), journal), InputError)


def test_the_services_own_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    url = f"journal:{tmp_path / 'suffixspec' / 'journal'}"
    with open_log(url) as log:
        log.append(ONE, [record(1, range(100))])
    assert run_json("stats")["log"] == url
    assert run_json("stats", "journal")["namespaces"][0]["records"] == 1
    assert run_json("verify")["namespaces"][0]["sequences"] == 1
    elsewhere = tmp_path / "elsewhere"
    with open_log(f"journal:{elsewhere / 'journal'}") as log:
        log.append(OTHER, [record(1, range(10))])
    monkeypatch.setenv("SUFFIXSPEC_SERVICE__DATA_DIR", str(elsewhere))
    whole = CliRunner().invoke(cli.app, ["index", "stats"])
    assert whole.exit_code == 0, whole.output
    assert "model-b" in whole.output
    assert "+ adapter" in whole.output
