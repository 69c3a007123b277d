"""What a service has learned, kept across restarts: acceptance, calibration, rates, costs of steps.

Of each namespace its index's acceptance tables and the calibration of its drafts; of the engine the
going rates and what its steps take. The texts themselves are the log's matter (``sharing``). A
file that is damaged, foreign or of another version is reported, and the service starts as it would
without one.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from suffixspec_index.acceptance import AcceptanceModel
from suffixspec_index.errors import SnapshotError
from suffixspec_index.index import SuffixIndex
from suffixspec_index.learned_file import read_learned, write_learned
from suffixspec_index.namespaces import NamespaceKey
from suffixspec_service.logs import get_logger

if TYPE_CHECKING:
    from suffixspec_engine.engine import Engine

FILE_NAME = "learned"
MOST_NAMESPACES = 256
"""Namespaces of which something is kept; those not used for longest are left out."""

_log = get_logger(__name__)


class Learned:
    """Reads the file once, hands out what belongs to whom, and writes it again. Thread-safe.

    Args:
        path: the file; its folder is made if it does not exist.
        engine: whose rates and costs are kept too; ``None``: nobody's.
    """

    def __init__(self, path: Path, engine: Engine | None = None) -> None:
        self.path = path
        self._engine = engine
        self._lock = threading.Lock()
        self._indexes: dict[str, SuffixIndex] = {}
        self._pieces = self._read()
        if engine is not None:
            self._restore_engine(engine)

    def restore_index(self, key: NamespaceKey, index: SuffixIndex) -> None:
        """Give a new index the acceptance that was learned for its namespace, if there is any, and
        keep what it learns from now on."""
        with self._lock:
            piece = self._pieces.get(f"space/{key.digest}/acceptance")
            self._indexes[key.digest] = index
        if piece is None:
            return
        try:
            model = AcceptanceModel.from_bytes(piece)
        except SnapshotError as error:
            self._ignored(error)
            return
        index.model.cells[:] = model.cells
        index.model.odds[:] = model.odds
        index.model.weights[:] = model.weights

    def save(self) -> None:
        """Write everything; O(namespaces). A failure is reported, and the old file stays."""
        with self._lock:
            fresh = {
                f"space/{digest}/acceptance": index.model.to_bytes()
                for digest, index in self._indexes.items()
            }
            if self._engine is not None:
                fresh |= _engine_pieces(self._engine)
            old = {name: piece for name, piece in self._pieces.items() if name not in fresh}
            self._pieces = _newest(old | fresh)
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                write_learned(self.path, self._pieces)
            except (SnapshotError, OSError) as error:
                _log.warning("what was learned is not kept", error=str(error))

    def _read(self) -> dict[str, bytes]:
        if not self.path.exists():
            return {}
        try:
            return read_learned(self.path)
        except SnapshotError as error:
            self._ignored(error)
            return {}

    def _restore_engine(self, engine: Engine) -> None:
        own = f"engine/{_identity(engine)}/"
        found = {n.removeprefix(own): p for n, p in self._pieces.items() if n.startswith(own)}
        for name, piece in self._pieces.items():
            kind, _, rest = name.partition("/")
            digest, _, what = rest.partition("/")
            if kind == "space" and what == "calibration":
                found[f"calibration/{digest}"] = piece
        try:
            engine.restore(found)
        except SnapshotError as error:
            self._ignored(error)

    def _ignored(self, error: SnapshotError) -> None:
        _log.warning("what was learned before is ignored", error=str(error))


def _engine_pieces(engine: Engine) -> dict[str, bytes]:
    """Calibrations by namespace, the rest by the engine's identity."""
    pieces = {}
    for name, piece in engine.learned().items():
        kind, _, namespace = name.partition("/")
        own = f"space/{namespace}/calibration" if kind == "calibration" else ""
        pieces[own or f"engine/{_identity(engine)}/{name}"] = piece
    return pieces


def _identity(engine: Engine) -> str:
    """Costs are those of one model on one kind of device with so many threads."""
    import torch

    model = engine.model
    name = model.name.replace("/", "|")
    return f"{name} {model.dtype} {model.device.type} {torch.get_num_threads()}"


def _newest(pieces: dict[str, bytes]) -> dict[str, bytes]:
    """Without the namespaces that were not used for longest: they stand first."""
    spaces = list(dict.fromkeys(n.split("/")[1] for n in reversed(pieces) if n[:6] == "space/"))
    gone = set(spaces[MOST_NAMESPACES:])
    return {n: p for n, p in pieces.items() if n[:6] != "space/" or n.split("/")[1] not in gone}
