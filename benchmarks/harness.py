"""What every benchmark shares: rows, goals, the header, fair timing, the registry of groups.

A group is one file in :mod:`benchmarks.groups` that registers one function. It is found by itself.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from benchmarks.data import Corpus, load_corpus

ROOT = Path(__file__).resolve().parents[1]
DTYPES = ("float32", "bfloat16")
"""In which groups that run a model measure it."""
PACKAGES = ("numpy", "numba", "suffixspec", "arctic-inference")


@dataclass(frozen=True, slots=True)
class Row:
    """One figure.

    ``ratio`` is always the advantage: how many times better ours is than the peer's, whatever
    "better" means for the unit. ``met`` is ``None`` where there is no goal, or no peer to judge by.
    """

    name: str
    ours: float | None
    peer: float | None
    ratio: float | None
    unit: str
    goal: str
    met: bool | None

    def as_json(self) -> dict[str, Any]:
        """Exactly the seven keys, in this order."""
        return {
            "name": self.name,
            "ours": self.ours,
            "peer": self.peer,
            "ratio": self.ratio,
            "unit": self.unit,
            "goal": self.goal,
            "met": self.met,
        }


def versus(
    name: str,
    ours: float | None,
    peer: float | None,
    unit: str,
    *,
    times: float | None = None,
    lower_is_better: bool = False,
) -> Row:
    """A row judged by its advantage over the peer; without ``times`` it is only shown."""
    ratio = None
    if ours and peer:
        ratio = peer / ours if lower_is_better else ours / peer
    goal = "" if times is None else f"≥ {times:g} ×"
    met = None if times is None or ratio is None else ratio >= times
    return Row(name, ours, peer, ratio, unit, goal, met)


def below(name: str, ours: float | None, peer: float | None, unit: str, *, limit: float) -> Row:
    """A row judged by an absolute upper limit."""
    ratio = peer / ours if ours and peer else None
    return Row(
        name, ours, peer, ratio, unit, f"< {limit:g} {unit}", None if ours is None else ours < limit
    )


@dataclass(frozen=True, slots=True)
class Samples:
    """Repeated measurements of one rival."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle value: what rows print."""
        return statistics.median(self.values)


def in_turn(rivals: Mapping[str, Callable[[], float]], *, repeats: int) -> dict[str, Samples]:
    """Measure rivals A B A B ..., so that a slow minute of the machine hits both alike.

    Each rival returns its own figure (seconds, say), so that its preparation is not counted. One
    round before is thrown away: it compiles kernels and warms caches.
    """
    if repeats < 1:
        raise ValueError(f"repeats: must be at least 1, got {repeats}")
    for rival in rivals.values():
        rival()
    values: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(repeats):
        for name, rival in rivals.items():
            values[name].append(rival())
    return {name: Samples(tuple(v)) for name, v in values.items()}


@dataclass
class Context:
    """What a group is given. The corpus is loaded by the first group that asks for it."""

    repeats: int = 5
    quick: bool = False
    dtypes: tuple[str, ...] = DTYPES
    figures: Path = ROOT / "out"
    say: Callable[[str], None] = field(default=lambda text: None)
    loaded: list[str] = field(default_factory=list)

    @cached_property
    def corpus(self) -> Corpus:
        """The recorded agent traces, rendered and tokenized."""
        corpus = load_corpus(ROOT)
        self.loaded.append(corpus.description)
        return corpus


Run = Callable[[Context], list[Row]]


@dataclass(frozen=True, slots=True)
class Group:
    """A named set of rows."""

    name: str
    summary: str
    run: Run


_GROUPS: dict[str, Group] = {}


def group(name: str, summary: str) -> Callable[[Run], Run]:
    """Register the decorated function as the group ``name``."""

    def register(run: Run) -> Run:
        known = _GROUPS.get(name)
        if known is not None and known.run.__module__ != run.__module__:
            raise ValueError(f"group: {name!r} is registered by {known.run.__module__} already")
        _GROUPS[name] = Group(name, summary, run)
        return run

    return register


def groups() -> dict[str, Group]:
    """All groups by name, found by importing every module of :mod:`benchmarks.groups`."""
    package = import_module("benchmarks.groups")
    for module in iter_modules(package.__path__):
        import_module(f"benchmarks.groups.{module.name}")
    return dict(sorted(_GROUPS.items()))


def header(context: Context) -> dict[str, Any]:
    """Where, with what and on what the rows were measured."""
    return {
        "machine": {"cpu": cpu_model(), "cores": os.cpu_count(), "system": platform.platform()},
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "data": "; ".join(context.loaded) or "none",
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "repeats": context.repeats,
        "quick": context.quick,
    }


def cpu_model() -> str:
    """The processor's name, as well as the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The short commit id, with ``+`` where the working tree differs from it."""
    try:
        commit = _git("rev-parse", "--short", "HEAD")
        return commit + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):  # not a checkout, or no git
        return None


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()
