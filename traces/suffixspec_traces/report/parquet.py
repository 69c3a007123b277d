"""The steps as a Parquet table, for questions that the report does not answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from suffixspec_index.draft import Source
from suffixspec_traces.replay.decode import ReplayResult
from suffixspec_traces.replay.log import Step

SCHEMA = pa.schema(
    [
        ("method", pa.dictionary(pa.int32(), pa.string())),
        ("workload", pa.dictionary(pa.int32(), pa.string())),
        ("session", pa.int32()),  # in order of their start
        ("session_id", pa.dictionary(pa.int32(), pa.string())),
        ("turn", pa.int32()),  # of the session, from 1
        ("prompt_tokens", pa.int32()),
        ("position", pa.int32()),  # output tokens before the step
        ("gained", pa.int32()),  # output tokens of the step
        ("drafted", pa.int32()),
        ("accepted", pa.int32()),
        ("reached", pa.int32()),  # depth down to which the verifier had a token to decide on
        ("match_len", pa.int32()),
        ("source", pa.dictionary(pa.int32(), pa.string())),  # of the draft's first token
        ("propose_ns", pa.int64()),
        ("advance_ns", pa.int64()),
    ]
)


def write_parquet(path: Path, results: Sequence[ReplayResult]) -> None:
    """Write one row per step and method, one row group per method. Raises ``OSError``."""
    with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
        for result in results:
            writer.write_table(steps_table(result))


def steps_table(result: ReplayResult) -> pa.Table:
    """The steps of one result with :data:`SCHEMA`. O(steps)."""
    log, plan = result.log, result.plan
    turn = log.column(Step.TURN)
    turn_session = np.array([t.session for t in plan.turns], np.int32)
    session = turn_session[turn]
    columns = {
        "method": _named(np.zeros(len(log), np.int32), [result.label]),
        "workload": _named(session, [s.source for s in plan.sessions]),
        "session": session,
        "session_id": _named(session, [s.id for s in plan.sessions]),
        "turn": np.array([t.number + 1 for t in plan.turns], np.int32)[turn],
        "prompt_tokens": np.array([len(t.turn.prompt) for t in plan.turns], np.int32)[turn],
        "source": _named(log.column(Step.SOURCE), [s.label for s in Source]),
        "propose_ns": log.propose_ns,
        "advance_ns": log.advance_ns,
    }
    for column in (Step.POSITION, Step.GAINED, Step.DRAFTED, Step.ACCEPTED, Step.REACHED):
        columns[column.name.lower()] = log.column(column)
    columns["match_len"] = log.column(Step.MATCH_LEN)
    return pa.table({name: columns[name] for name in SCHEMA.names}, schema=SCHEMA)


def _named(codes: np.ndarray, names: Sequence[str]) -> pa.Array:
    """Dictionary-encoded names; equal names share one entry."""
    unique = {name: i for i, name in enumerate(dict.fromkeys(names))}
    renumber = np.array([unique[name] for name in names] or [0], np.int32)
    return pa.DictionaryArray.from_arrays(
        pa.array(renumber[codes]), pa.array(list(unique), pa.string())
    )
