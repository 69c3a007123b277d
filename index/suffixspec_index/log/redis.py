"""A log in Redis Streams: what replicas on several machines share.

One stream per namespace; an append is one entry (a long one several), written together or not at
all. Every reader keeps its own cursor, there are no consumer groups. Needs Redis 6.2 or newer (or
a server that speaks like one: Valkey, a managed service), alone or as a cluster.

How durable an acknowledged record is depends on Redis: with ``appendfsync everysec`` up to a second
can be lost when it is killed, and a failover loses what its replica did not have (``replicas=1``
waits for one). Then writers notice, readers start over, and each replica sends its own newest
records again (see :mod:`suffixspec_index.sharing.history`).

Positions are ``EPOCH.ID`` with the id of a stream entry; see :mod:`.redis_scripts`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from suffixspec_index.errors import ConfigError, LogRefusedError, LogUnavailableError
from suffixspec_index.log.base import (
    FOREVER,
    START,
    Batch,
    LogStatistics,
    Record,
    SequenceLog,
    is_obsolete,
    purge_mark,
)
from suffixspec_index.log.codec import as_compression, decode_records, encode_records
from suffixspec_index.log.redis_client import Client, RedisClient, Script
from suffixspec_index.log.redis_reading import Reader, first_time, last_time, position_of
from suffixspec_index.log.redis_scripts import APPEND, REWRITE, Keys, register_key
from suffixspec_index.log.redis_url import RedisPlace, read_place
from suffixspec_index.namespaces import NamespaceKey

_FRAME_TOKENS = 1 << 16  # an append of more becomes several entries
_SCAN = 256  # entries looked at in one go when purging by age


def open_redis_log(url: str, *, read_only: bool = False, **options: object) -> RedisLog:
    """``redis://user:password@host:port/db``, ``rediss://...``, ``redis+cluster://...``.

    Nothing is connected yet, so a Redis that is down stops nobody from starting. Settings are the
    attributes of :class:`~.redis_url.RedisPlace`: ``max_bytes`` (256 MiB), ``max_age``, ``prefix``,
    ``compression``, ``timeout``, ``connect_timeout``, ``replicas``, ``password_file``, ``ssl_...``.

    Raises:
        ConfigError: a part of the URL or a setting is wrong.
        MissingDependencyError: the package ``redis`` is needed, or ``zstandard``.
    """
    return RedisLog(read_place(url, options), read_only=read_only)


class RedisLog(SequenceLog):
    """See the module docstring.

    Args:
        place: where it is and how it is used.
        read_only: refuse to write.

    Raises:
        ConfigError, MissingDependencyError: a setting cannot be used.
    """

    scheme: ClassVar[str] = "redis"

    def __init__(self, place: RedisPlace, *, read_only: bool = False) -> None:
        if place.cluster and place.replicas:
            raise ConfigError("replicas: cannot be waited for in a cluster; leave it out")
        self.url = place.url
        self._place = place
        self._read_only = read_only
        self._compression = as_compression(place.compression)
        self._client = RedisClient(place)
        self._reader = Reader(place)
        self._append = Script(APPEND)
        self._rewrite = Script(REWRITE)
        self._known: dict[NamespaceKey, tuple[str, str]] = {}  # epoch and id of our last entry

    # --- the contract ----------------------------------------------------------------------------

    def append(self, key: NamespaceKey, records: Sequence[Record]) -> str:
        """One round trip, and one more for the first append to a namespace."""
        self._check_writable()
        frames = [self._frame(part) for part in _parts(records)]
        if not frames:
            return self._client.run(lambda client: self._end(client, key))
        return self._client.run(lambda client: self._write(client, key, frames))

    def read(
        self, cursors: Mapping[NamespaceKey, str], *, max_bytes: int = 1 << 20, wait: float = 0.0
    ) -> list[Batch]:
        """One round trip for all namespaces; waiting is done by Redis (``XREAD BLOCK``)."""
        self._client.check_open()
        if not cursors:
            return []
        wanted = dict(cursors)

        async def look(client: Client) -> list[Batch]:
            cluster = self._client.is_cluster  # known once it is connected
            return await self._reader.read(client, wanted, max_bytes, wait, cluster)

        return self._client.run(look)

    def namespaces(self) -> list[NamespaceKey]:
        """Those of the register that have a stream. Two round trips."""
        return self._client.run(self._namespaces)

    def purge(self, key: NamespaceKey, *, before: float = FOREVER, origin: int, number: int) -> str:
        """At once where everything goes; by age, entries are looked through one after another, and
        where one holds both old and new records the stream is written anew inside Redis (which
        takes about 1 µs per entry, and its memory twice for that moment)."""
        self._check_writable()
        mark = purge_mark(origin=origin, number=number, before=before)
        frame = self._frame([mark])
        reach = "all" if before == FOREVER else "some"
        position = self._client.run(lambda client: self._write(client, key, [frame], reach))
        if before != FOREVER:
            epoch, _, upto = position.partition(".")
            self._client.run(lambda client: self._remove_older(client, key, epoch, upto, before))
        return position

    def statistics(self, key: NamespaceKey) -> LogStatistics:
        """Exact counts; bytes are those of the compressed records, without what Redis adds."""
        return self._client.run(lambda client: self._statistics(client, key))

    def behind(self, key: NamespaceKey, position: str) -> int:
        """Exact, but for records that a purge took from between."""
        return self._client.run(lambda client: self._reader.behind(client, key, position))

    def check(self) -> None:
        """Writes a key that goes by itself, so that a full or read-only Redis is noticed."""
        name = f"{self._place.prefix}:check"
        if self._read_only:
            self._client.run(lambda client: client.execute_command("EXISTS", name))
        else:
            self._client.run(lambda client: client.execute_command("SET", name, "1", "PX", 60_000))

    def close(self) -> None:
        """End the connections; who waits gets LogClosedError."""
        self._client.close()

    # --- writing ---------------------------------------------------------------------------------

    def _check_writable(self) -> None:
        self._client.check_open()
        if self._read_only:
            raise LogRefusedError(f"{self.url}: is opened read-only; open it for writing")

    def _frame(self, records: Sequence[Record]) -> tuple[bytes, int, int]:
        tokens = sum(len(record.tokens) for record in records)
        return encode_records(records, self._compression), tokens, len(records)

    async def _write(
        self,
        client: Client,
        key: NamespaceKey,
        frames: Sequence[tuple[bytes, int, int]],
        reach: str = "",
    ) -> str:
        place, keys = self._place, self._keys(key)
        epoch, known = self._known.get(key, ("", ""))
        if not epoch:
            await self._register(client, key)
        arguments: list[Any] = [secrets.token_hex(8), epoch, known, place.max_bytes or 0]
        arguments += [round((place.max_age or 0) * 1000), reach]
        for frame in frames:
            arguments += frame
        reply = await self._append(client, (keys.log, keys.meta, keys.marks), arguments)
        now, last = (part.decode() for part in reply)
        if epoch not in ("", now):  # perhaps the register was lost with the stream
            await self._register(client, key)
        self._known[key] = (now, last)
        await self._wait_for_replicas(client)
        return position_of(now, last)

    async def _wait_for_replicas(self, client: Client) -> None:
        wanted = self._place.replicas
        if not wanted:
            return
        most = round(self._place.timeout * 500)
        # another connection than the script's would wait for nothing: write once more on this one
        name = f"{self._place.prefix}:check"
        pipeline = client.pipeline(transaction=False)
        pipeline.execute_command("SET", name, "1", "PX", 60_000)
        pipeline.execute_command("WAIT", wanted, most)
        _, found = await pipeline.execute()
        if found < wanted:
            raise LogUnavailableError(
                f"{self.url}: {found} of {wanted} replicas have the records so far"
            )

    async def _register(self, client: Client, key: NamespaceKey) -> None:
        fields = [key.tenant, key.model, key.tokenizer, key.adapter]
        name = register_key(self._place.prefix)
        await client.execute_command("HSET", name, key.digest, json.dumps(fields))

    async def _remove_older(
        self, client: Client, key: NamespaceKey, epoch: str, upto: str, before: float
    ) -> None:
        """Take out of the entries before ``upto`` what a mark makes obsolete."""
        keys = self._keys(key)
        changes: list[Any] = []
        start = "-"
        while True:
            command = ("XRANGE", keys.log, start, f"({upto}", "COUNT", _SCAN)
            entries = await client.execute_command(*command)
            for entry, fields in entries:
                changes += self._change(entry, fields, before)
            if len(entries) < _SCAN:
                break
            start = f"({entries[-1][0].decode()}"
        names = (keys.log, keys.meta, keys.marks, keys.scratch)
        if changes:
            await self._rewrite(client, names, [epoch, *changes])
        await self._drop_marks(client, keys, upto, before)

    def _change(self, entry: bytes, fields: Mapping[bytes, bytes], before: float) -> list[Any]:
        """Arguments for the script that make an entry hold only what is not obsolete."""
        records = self._reader.decode(fields[b"d"])
        if records is None:
            return []  # damaged: nobody can tell how old it is
        kept = [record for record in records if not is_obsolete(record, before)]
        if len(kept) == len(records):
            return []
        return [entry, *(self._frame(kept) if kept else (b"", 0, 0))]

    async def _drop_marks(self, client: Client, keys: Keys, upto: str, before: float) -> None:
        """Forget the marks that the one with id ``upto`` makes obsolete."""
        marks = await client.hgetall(keys.marks)
        gone = [
            entry
            for entry, frame in marks.items()
            if entry.decode() != upto and all(is_obsolete(m, before) for m in decode_records(frame))
        ]
        if gone:
            await client.hdel(keys.marks, *gone)

    # --- looking ---------------------------------------------------------------------------------

    def _keys(self, key: NamespaceKey) -> Keys:
        return Keys.of(self._place.prefix, key.digest)

    async def _end(self, client: Client, key: NamespaceKey) -> str:
        epoch, last = await client.hmget(self._keys(key).meta, "epoch", "last")
        return position_of(epoch.decode(), last.decode()) if epoch else START

    async def _namespaces(self, client: Client) -> list[NamespaceKey]:
        register = await client.hgetall(register_key(self._place.prefix))
        keys = [NamespaceKey(*json.loads(fields)) for fields in register.values()]
        pipeline = client.pipeline(transaction=False)
        for key in keys:
            pipeline.xlen(self._keys(key).log)
        counts = await pipeline.execute() if keys else []
        return [key for key, count in zip(keys, counts, strict=True) if count]

    async def _statistics(self, client: Client, key: NamespaceKey) -> LogStatistics:
        keys = self._keys(key)
        pipeline = client.pipeline(transaction=False)
        pipeline.hmget(keys.meta, "records", "bytes", "tokens", "ntrimmed")
        pipeline.xrange(keys.log, "-", "+", count=1)
        pipeline.xrevrange(keys.log, "+", "-", count=1)
        counts, oldest, newest = await pipeline.execute()
        records, size, tokens, trimmed = (int(count or 0) for count in counts)
        if not oldest:
            records = size = tokens = 0
        return LogStatistics(
            records=records,
            bytes=size,
            tokens=tokens,
            first_time=first_time(self._reader, oldest),
            last_time=last_time(self._reader, newest),
            damaged=self._reader.damaged.get(key, 0),
            trimmed=trimmed,
        )


def _parts(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    """Cut an append into entries of at most about :data:`_FRAME_TOKENS` tokens."""
    start = tokens = 0
    for at, record in enumerate(records):
        if at > start and tokens + len(record.tokens) > _FRAME_TOKENS:
            yield records[start:at]
            start, tokens = at, 0
        tokens += len(record.tokens)
    if start < len(records):
        yield records[start:]
