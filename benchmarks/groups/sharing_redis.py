"""Group ``sharing_redis``: the figures of group ``sharing`` through a real Redis on loopback.

The server is started by the group, with an append-only file synced every second. Everything runs on
one machine, so a network's own time comes on top.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks import ours
from benchmarks.data import Tokens
from benchmarks.groups.sharing import MICRO, MILLI, WARM_TOKENS, write_log
from benchmarks.harness import Context, Row, below, group, in_turn, versus
from benchmarks.redis_server import available, running_redis
from benchmarks.sharing import KEY, delays, finishing, varied, warm_start
from suffixspec_index.log import open_log

BUDGET = "max_bytes=4GiB"


@group("sharing_redis", "finished here, drafted there, warm starts, publishing, through Redis")
def run(context: Context) -> list[Row]:
    """Every row of the group; none, with the reason, where Redis is missing."""
    if not available():
        context.say("group sharing_redis is skipped: install redis-server and suffixspec[redis]")
        return []
    ours.compile_kernels()
    outputs = context.corpus.outputs()
    return [*_delays(context), *_publishing(context, outputs), *_warm_start(context, outputs)]


def _delays(context: Context) -> list[Row]:
    context.say("finished here, drafted there: Redis")
    with running_redis() as server:
        count = 40 if context.quick else 300
        found = np.array(delays(server.url, server.url, count)) * MILLI
    title = "finished on A, drafted on B: Redis"
    return [
        below(f"{title}, p99", float(np.percentile(found, 99)), None, "ms", limit=50),
        versus(f"{title}, median", float(np.median(found)), None, "ms"),
    ]


def _publishing(context: Context, outputs: Sequence[Tokens]) -> list[Row]:
    context.say("what publishing to Redis costs a request")
    some = outputs[:: max(len(outputs) // (100 if context.quick else 600), 1)]
    with running_redis() as server:
        measured = in_turn(
            {"alone": lambda: finishing(None, some), "shared": lambda: finishing(server.url, some)},
            repeats=context.repeats,
        )
    alone, shared = (measured[name].median * MICRO for name in ("alone", "shared"))
    cost = max(shared - alone, 0.0)
    return [below("publishing to Redis adds to a request", cost, None, "µs", limit=20)]


def _warm_start(context: Context, outputs: Sequence[Tokens]) -> list[Row]:
    tokens = 300_000 if context.quick else WARM_TOKENS
    with running_redis() as server:
        url = f"{server.url}?{BUDGET}"
        empty = server.memory()
        context.say(f"writing {tokens:,} tokens to Redis")
        write_log(url, varied(outputs, tokens))
        stored = server.memory() - empty
        with open_log(url, read_only=True) as log:
            statistics = log.statistics(KEY)
        context.say(f"reading {tokens:,} tokens back")
        found = warm_start(url)
    assert statistics.tokens
    title = f"warm start from Redis, {found.tokens / 1e6:.1f} million tokens"
    waits = np.array(found.waits) * MILLI
    return [
        versus(title, found.seconds, None, "s")
        if context.quick
        else below(title, found.seconds, None, "s", limit=15),
        versus("a draft during it, p99", float(np.percentile(waits, 99)), None, "ms"),
        versus("bytes per token, compressed", statistics.bytes_per_token, None, "bytes"),
        versus("bytes per token in Redis's memory", stored / statistics.tokens, None, "bytes"),
    ]
