"""The journal: the contract, and what is particular to files."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from suffixspec_index.errors import (
    ConfigError,
    LogFormatError,
    LogRefusedError,
    LogUnavailableError,
)
from suffixspec_index.log import START, RecordKind, open_log
from suffixspec_index.log.journal import JournalLog
from suffixspec_index.log.journal import writer as writing
from suffixspec_index.log.journal.segment import Frame, Segment
from tests.index.log.contract import KEY, OTHER, LogContract, OpenLog, numbers, read_all, record
from tests.threads import ended


class TestJournalLog(LogContract):
    @pytest.fixture
    def open_log(self, tmp_path: Path) -> OpenLog:
        return lambda **options: open_log(f"journal:{tmp_path / 'journal'}", **options)


class TestDurableJournalOfSmallSegments(LogContract):
    @pytest.fixture
    def open_log(self, tmp_path: Path) -> OpenLog:
        url = f"journal:{tmp_path / 'journal'}?fsync=always&segment_bytes=4KiB&max_bytes=1GiB"
        return lambda **options: open_log(url, **options)


def open_journal(folder: Path, **options: Any) -> JournalLog:
    log = open_log(f"journal:{folder}", **options)
    assert isinstance(log, JournalLog)
    return log


def segment_files(folder: Path) -> list[Path]:
    return sorted((folder / KEY.digest).glob("*.seg"))


def fill(folder: Path, count: int = 10, **options: Any) -> None:
    """Records 1 to ``count``, a frame each."""
    with open_journal(folder, **options) as log:
        for number in range(1, count + 1):
            log.append(KEY, [record(number, range(number, number + 20))])


# --- opening -------------------------------------------------------------------------------------


def test_what_was_written_is_there_after_opening_again(tmp_path: Path) -> None:
    fill(tmp_path)
    with open_journal(tmp_path) as log:
        assert numbers(log) == list(range(1, 11))
        assert log.repaired == 0
        log.append(KEY, [record(11)])
        assert numbers(log) == list(range(1, 12))


def test_one_process_writes(tmp_path: Path) -> None:
    with open_journal(tmp_path), pytest.raises(LogRefusedError, match=str(os.getpid())):
        open_journal(tmp_path)
    open_journal(tmp_path).close()


def test_folders_that_are_no_journal_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("dear")
    with pytest.raises(LogFormatError, match=r"letters\.txt"):
        open_journal(tmp_path)
    with pytest.raises(LogUnavailableError, match="no journal yet"):
        open_journal(tmp_path / "new", read_only=True)
    other = tmp_path / "other"
    open_journal(other).close()
    (other / "journal.json").write_text('{"format": "suffixspec journal", "version": 99}')
    with pytest.raises(LogFormatError, match="update suffixspec"):
        open_journal(other)


def test_a_segment_of_another_version_is_not_guessed_at(tmp_path: Path) -> None:
    from suffixspec_index.log.journal import segment

    fill(tmp_path)
    (path,) = segment_files(tmp_path)
    data = bytearray(path.read_bytes())
    head = segment._SEGMENT.pack(segment.MAGIC, 2, 1)
    data[: segment.SEGMENT_HEAD] = head + segment._digest(head)
    path.write_bytes(data)
    with open_journal(tmp_path, read_only=True) as log, pytest.raises(LogFormatError):
        log.read({KEY: START})


def test_wrong_settings(tmp_path: Path) -> None:
    for query in (
        "fsync=sometimes",
        "max_bytes=1",
        "segment_bytes=3GiB",
        "fsync_interval=0",
        "x=1",
    ):
        with pytest.raises(ConfigError):
            open_log(f"journal:{tmp_path}?{query}")
    with pytest.raises(ConfigError):
        open_log("journal:")


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 7, 40, 61])
def test_a_torn_tail_is_cut_off(tmp_path: Path, cut: int) -> None:
    fill(tmp_path)
    (path,) = segment_files(tmp_path)
    path.write_bytes(path.read_bytes()[:-cut])
    with open_journal(tmp_path) as log:
        assert log.repaired > 0
        assert numbers(log) == list(range(1, 10))
        log.append(KEY, [record(11)])
        assert numbers(log) == [*range(1, 10), 11]
    with open_journal(tmp_path) as log:
        assert log.repaired == 0
        assert log.statistics(KEY).damaged == 0


def test_a_tail_of_noise_is_cut_off(tmp_path: Path) -> None:
    """After a loss of power a file may end in what was never written to it."""
    fill(tmp_path)
    (path,) = segment_files(tmp_path)
    path.write_bytes(path.read_bytes() + b"\0" * 5000)
    with open_journal(tmp_path) as log:
        assert log.repaired == 5000
        assert numbers(log) == list(range(1, 11))


def test_damage_in_every_place_loses_one_frame_at_most(tmp_path: Path) -> None:
    """Never a wrong record, never two frames for one damaged byte, and it is counted."""
    fill(tmp_path, 6)
    (path,) = segment_files(tmp_path)
    whole = path.read_bytes()
    expected = {n: record(n, range(n, n + 20)) for n in range(1, 7)}
    for at in range(32, len(whole), 5):
        broken = bytearray(whole)
        broken[at] ^= 0x41
        path.write_bytes(broken)
        with open_journal(tmp_path, read_only=True) as log:
            found = read_all(log)
            assert all(one == expected[one.number] for one in found)
            kept = [one.number for one in found]
            assert len(kept) == 5
            if kept != [1, 2, 3, 4, 5]:  # the last frame may be one that is still being written
                assert log.statistics(KEY).damaged >= 1


def test_damage_in_a_sealed_segment_is_skipped_and_counted(tmp_path: Path) -> None:
    fill(tmp_path, 60, segment_bytes="4KiB")
    first, *rest = segment_files(tmp_path)
    assert rest
    data = bytearray(first.read_bytes())
    data[400:420] = b"\xff" * 20
    data[-10:] = b""
    first.write_bytes(data)
    with open_journal(tmp_path) as log:
        found = numbers(log)
        assert 55 <= len(found) < 60
        assert found == sorted(set(found))
        assert found[-1] == 60
        assert log.statistics(KEY).damaged >= 1
        batch = log.read({KEY: START})[0]
        assert batch.damaged >= 1


def test_a_missing_segment_does_not_stop_readers(tmp_path: Path) -> None:
    fill(tmp_path, 60, segment_bytes="4KiB")
    segment_files(tmp_path)[0].unlink()
    with open_journal(tmp_path) as log:
        found = numbers(log)
        assert found
        assert found[-1] == 60


def test_a_full_disk_refuses_and_leaves_no_torn_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_journal(tmp_path) as log:
        log.append(KEY, [record(1)])
        write = os.pwrite

        def half(file: int, data: bytes, offset: int) -> int:
            if len(data) > 40:
                return write(file, data[: len(data) // 2], offset)
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "pwrite", half)
        with pytest.raises(LogRefusedError, match="No space left"):
            log.append(KEY, [record(2)])
        monkeypatch.undo()
        log.append(KEY, [record(3)])
        assert numbers(log) == [1, 3]
    with open_journal(tmp_path) as log:
        assert log.repaired == 0
        assert numbers(log) == [1, 3]


def test_after_a_failed_sync_nothing_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system may drop pages that it could not write, and says so only once."""
    with open_journal(tmp_path, fsync="always") as log:
        log.append(KEY, [record(1)])

        def fail(file: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(LogUnavailableError):
            log.append(KEY, [record(2)])
        monkeypatch.undo()
        log.append(KEY, [record(3)])
        assert len(segment_files(tmp_path)) == 2  # it goes on in a new file
        assert {1, 3} <= set(numbers(log))


# --- group commit, rotation, packing, purging ----------------------------------------------------


def test_writers_share_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = []
    sync = os.fsync
    slow = threading.Event()

    def counted(file: int) -> None:
        syncs.append(file)
        slow.wait(0.01)
        sync(file)

    with open_journal(tmp_path, fsync="always") as log:
        log.append(KEY, [record(1)])
        monkeypatch.setattr(os, "fsync", counted)
        threads = [
            threading.Thread(daemon=True, target=lambda n=n: log.append(KEY, [record(n)]))
            for n in range(2, 42)
        ]
        for thread in threads:
            thread.start()
        ended(threads)
        assert sorted(numbers(log)) == list(range(1, 42))
        assert 1 <= len(syncs) < 30


def test_the_byte_budget_drops_the_oldest_segments(tmp_path: Path) -> None:
    options = {"max_bytes": "64KiB", "segment_bytes": "4KiB"}
    with open_journal(tmp_path, **options) as log:
        log.append(OTHER, [record(1)])
        first = log.append(KEY, [record(1)])
        for number in range(2, 1500):
            log.append(KEY, [record(number, range(number, number + 20))])
        kept = numbers(log)
        assert kept == list(range(kept[0], 1500))
        assert sum(path.stat().st_size for path in tmp_path.rglob("*.seg")) <= 64 << 10
        assert numbers(log, OTHER) == [1]  # the namespace that takes most pays
        assert log.read({KEY: first})[0].missed
        assert log.statistics(KEY).trimmed == 1499 - len(kept)
        position = log.append(KEY, [record(1500)])
    with open_journal(tmp_path, **options) as log:
        assert log.read({KEY: position}) == []
        log.append(KEY, [record(1501)])
        assert numbers(log, position=position) == [1501]


def test_packing_keeps_records_and_positions(tmp_path: Path) -> None:
    with open_journal(tmp_path, segment_bytes="16KiB") as log:
        positions = [
            log.append(KEY, [record(number, range(number % 50, number % 50 + 30))])
            for number in range(1, 301)
        ]
        before, size = read_all(log), log.statistics(KEY).bytes
        writer = log._writers[KEY]
        while writer.pack():
            pass
        assert read_all(log) == before
        assert log.statistics(KEY).bytes < 0.5 * size
        for skip in (0, 17, 150, 299):
            assert numbers(log, position=positions[skip]) == list(range(skip + 2, 301))
            assert log.behind(KEY, positions[skip]) == 299 - skip


def test_a_purge_leaves_nothing_in_the_files(tmp_path: Path) -> None:
    fill(tmp_path, 60, segment_bytes="4KiB")
    with open_journal(tmp_path) as log:
        log.purge(KEY, origin=1, number=1)
        log.append(KEY, [record(61, [77_777] * 9)])
        (left,) = segment_files(tmp_path)
        assert left.stat().st_size < 500
        assert [r.kind for r in read_all(log)] == [RecordKind.PURGE, RecordKind.SEQUENCE]


def test_a_purge_by_age_rewrites_what_holds_older_records(tmp_path: Path) -> None:
    fill(tmp_path, 200, segment_bytes="4KiB")
    with open_journal(tmp_path) as log:
        files = len(segment_files(tmp_path))
        position = log.append(KEY, [record(201)])
        log.purge(KEY, before=1_000.25 + 150, origin=1, number=1)
        assert numbers(log) == list(range(150, 202))
        assert len(segment_files(tmp_path)) < files
        assert [r.kind for r in read_all(log, position=position)] == [RecordKind.PURGE]
        assert log.statistics(KEY).first_time == 1_150.25


def test_a_purge_that_was_interrupted_is_finished_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, 60, segment_bytes="4KiB")
    with open_journal(tmp_path) as log:
        monkeypatch.setattr(
            writing.NamespaceWriter, "_finish_purge", lambda self, unfinished: 1 / 0
        )
        with pytest.raises(ZeroDivisionError):
            log.purge(KEY, origin=1, number=1)
        monkeypatch.undo()
    with open_journal(tmp_path) as log:
        assert [r.kind for r in read_all(log)] == [RecordKind.PURGE]


def test_a_reader_goes_on_through_rotation_packing_and_purges(tmp_path: Path) -> None:
    """Whatever happens to the files, it sees each record once, in order, until the purge."""
    with (
        open_journal(tmp_path, segment_bytes="4KiB") as log,
        open_journal(tmp_path, read_only=True) as reader,
    ):
        position, seen = START, []
        for number in range(1, 400):
            log.append(KEY, [record(number, range(20))])
            if number % 97 == 0:
                log._writers[KEY].pack()
            if number % 3 == 0:
                for batch in reader.read({KEY: position}, max_bytes=2_000):
                    position = batch.position
                    seen += [r.number for r in batch.records]
        for batch in reader.records(KEY, position):
            seen += [r.number for r in batch.records]
            position = batch.position
        assert seen == list(range(1, 400))
        log.purge(KEY, origin=1, number=400)
        assert [r.kind for r in read_all(reader, position=position)] == [RecordKind.PURGE]


@pytest.mark.parametrize("there", [0.02, 0.3, 0.5, 0.9])
def test_a_frame_that_is_finished_while_it_is_read_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: float
) -> None:
    """A reader sees part of a frame; when it looks on, that frame and the next are whole."""
    fill(tmp_path, 2)
    (file,) = segment_files(tmp_path)
    before = file.read_bytes()
    with open_journal(tmp_path) as log:
        for number in (3, 4):
            log.append(KEY, [record(number, range(number, number + 20))])
    whole = file.read_bytes()
    frame = (len(whole) - len(before)) // 2
    partial = len(before) + int(frame * there)
    file.write_bytes(before)
    search = Segment.next_frame

    def finished_meanwhile(segment: Segment, offset: int) -> Frame | None:
        with file.open("r+b") as out:
            out.write(whole)
        return search(segment, offset)

    with open_journal(tmp_path, read_only=True) as reader:
        (batch,) = reader.read({KEY: START})
        assert [r.number for r in batch.records] == [1, 2]
        with file.open("r+b") as out:  # its size grows first
            out.write(whole[:partial] + bytes(len(before) + frame - partial))
        monkeypatch.setattr(Segment, "next_frame", finished_meanwhile)
        (batch,) = reader.read({KEY: batch.position})
        assert [r.number for r in batch.records] == [3, 4]
        assert batch.damaged == 0
