"""Group ``sharing``: how soon others draft what was said here, what that costs, how fast a new
replica is warm.

Times are of one machine; a journal's second replica reads it as another process does.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import ours
from benchmarks.data import Tokens, Turns
from benchmarks.harness import Context, Row, below, group, in_turn, versus
from benchmarks.sharing import (
    KEY,
    Counted,
    Replica,
    decode,
    delays,
    finishing,
    replicas,
    settle,
    varied,
    warm_start,
)
from suffixspec_index.log import Record, RecordKind, open_log
from suffixspec_index.log.codec import encode_records

if TYPE_CHECKING:
    from suffixspec_index.log.journal import JournalLog

MILLI, MICRO = 1e3, 1e6
WARM_TOKENS = 10_000_000


@contextmanager
def folder() -> Iterator[Path]:
    """A folder for a journal."""
    path = Path(tempfile.mkdtemp(prefix="suffixspec-sharing-"))
    try:
        yield path / "journal"
    finally:
        shutil.rmtree(path, ignore_errors=True)


@group("sharing", "finished here, drafted there; warm starts; what publishing costs")
def run(context: Context) -> list[Row]:
    """Every row of the group."""
    ours.compile_kernels()
    outputs = context.corpus.outputs()
    return [
        *_delays(context),
        *_publishing(context, outputs),
        *_warm_start(context, outputs),
        *_together(context),
        *_sizes(context, outputs),
    ]


def _delays(context: Context) -> list[Row]:
    count = 40 if context.quick else 300
    rows = []
    for name, first, second in (
        ("memory", "memory:delays", "memory:delays"),
        ("journal", "journal:{}", "journal:{}#follow"),
        ("journal, fsync always", "journal:{}?fsync=always", "journal:{}#follow"),
    ):
        context.say(f"finished here, drafted there: {name}")
        with folder() as path:  # a new one each: what is said must be new to the second replica
            found = np.array(delays(first.format(path), second.format(path), count)) * MILLI
        title = f"finished on A, drafted on B: {name}"
        rows.append(below(f"{title}, p99", _percentile(found, 99), None, "ms", limit=50))
        rows.append(versus(f"{title}, median", float(np.median(found)), None, "ms"))
    return rows


def _publishing(context: Context, outputs: Sequence[Tokens]) -> list[Row]:
    """The difference that sharing makes to the end of a request."""
    context.say("what publishing costs a request")
    some = outputs[:: max(len(outputs) // (100 if context.quick else 600), 1)]
    with folder() as path:
        measured = in_turn(
            {
                "alone": lambda: finishing(None, some),
                "shared": lambda: finishing(f"journal:{path}", some),
            },
            repeats=context.repeats,
        )
    alone, shared = (measured[name].median * MICRO for name in ("alone", "shared"))
    return [
        below("publishing adds to a request", max(shared - alone, 0.0), None, "µs", limit=20),
        versus("the end of a request, not shared", alone, None, "µs"),
    ]


def _warm_start(context: Context, outputs: Sequence[Tokens]) -> list[Row]:
    tokens = 300_000 if context.quick else WARM_TOKENS
    with folder() as path:
        context.say(f"writing a journal of {tokens:,} tokens")
        write_log(f"journal:{path}?fsync=never", varied(outputs, tokens))
        context.say(f"reading {tokens:,} tokens back")
        found = warm_start(f"journal:{path}#follow")
    title = f"warm start from a journal, {found.tokens / 1e6:.1f} million tokens"
    waits = np.array(found.waits) * MILLI
    return [
        below(f"{title}, processor time", found.processor, None, "s", limit=15),
        versus(title, found.seconds, None, "s"),
        versus("a draft during a warm start, p99", _percentile(waits, 99), None, "ms"),
        versus("a draft during a warm start, longest", float(waits.max()), None, "ms"),
    ]


def write_log(url: str, outputs: Iterator[Tokens]) -> None:
    """Write outputs as a publisher under load does, and let a journal tidy up."""
    with open_log(url) as log:
        batch: list[Record] = []
        for number, output in enumerate(outputs):
            said = Record(RecordKind.SEQUENCE, 1, number, number, 1.7e9 + number, output)
            batch.append(said)
            if len(batch) == 16:
                log.append(KEY, batch)
                batch = []
        if batch:
            log.append(KEY, batch)
        _pack(log)  # type: ignore[arg-type]


def _pack(log: JournalLog) -> None:
    """What the journal's own thread does every few seconds."""
    for writer in getattr(log, "_writers", {}).values():
        while writer.pack():
            pass


def _together(context: Context) -> list[Row]:
    """Two replicas that share, against one that saw every session, and against two that do not."""
    context.say("two replicas together")
    generated = 1_500 if context.quick else 10_000
    sessions = [
        turns for name in context.corpus.sources for turns in context.corpus.first(name, generated)
    ]
    one = tokens_per_step(sessions, None)
    two = tokens_per_step(sessions, "memory:together", "memory:together")
    apart = tokens_per_step(sessions, None, None)
    loss = (1 - two / one) * 100
    return [
        below("tokens per step that two replicas lose by sharing", loss, None, "%", limit=2),
        versus("tokens per step, one replica", one, None, "tokens"),
        versus("tokens per step, two that share", two, None, "tokens"),
        versus("tokens per step, two that do not", apart, None, "tokens"),
    ]


def tokens_per_step(sessions: Sequence[Turns], *urls: str | None) -> float:
    """Sessions given to replicas in turn; each begins when the others have been taken in."""
    counted = Counted()
    with replicas(*urls) as those:
        turn: Iterator[Replica] = cycle(those)
        for number, turns in enumerate(sessions):
            decode(next(turn), f"session {number}", turns, counted)
            settle(those)
    return counted.tokens_per_step


def _sizes(context: Context, outputs: Sequence[Tokens]) -> list[Row]:
    """Bytes per token of what travels and of what lies on the disk."""
    context.say("bytes per token")
    records = [
        Record(RecordKind.SEQUENCE, 1 << 62, number, number, 1.7e9 + 0.37 * number, output)
        for number, output in enumerate(outputs)
    ]
    tokens = sum(len(output) for output in outputs)
    rows = []
    for size in (1, 8, 64):
        sent = sum(
            len(encode_records(records[at : at + size])) for at in range(0, len(records), size)
        )
        name = f"bytes per token sent, {size} sequences at a time"
        rows.append(versus(name, sent / tokens, None, "bytes"))
    with folder() as path:
        write_log(f"journal:{path}?fsync=never&segment_bytes=64KiB", iter(outputs))
        with open_log(f"journal:{path}", read_only=True) as log:
            packed = log.statistics(KEY).bytes_per_token
    return [*rows, versus("bytes per token in a journal, packed", packed, None, "bytes")]


def _percentile(values: np.ndarray[tuple[int], np.dtype[np.float64]], q: float) -> float:
    return float(np.percentile(values, q))
