"""Snapshots: what is stored comes back, and no damaged or foreign file is ever taken for one."""

from __future__ import annotations

import random
import struct
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suffixspec_index import snapshot_file
from suffixspec_index.depth.calibration import DraftCalibration
from suffixspec_index.errors import (
    ConfigError,
    SnapshotCorruptError,
    SnapshotError,
    SnapshotFormatError,
)
from suffixspec_index.index import SuffixIndex
from suffixspec_index.index_config import IndexConfig
from suffixspec_index.snapshot import (
    load_calibration,
    load_index,
    load_tree,
    read_info,
    save_index,
    save_tree,
)
from suffixspec_index.tree import SuffixTree


def some_tree() -> SuffixTree:
    rng = random.Random(1)
    tree = SuffixTree(9, vocab_size=70_000, live_chunk=4)
    for number in range(20):
        tree.insert([rng.choice([1, 2, 3, 69_999]) for _ in range(number * 3)], at_time=number)
    tree.open([5, 6, 7, 8] * 6, at_time=100.5)
    tree.insert([], at_time=101)
    return tree


def some_index() -> SuffixIndex:
    rng = random.Random(2)
    index = SuffixIndex(IndexConfig(depth=8, live_chunk=8), vocab_size=50, forbidden=[49])
    for number in range(12):
        handle = index.begin(f"s{number % 3}", [rng.randrange(6) for _ in range(20)])
        for _ in range(20):
            index.propose_batch([handle])
            index.advance_batch([handle], np.array([rng.randrange(6)], np.int32), np.array([0, 1]))
        if number < 11:
            index.finish(handle)
    return index


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "index.snap"
    save_index(some_index(), path, fingerprint="tok-1")
    return path


def test_a_tree_comes_back(tmp_path: Path) -> None:
    tree, path = some_tree(), tmp_path / "tree.snap"
    tree.save(path, fingerprint="tok-1")
    loaded = SuffixTree.load(path, fingerprint="tok-1")
    loaded.check_integrity()
    assert loaded.depth == 9
    assert loaded.vocab_size == 70_000
    assert [s.time for s in loaded.sequences.values()] == [*map(float, range(20)), 100.5, 101.0]
    for mine, theirs in zip(tree, loaded, strict=True):
        assert loaded.sequence_tokens(theirs).tolist() == tree.sequence_tokens(mine).tolist()
    assert not any(s.is_open for s in loaded.sequences.values())
    assert loaded.count([7, 8, 5]) == 5  # of the open one all is visible now
    info = read_info(path)
    assert (info.kind, info.sequences, info.tokens) == ("tree", 22, loaded.statistics().tokens)
    assert list(path.parent.iterdir()) == [path]


def test_another_depth(tmp_path: Path) -> None:
    path = tmp_path / "tree.snap"
    save_tree(some_tree(), path)
    loaded = load_tree(path, depth=4)
    loaded.check_integrity()
    assert loaded.depth == 4
    with pytest.raises(ConfigError, match="depth"):
        load_tree(path, depth=1)


def test_an_empty_tree(tmp_path: Path) -> None:
    save_tree(SuffixTree(5), tmp_path / "empty")
    assert len(load_tree(tmp_path / "empty")) == 0


def test_an_index_comes_back_with_what_it_learned(saved: Path) -> None:
    index = some_index()
    loaded = load_index(saved, index.config, fingerprint="tok-1", forbidden=[49])
    loaded.check_integrity()
    assert loaded.vocab_size == 50
    assert (loaded.model.cells == index.model.cells).all()
    assert (loaded.model.weights == index.model.weights).all()
    assert loaded.world.statistics().tokens == index.world.statistics().tokens
    for prompt in ([1, 2], [3, 4, 5], [0]):
        a = index.propose_batch([index.begin("new", prompt)])[0]
        b = loaded.propose_batch([loaded.begin("new", prompt)])[0]
        b.check_integrity()
        assert set(b.token_ids.tolist()) <= set(range(6))
        assert len(a) or not len(b)
        index.end_session("new")
        loaded.end_session("new")


def test_learned_tables_can_be_left_out(saved: Path) -> None:
    fresh = SuffixIndex().model
    assert (load_index(saved, learned=False).model.cells == fresh.cells).all()
    assert load_index(saved).config.depth == 8


def some_calibration() -> DraftCalibration:
    tables, rng = DraftCalibration(), np.random.default_rng(3)
    for part in (tables.coarse, tables.fine):
        part[..., 0] = rng.random(part.shape[:-1])
        part[..., 1] = rng.integers(0, 200, part.shape[:-1])
    return tables


def test_a_calibration_comes_back(tmp_path: Path) -> None:
    path, calibration, index = tmp_path / "index.snap", some_calibration(), some_index()
    save_index(index, path, fingerprint="tok-1", calibration=calibration)
    assert load_index(path).model.to_bytes() == index.model.to_bytes()
    again = load_calibration(path, fingerprint="tok-1")
    assert again is not None
    assert again.to_bytes() == calibration.to_bytes()
    assert path.read_bytes()[8] == 2
    with pytest.raises(SnapshotFormatError, match="fingerprint"):
        load_calibration(path, fingerprint="tok-2")
    damaged = bytearray(path.read_bytes())
    damaged[-40] ^= 1  # in the last block
    path.write_bytes(damaged)
    with pytest.raises(SnapshotCorruptError, match="block calibration is wrong"):
        load_calibration(path)


def test_a_calibration_of_another_shape(tmp_path: Path) -> None:
    path = tmp_path / "index.snap"
    calibration = some_calibration()
    calibration.fine = calibration.fine[:, :, 1:]
    save_index(some_index(), path, fingerprint=None, calibration=calibration)
    with pytest.raises(SnapshotFormatError, match="of another version: start with a new one"):
        load_calibration(path)


def test_without_a_calibration_older_programs_read_the_file(saved: Path) -> None:
    assert saved.read_bytes()[8] == 1
    assert load_calibration(saved) is None


def test_a_file_of_version_1() -> None:
    path = Path(__file__).parent / "data" / "version-1.snapshot"
    assert (read_info(path).sequences, read_info(path).calibration_bytes) == (2, 0)
    tree = load_tree(path)
    assert [tree.sequence_tokens(s).tolist() for s in tree] == [[1, 2, 3, 4], [2, 3, 5]]
    assert load_index(path).world.count([2, 3]) == 2


def test_a_smaller_index_keeps_the_newest(saved: Path) -> None:
    loaded = load_index(saved, IndexConfig(max_cached_requests=3))
    loaded.check_integrity()
    full = load_index(saved)
    newest = [full.world.sequence_tokens(s).tolist() for s in full.world][-3:]
    assert [loaded.world.sequence_tokens(s).tolist() for s in loaded.world] == newest
    assert load_index(saved, IndexConfig(max_cached_requests=0)).statistics().sequences == 0


def test_byte_budget_holds_while_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    tree = SuffixTree(16)
    for _ in range(60):
        tree.insert(rng.integers(0, 5000, 2000))
    save_tree(tree, tmp_path / "big")
    loaded = load_index(tmp_path / "big", IndexConfig(max_bytes=3 << 20))
    assert loaded.nbytes <= 3 << 20
    assert 0 < loaded.statistics().sequences < 60
    last = loaded.world.sequence_tokens(list(loaded.world)[-1])
    assert (last == tree.sequence_tokens(59)).all()


def test_several_blocks_of_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_file, "_BLOCK_TOKENS", 100)
    tree, path = some_tree(), tmp_path / "tree.snap"
    save_tree(tree, path)
    assert read_info(path).token_blocks == 6
    loaded = load_tree(path)
    for mine, theirs in zip(tree, loaded, strict=True):
        assert loaded.sequence_tokens(theirs).tolist() == tree.sequence_tokens(mine).tolist()


# --- what must be refused -------------------------------------------------------------------------


def test_every_truncation_is_noticed(saved: Path) -> None:
    whole = saved.read_bytes()
    lengths = [*range(min(len(whole), 700)), *range(700, len(whole), 997), len(whole) - 1]
    for length in lengths:
        saved.write_bytes(whole[:length])
        with pytest.raises((SnapshotCorruptError, SnapshotFormatError), match=r"index\.snap"):
            load_index(saved)
    saved.write_bytes(whole + b"x")
    with pytest.raises(SnapshotCorruptError, match="follows the end"):
        load_index(saved)


@cache
def _stored_tree(path: Path) -> bytes:
    save_tree(some_tree(), path)
    return path.read_bytes()


@settings(max_examples=150, deadline=None, derandomize=True)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_every_flipped_bit_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, place: float, bit: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "flipped.snap"
    damaged = bytearray(_stored_tree(path))
    damaged[int(place * len(damaged))] ^= 1 << bit
    path.write_bytes(damaged)
    with pytest.raises((SnapshotCorruptError, SnapshotFormatError)) as caught:
        load_tree(path)
    assert "flipped.snap" in str(caught.value)


def test_damage_is_named(saved: Path) -> None:
    damaged = bytearray(saved.read_bytes())
    damaged[-200] ^= 1
    saved.write_bytes(damaged)
    with pytest.raises(SnapshotCorruptError, match=r"block model is wrong.*restore it"):
        load_index(saved)


@pytest.mark.parametrize("content", [b"", b"{}", b"PK\x03\x04" * 50, b"\0" * 4000])
def test_foreign_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "foreign"
    path.write_bytes(content)
    with pytest.raises(SnapshotFormatError, match="not a snapshot"):
        load_index(path)
    with pytest.raises(SnapshotFormatError, match="not a snapshot"):
        read_info(path)


@pytest.mark.parametrize(("version", "remedy"), [(3, "update suffixspec"), (0, "write it anew")])
def test_other_versions(saved: Path, version: int, remedy: str) -> None:
    data = bytearray(saved.read_bytes())
    struct.pack_into("<H", data, 8, version)
    saved.write_bytes(data)
    with pytest.raises(SnapshotFormatError, match=f"version {version}.*{remedy}"):
        load_index(saved)


def test_another_tokenizer(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(SnapshotFormatError, match=r"fingerprint: .*tok-1.*tok-2"):
        load_index(saved, fingerprint="tok-2")
    load_index(saved, fingerprint=None)
    save_tree(some_tree(), tmp_path / "unknown")
    with pytest.raises(SnapshotFormatError, match="unknown"):
        load_tree(tmp_path / "unknown", fingerprint="tok-1")


def test_another_vocabulary(saved: Path) -> None:
    with pytest.raises(SnapshotFormatError, match=r"vocab_size: .* token id 5"):
        load_index(saved, vocab_size=5)
    assert load_index(saved, vocab_size=64).vocab_size == 64  # a padded one is fine


def test_tables_of_another_shape(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = some_index()
    monkeypatch.setattr(type(index.model), "to_bytes", lambda self: bytes(1000))
    save_index(index, saved, fingerprint=None)
    with pytest.raises(SnapshotFormatError, match="learned=False"):
        load_index(saved)
    load_index(saved, learned=False)


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="cannot be read"):
        load_index(tmp_path / "nowhere")
    with pytest.raises(SnapshotError, match="cannot be read"):
        load_tree(tmp_path)


def test_a_failed_write_leaves_the_old_file(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(SnapshotError, match="No space left"):
        save_index(some_index(), saved, fingerprint=None)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]
    with pytest.raises(SnapshotError, match="cannot be written"):
        save_tree(SuffixTree(), saved.parent / "no" / "folder")


def test_saving_replaces(saved: Path) -> None:
    save_index(SuffixIndex(), saved, fingerprint=None)
    assert load_index(saved).statistics().sequences == 0
