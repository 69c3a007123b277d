"""Reading streams of a Redis log: from a position, for several namespaces at once, with waiting.

A read asks for the epoch before the entries and for what was trimmed after them, in one round trip
without a transaction. So whatever happens in between, no record is passed over in silence: a stream
that was replaced meanwhile is noticed by the next read, because the position has the old epoch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from suffixspec_index.errors import LogCorruptError
from suffixspec_index.log.base import START, Batch, Record
from suffixspec_index.log.codec import decode_records
from suffixspec_index.log.redis_client import Client
from suffixspec_index.log.redis_scripts import Keys
from suffixspec_index.log.redis_url import RedisPlace
from suffixspec_index.namespaces import NamespaceKey

Id = tuple[int, int]
Entries = Sequence[tuple[bytes, Mapping[bytes, bytes]]]

_ZERO: Id = (0, 0)
_FIRST_COUNT, _MOST_COUNT = 32, 4096  # entries asked for at first, at most
_MOST_WAITING = 64  # connections that wait for streams of a cluster; beyond that they are polled
_POLL = 0.025  # seconds between polls


def position_of(epoch: str, entry: str) -> str:
    """The position after an entry."""
    return f"{epoch}.{entry}"


def id_of(text: str | bytes | None) -> Id:
    """A stream id as numbers that compare as Redis compares them."""
    if text is None:
        return _ZERO
    plain = text.decode() if isinstance(text, bytes) else text
    ms, _, number = plain.partition("-")
    return int(ms), int(number or 0)


def _split(position: str) -> tuple[str, Id] | None:
    """Epoch and id; ``None``: this is no position of a Redis log."""
    epoch, dot, entry = position.partition(".")
    ms, dash, number = entry.partition("-")
    if not dot or not dash or not ms.isdecimal() or not number.isdecimal():
        return None
    return epoch, (int(ms), int(number))


@dataclass(slots=True)
class _Ask:
    """One namespace of a read."""

    key: NamespaceKey
    keys: Keys
    epoch: str  # of the position; empty at the start
    at: Id
    count: int
    foreign: bool = False

    @property
    def after(self) -> str:
        """The first id of the range that is wanted."""
        return "-" if self.at == _ZERO else f"({self.at[0]}-{self.at[1]}"


class Reader:
    """Reads for one log. Used on its event loop only.

    Args:
        place: where it is.
    """

    def __init__(self, place: RedisPlace) -> None:
        self._place = place
        self.damaged: dict[NamespaceKey, int] = {}
        self._counts: dict[NamespaceKey, int] = {}
        self._waiting: dict[NamespaceKey, asyncio.Task[Any]] = {}
        self._waiting_on: Client | None = None
        self._not_before = 0.0  # when the next waiting read may be

    async def read(
        self,
        client: Client,
        cursors: Mapping[NamespaceKey, str],
        max_bytes: int,
        wait: float,
        is_cluster: bool,
    ) -> list[Batch]:
        """See :meth:`SequenceLog.read`."""
        ends = time.monotonic() + wait
        while True:
            await self._pause(ends)
            asks = [self._ask(key, position) for key, position in cursors.items()]
            batches = await self._look(client, asks, max_bytes)
            now = time.monotonic()
            left = ends - now
            if batches or left <= 0:
                unread = any(batch.more for batch in batches)
                self._not_before = 0.0 if unread else now + self._place.read_pause
                return batches
            most = min(left, self._place.timeout / 2)  # a reply must come before the timeout
            if is_cluster:
                await self._wait_in_cluster(client, asks, most)
            else:
                await _wait_alone(client, asks, most)

    async def _pause(self, ends: float) -> None:
        """Where records come one after another, let some gather. Whoever does not wait is not
        held up, nor who has more to read."""
        now = time.monotonic()
        pause = min(self._not_before, ends) - now
        if pause > 0:
            await asyncio.sleep(pause)

    async def behind(self, client: Client, key: NamespaceKey, position: str) -> int:
        """About how many records follow a position."""
        ask = self._ask(key, position)
        pipeline = client.pipeline(transaction=False)
        pipeline.hmget(ask.keys.meta, "epoch", "total", "records")
        pipeline.xrevrange(ask.keys.log, f"{ask.at[0]}-{ask.at[1]}", "-", count=1)
        (epoch, total, records), before = await pipeline.execute()
        if epoch is None:
            return 0
        if ask.foreign or ask.epoch != epoch.decode() or not before:
            return int(records)
        return min(int(total) - int(before[0][1][b"c"]), int(records))

    def decode(self, frame: bytes) -> list[Record] | None:
        """The records of an entry; ``None``: it is damaged."""
        try:
            return decode_records(frame)
        except LogCorruptError:
            return None

    # --- looking ---------------------------------------------------------------------------------

    def _ask(self, key: NamespaceKey, position: str) -> _Ask:
        keys = Keys.of(self._place.prefix, key.digest)
        count = self._counts.get(key, _FIRST_COUNT)
        if position == START:
            return _Ask(key, keys, "", _ZERO, count)
        parts = _split(position)
        if parts is None:
            return _Ask(key, keys, "", _ZERO, count, foreign=True)
        return _Ask(key, keys, *parts, count)

    async def _look(self, client: Client, asks: Sequence[_Ask], max_bytes: int) -> list[Batch]:
        """Whatever is there now."""
        pipeline = client.pipeline(transaction=False)
        for ask in asks:
            pipeline.hmget(ask.keys.meta, "epoch", "last")
            pipeline.xrange(ask.keys.log, ask.after, "+", count=ask.count)
            pipeline.hmget(ask.keys.meta, "trimmed", "epoch")
        replies = await pipeline.execute()
        batches = []
        for place, ask in enumerate(asks):
            before, entries, later = replies[3 * place : 3 * place + 3]
            if later[1] != before[0]:
                later = (None, None)  # replaced meanwhile: the next read will find out
            batch = await self._batch(client, ask, before, entries, later[0], max_bytes)
            if batch is not None:
                batches.append(batch)
        return batches

    async def _batch(
        self,
        client: Client,
        ask: _Ask,
        state: Sequence[bytes | None],
        entries: Entries,
        trimmed_text: bytes | None,
        max_bytes: int,
    ) -> Batch | None:
        epoch = state[0].decode() if state[0] else ""
        last = id_of(state[1])
        if not epoch and not entries:
            known = ask.foreign or ask.epoch
            return Batch(ask.key, [], START, reset=True) if known else None
        if ask.foreign or (ask.epoch and (ask.epoch != epoch or ask.at > last)):
            return await self._from_the_start(client, ask, max_bytes)
        if not entries and ask.at >= last:
            return None
        trimmed = id_of(trimmed_text)
        missed = trimmed > ask.at and (not entries or id_of(entries[0][0]) > trimmed)
        found, taken = self._take(ask, entries, max_bytes)
        end = id_of(entries[taken - 1][0]) if taken else last
        if missed or (not entries and ask.at < last):
            first = id_of(entries[0][0]) if entries else last
            found = await self._lost_marks(client, ask, first, bool(entries)) + found
        more = taken < len(entries) or end < last
        damaged = sum(records is None for records in found)
        if damaged:
            self.damaged[ask.key] = self.damaged.get(ask.key, 0) + damaged
        return Batch(
            ask.key,
            [record for records in found if records is not None for record in records],
            position_of(epoch, f"{end[0]}-{end[1]}"),
            more=more,
            missed=missed,
            damaged=damaged,
        )

    async def _from_the_start(self, client: Client, ask: _Ask, max_bytes: int) -> Batch:
        """The position is none of this stream's."""
        fresh = _Ask(ask.key, ask.keys, "", _ZERO, ask.count)
        found = await self._look(client, [fresh], max_bytes)
        if not found:
            return Batch(ask.key, [], START, reset=True)
        batch = found[0]
        return Batch(
            batch.key,
            batch.records,
            batch.position,
            more=batch.more,
            reset=True,
            missed=batch.missed,
            damaged=batch.damaged,
        )

    def _take(
        self, ask: _Ask, entries: Entries, max_bytes: int
    ) -> tuple[list[list[Record] | None], int]:
        """Entries up to ``max_bytes``, decoded; and how many. Learns how many to ask for."""
        size = taken = 0
        for _, fields in entries:
            size += len(fields[b"d"])
            if taken and size > max_bytes:
                break
            taken += 1
        if taken < len(entries):
            self._counts[ask.key] = max(taken, 1)
        elif len(entries) == ask.count and size < max_bytes // 2:
            self._counts[ask.key] = min(2 * ask.count, _MOST_COUNT)
        return [self.decode(fields[b"d"]) for _, fields in entries[:taken]], taken

    async def _lost_marks(
        self, client: Client, ask: _Ask, first: Id, before_first: bool
    ) -> list[list[Record] | None]:
        """Purge marks that the budget removed from the stream before this reader saw them."""
        marks = await client.hgetall(ask.keys.marks)
        wanted = sorted(
            (id_of(entry), frame)
            for entry, frame in marks.items()
            if ask.at < id_of(entry) and (id_of(entry) < first or not before_first)
        )
        return [self.decode(frame) for _, frame in wanted]

    # --- waiting ---------------------------------------------------------------------------------

    async def _wait_in_cluster(self, client: Client, asks: Sequence[_Ask], most: float) -> None:
        """A connection per stream, because a read cannot span slots. Those that still wait when
        one is woken go on waiting for the next call."""
        if len(asks) > _MOST_WAITING:
            await asyncio.sleep(min(_POLL, most))
            return
        if client is not self._waiting_on:  # the one before was dropped
            for old in self._waiting.values():
                old.cancel()
            self._waiting, self._waiting_on = {}, client
        self._waiting = {k: t for k, t in self._waiting.items() if not t.done()}
        tasks = []
        for ask in asks:
            task = self._waiting.get(ask.key)
            if task is None:
                task = asyncio.create_task(_wait_alone(client, [ask], most))
                task.add_done_callback(_look_at_failure)
                self._waiting[ask.key] = task
            tasks.append(task)
        done, _ = await asyncio.wait(tasks, timeout=most, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


async def _wait_alone(client: Client, asks: Sequence[_Ask], most: float) -> None:
    """Return when one of the streams has something new, or after ``most`` seconds."""
    names = [ask.keys.log for ask in asks]
    ids = [f"{ask.at[0]}-{ask.at[1]}" for ask in asks]
    milliseconds = max(round(most * 1000), 1)
    await client.execute_command(
        "XREAD", "COUNT", 1, "BLOCK", milliseconds, "STREAMS", *names, *ids
    )


def _look_at_failure(task: asyncio.Task[Any]) -> None:
    """Whoever waits next meets the fault again; asyncio must not complain about this one."""
    if not task.cancelled():
        task.exception()


def first_time(reader: Reader, entries: Entries) -> float:
    """When the oldest record of some entries was said; 0.0: there is none."""
    return min(_times(reader, entries), default=0.0)


def last_time(reader: Reader, entries: Entries) -> float:
    """When the newest record of some entries was said; 0.0: there is none."""
    return max(_times(reader, entries), default=0.0)


def _times(reader: Reader, entries: Entries) -> list[float]:
    records = [reader.decode(fields[b"d"]) or [] for _, fields in entries]
    return [record.time for found in records for record in found]
