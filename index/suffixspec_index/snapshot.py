"""Snapshots: a tree or an index in one file that says what it is and notices any damage.

What is stored are the token sequences, oldest first, what the acceptance model learned and, where
it is given, a calibration of drafts. Nodes are not stored: they are built again at about 0.3 µs per
token, which is no slower than reading them would be, and so a file outlives every change of their
layout, and can be loaded at another depth. The file itself is the matter of ``snapshot_file.py``.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from suffixspec_index.acceptance import AcceptanceModel
from suffixspec_index.errors import SnapshotCorruptError, SnapshotFormatError
from suffixspec_index.index import SuffixIndex
from suffixspec_index.index_config import IndexConfig
from suffixspec_index.rebuilding import evict_aside
from suffixspec_index.snapshot_file import (
    SnapshotContent,
    SnapshotInfo,
    read_content,
    read_info,
    write_content,
)
from suffixspec_index.tree import SuffixTree

if TYPE_CHECKING:
    from suffixspec_index.depth.calibration import DraftCalibration

_BATCH = 1 << 20  # tokens between two looks at the byte budget


def save_tree(tree: SuffixTree, path: str | Path, *, fingerprint: str | None = None) -> None:
    """Write a tree to a file. Open sequences are stored as if they were closed. O(tokens).

    Args:
        tree: what to store; the caller sees to it that nobody writes to it meanwhile.
        path: the file; one that exists is replaced once the new one is complete.
        fingerprint: of the tokenizer; :func:`load_tree` compares it.

    Raises:
        SnapshotError: the file cannot be written. An old one is left as it was.
    """
    write_content(Path(path), _gather(tree, "tree", fingerprint, b""))


def load_tree(
    path: str | Path, *, fingerprint: str | None = None, depth: int | None = None
) -> SuffixTree:
    """Read a tree from a file and build it. O(tokens).

    Args:
        path: a file of :func:`save_tree` or :func:`save_index`.
        fingerprint: of the tokenizer in use; ``None``: not compared.
        depth: window length; ``None``: the stored one.

    Raises:
        SnapshotFormatError: not such a file, one of another version, or of another tokenizer.
        SnapshotCorruptError: it is truncated or damaged. SnapshotError: it cannot be read.
        ConfigError: the depth is out of range.
    """
    content = read_content(Path(path), fingerprint)
    tree = SuffixTree(
        content.info.depth if depth is None else depth, vocab_size=content.info.vocab_size
    )
    for tokens, at in content.sequences():
        tree.insert(tokens, at_time=at)
    return tree


def save_index(
    index: SuffixIndex,
    path: str | Path,
    *,
    fingerprint: str | None,
    calibration: DraftCalibration | None = None,
) -> None:
    """Write an index's global tree and what it learned. Sessions' own memories are not stored.

    Readers go on meanwhile; writers wait while the sequences are copied, not while they are
    compressed and written. O(tokens).

    Args:
        index: what to store; live output shared so far is stored as a finished sequence.
        path: the file; one that exists is replaced once the new one is complete.
        fingerprint: of the tokenizer; :func:`load_index` compares it. ``None``: unknown.
        calibration: what the namespace's drafts from elsewhere (prompt lookup, a draft model) have
            been worth, as a depth rule learns it beside the index; :func:`load_calibration` reads
            it back.

    Raises:
        SnapshotError: the file cannot be written. An old one is left as it was.
    """
    with index._lock.reading():
        stored = _gather(index.world, "index", fingerprint, index.model.to_bytes())
    if calibration is not None:
        tables = calibration.to_bytes()
        info = replace(stored.info, calibration_bytes=len(tables))
        stored = replace(stored, info=info, calibration=tables)
    write_content(Path(path), stored)


def load_index(
    path: str | Path,
    config: IndexConfig | None = None,
    *,
    fingerprint: str | None = None,
    vocab_size: int | None = None,
    forbidden: ArrayLike = (),
    learned: bool = True,
) -> SuffixIndex:
    """Read an index from a file and build it with settings that may differ from the stored ones.

    Where the settings allow fewer sequences or bytes than are stored, the newest are kept.
    O(tokens).

    Args:
        path: a file of :func:`save_index`, or of :func:`save_tree` (nothing is learned then).
        config: the settings; by default the default ones at the stored depth.
        fingerprint: of the tokenizer in use; ``None``: not compared.
        vocab_size: of the model in use; ``None``: the stored one.
        forbidden: token ids that drafts never hold.
        learned: take over the acceptance model too.

    Raises:
        SnapshotFormatError: not such a file, one of another version, or of another tokenizer.
        SnapshotCorruptError: it is truncated or damaged. SnapshotError: it cannot be read.
        ConfigError, TokenError: an argument is wrong.
    """
    path = Path(path)
    content = read_content(path, fingerprint)
    info = content.info
    model = _model_of(path, content) if learned and info.model_bytes else None
    size = info.vocab_size if vocab_size is None else vocab_size
    if config is None:
        config = IndexConfig(depth=info.depth)
    index = SuffixIndex(config, vocab_size=size, forbidden=forbidden, model=model)
    largest = int(content.tokens.max(initial=-1))
    if size is not None and largest >= size:
        raise SnapshotFormatError(
            f"{path}: vocab_size: the file holds token id {largest}, but the vocabulary has {size} "
            "ids; it was made with another tokenizer. Name that one's vocabulary, or start empty"
        )
    _fill(index, content)
    return index


def load_calibration(
    path: str | Path, *, fingerprint: str | None = None
) -> DraftCalibration | None:
    """Read the calibration that :func:`save_index` was given; ``None``: the file holds none, as
    those of older versions. The whole file is verified: O(tokens).

    Args:
        path: a file of :func:`save_index` or :func:`save_tree`.
        fingerprint: of the tokenizer in use; ``None``: not compared.

    Raises:
        SnapshotFormatError: not such a file, one of another version, or of another tokenizer.
        SnapshotCorruptError: it is truncated or damaged. SnapshotError: it cannot be read.
    """
    from suffixspec_index.depth.calibration import DraftCalibration

    path = Path(path)
    content = read_content(path, fingerprint)
    if not content.info.calibration_bytes:
        return None
    try:
        return DraftCalibration.from_bytes(content.calibration)
    except SnapshotCorruptError as error:  # the checksum is right, so another version wrote it
        raise SnapshotFormatError(
            f"{path}: {error}; the calibration is of another version: start with a new one"
        ) from None


def _fill(index: SuffixIndex, content: SnapshotContent) -> None:
    """Insert the newest sequences that the index may keep, within its budget."""
    most = index.config.max_cached_requests
    skip = max(content.info.sequences - most, 0)
    since = 0
    for number, (tokens, at) in enumerate(content.sequences()):
        if number < skip:
            continue
        index.world.insert(tokens, at_time=at)  # nobody else has the index yet: no lock
        since += len(tokens)
        if since > _BATCH:
            since = 0
            _fit(index)
    index._update_context()
    _fit(index)


def _fit(index: SuffixIndex) -> None:
    if index._budget.enforce():
        evict_aside(index)


def _model_of(path: Path, content: SnapshotContent) -> AcceptanceModel:
    try:
        return AcceptanceModel.from_bytes(content.model)
    except SnapshotCorruptError as error:  # the checksum is right, so another version wrote it
        raise SnapshotFormatError(
            f"{path}: {error}; what was learned is of another version: load with learned=False "
            "to take the sequences alone"
        ) from None


def _gather(tree: SuffixTree, kind: str, fingerprint: str | None, model: bytes) -> SnapshotContent:
    """A copy of all that is to be stored."""
    parts = [tree.sequence_tokens(sequence) for sequence in tree]
    lengths = np.array([len(part) for part in parts], np.int64)
    times = np.array([s.time for s in tree.sequences.values()], np.float64)
    tokens = np.concatenate(parts) if parts else np.empty(0, np.int32)
    info = SnapshotInfo(
        kind=kind,
        depth=tree.depth,
        vocab_size=tree.vocab_size,
        fingerprint=fingerprint,
        sequences=len(parts),
        tokens=len(tokens),
        model_bytes=len(model),
        created=time.time(),
    )
    return SnapshotContent(info, lengths, times, tokens, model)


__all__ = [
    "SnapshotInfo",
    "load_calibration",
    "load_index",
    "load_tree",
    "read_info",
    "save_index",
    "save_tree",
]
