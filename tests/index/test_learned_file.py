"""The file of what was learned: reads back, and notices damage wherever it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from suffixspec_index.errors import SnapshotCorruptError, SnapshotError, SnapshotFormatError
from suffixspec_index.learned_file import read_learned, write_learned


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(pieces=st.dictionaries(st.text(max_size=9), st.binary(max_size=300), max_size=6))
def test_it_reads_back_in_order(tmp_path: Path, pieces: dict[str, bytes]) -> None:
    path = tmp_path / "learned"
    write_learned(path, pieces)
    assert list(read_learned(path).items()) == list(pieces.items())
    assert [file.name for file in tmp_path.iterdir()] == ["learned"]


def test_every_damaged_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "learned"
    write_learned(path, {"a": b"some bytes" * 9, "b/c": b""})
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(SnapshotError):
            read_learned(path)
        path.write_bytes(whole[:at])
        with pytest.raises(SnapshotError):
            read_learned(path)
    path.write_bytes(whole + b"x")
    with pytest.raises(SnapshotCorruptError, match="checksum"):
        read_learned(path)


def test_foreign_files_and_folders_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "learned"
    path.write_text("[settings]")
    with pytest.raises(SnapshotFormatError, match="not a file of what suffixspec learned"):
        read_learned(path)
    path.write_bytes(b"SFXLEARN\x63\x00" + b"0" * 40)
    with pytest.raises(SnapshotFormatError, match="version 99"):
        read_learned(path)
    with pytest.raises(SnapshotError, match="cannot be written"):
        write_learned(tmp_path / "missing" / "learned", {})
