"""What every sequence log must do. An implementation's tests subclass :class:`LogContract` and say
how to open one; whatever is particular to it is tested beside."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from suffixspec_index.errors import InputError, LogClosedError, LogRefusedError, TokenError
from suffixspec_index.log import START, Record, RecordKind, SequenceLog
from suffixspec_index.namespaces import NamespaceKey
from tests.threads import ended

KEY = NamespaceKey("tenant", "model", "tokenizer")
OTHER = NamespaceKey("tenant", "model", "another tokenizer")
STRANGE = NamespaceKey("tenant/é\n", "a{b}:c*", "", "adapter \udc80")

OpenLog = Callable[..., SequenceLog]


def record(number: int, tokens: Any = (1, 2, 3), **changes: Any) -> Record:
    """A finished sequence of origin 7."""
    values: dict[str, Any] = {
        "kind": RecordKind.SEQUENCE,
        "origin": 7,
        "number": number,
        "sequence": number,
        "time": 1_000.25 + number,
        "tokens": np.asarray(tokens, np.int32),
    }
    return Record(**(values | changes))


def read_all(log: SequenceLog, key: NamespaceKey = KEY, position: str = START) -> list[Record]:
    """Everything after a position."""
    return [found for batch in log.records(key, position) for found in batch.records]


def numbers(log: SequenceLog, key: NamespaceKey = KEY, position: str = START) -> list[int]:
    """The numbers of all records after a position, marks left out."""
    return [r.number for r in read_all(log, key, position) if r.kind is not RecordKind.PURGE]


class LogContract:
    """``open_log`` opens the same place again and again within one test."""

    @pytest.fixture
    def open_log(self) -> Iterator[OpenLog] | OpenLog:
        raise NotImplementedError

    @pytest.fixture
    def log(self, open_log: OpenLog) -> Iterator[SequenceLog]:
        with open_log() as log:
            yield log

    # --- appending and reading -------------------------------------------------------------------

    def test_what_is_appended_is_read_back(self, log: SequenceLog) -> None:
        written = [
            record(1, np.arange(5_000) % 977),
            record(2, ()),
            record(3, [0, 2**31 - 2]),
            record(4, [5], kind=RecordKind.CHUNK, sequence=90, offset=12, final=False),
            record(9, [6, 7], kind=RecordKind.CHUNK, sequence=90, offset=13, time=1.000001),
            record(10, (), kind=RecordKind.DISCARD, sequence=91, origin=2**63 - 1),
        ]
        log.append(KEY, written[:3])
        log.append(KEY, written[3:])
        assert read_all(log) == written
        assert all(found.tokens.dtype == np.int32 for found in read_all(log))

    def test_reading_goes_on_from_any_position(self, log: SequenceLog) -> None:
        positions = [START, *(log.append(KEY, [record(number)]) for number in range(1, 6))]
        for skip, position in enumerate(positions):
            assert numbers(log, position=position) == list(range(skip + 1, 6))
            assert log.behind(KEY, position) == 5 - skip

    def test_an_empty_append_writes_nothing(self, log: SequenceLog) -> None:
        first = log.append(KEY, [record(1)])
        log.append(KEY, [])
        log.append(KEY, [record(2)])
        assert numbers(log, position=first) == [2]

    def test_reads_are_bounded_and_say_that_there_is_more(self, log: SequenceLog) -> None:
        rng = np.random.default_rng(5)
        for number in range(1, 21):
            log.append(KEY, [record(number, rng.integers(0, 50_000, 500))])
        batches = list(log.records(KEY, max_bytes=2_500))
        assert len(batches) > 3
        assert [batch.more for batch in batches] == [True] * (len(batches) - 1) + [False]
        assert [r.number for b in batches for r in b.records] == list(range(1, 21))
        assert batches[0].tokens == sum(len(r.tokens) for r in batches[0].records)

    def test_one_record_larger_than_the_bound_is_read(self, log: SequenceLog) -> None:
        log.append(KEY, [record(1, np.random.default_rng(1).integers(0, 50_000, 20_000))])
        (batch,) = log.read({KEY: START}, max_bytes=10)
        assert len(batch.records[0].tokens) == 20_000

    def test_nothing_to_read(self, log: SequenceLog) -> None:
        assert log.read({}) == []
        assert log.read({KEY: START}) == []
        position = log.append(KEY, [record(1)])
        assert log.read({KEY: position}) == []
        assert log.behind(OTHER, START) == 0

    def test_records_belong_to_the_caller(self, log: SequenceLog) -> None:
        mine = record(1, [1, 2, 3])
        log.append(KEY, [mine])
        mine.tokens[:] = 9
        read_all(log)[0].tokens[:] = 9
        assert read_all(log)[0].tokens.tolist() == [1, 2, 3]

    def test_wrong_records_are_refused_before_anything_is_written(self, log: SequenceLog) -> None:
        for wrong in (
            record(2, [-1]),
            record(2, [2**31 - 1]),
            record(2, np.zeros((1 << 20) + 1)),
            record(-1),
            record(2, origin=1 << 63),
            record(2, time=float("nan")),
        ):
            with pytest.raises((InputError, TokenError)):
                log.append(KEY, [record(1), wrong])
        assert read_all(log) == []

    # --- namespaces ------------------------------------------------------------------------------

    def test_namespaces_never_mix(self, log: SequenceLog) -> None:
        keys = [KEY, OTHER, STRANGE]
        for number, key in enumerate(keys, start=1):
            log.append(key, [record(number)])
        assert sorted(map(repr, log.namespaces())) == sorted(map(repr, keys))
        assert [numbers(log, key) for key in keys] == [[1], [2], [3]]
        batches = log.read(dict.fromkeys(keys, START))
        assert {batch.key: batch.records[0].number for batch in batches} == {
            KEY: 1,
            OTHER: 2,
            STRANGE: 3,
        }

    def test_statistics(self, log: SequenceLog) -> None:
        assert log.statistics(KEY).records == 0
        log.append(KEY, [record(1, range(100)), record(2, range(50))])
        log.append(KEY, [record(3, range(25))])
        found = log.statistics(KEY)
        assert found.records == 3
        assert found.tokens in (None, 175)
        assert found.bytes > 0
        assert found.damaged == 0

    def test_the_newest_tokens(self, log: SequenceLog) -> None:
        assert log.recent(KEY, 100) == START
        for number in range(1, 31):
            log.append(KEY, [record(number, range(20))])
        assert log.recent(KEY, 600) == START
        position = log.recent(KEY, 100)
        if position != START:  # a log need not know
            kept = numbers(log, position=position)
            assert kept == list(range(31 - len(kept), 31))
            assert 4 <= len(kept) <= 6
            assert numbers(log, position=log.recent(KEY, 0)) == []

    # --- waiting ---------------------------------------------------------------------------------

    def test_a_reader_waits_for_what_comes(self, log: SequenceLog, open_log: OpenLog) -> None:
        position = log.append(KEY, [record(1)])
        timer = threading.Timer(0.05, lambda: log.append(KEY, [record(2)]))
        with open_log(read_only=True) as reader:
            timer.start()
            began = time.monotonic()
            (batch,) = reader.read({OTHER: START, KEY: position}, wait=10.0)
            waited = time.monotonic() - began
        timer.join()
        assert batch.key == KEY
        assert [r.number for r in batch.records] == [2]
        assert waited < 5.0

    def test_a_reader_waits_for_a_namespace_that_is_yet_to_come(self, log: SequenceLog) -> None:
        timer = threading.Timer(0.05, lambda: log.append(OTHER, [record(1)]))
        timer.start()
        (batch,) = log.read({OTHER: START}, wait=10.0)
        timer.join()
        assert batch.key == OTHER

    def test_waiting_ends(self, log: SequenceLog) -> None:
        began = time.monotonic()
        assert log.read({KEY: START}, wait=0.1) == []
        assert 0.09 <= time.monotonic() - began < 5.0

    def test_closing_wakes_who_waits(self, log: SequenceLog) -> None:
        woken: list[object] = []

        def wait() -> None:
            try:
                woken.append(log.read({KEY: START}, wait=30.0))
            except LogClosedError as error:
                woken.append(error)

        thread = threading.Thread(daemon=True, target=wait)
        thread.start()
        time.sleep(0.05)
        log.close()
        ended([thread], 10.0)
        assert woken
        assert woken == [[]] or isinstance(woken[0], LogClosedError)

    # --- purging ---------------------------------------------------------------------------------

    def test_a_purge_removes_what_came_before_and_tells_readers(self, log: SequenceLog) -> None:
        between = log.append(KEY, [record(1)])
        log.append(KEY, [record(2)])
        after = log.purge(KEY, origin=7, number=3)
        log.append(KEY, [record(4)])
        assert numbers(log) == [4]
        for position in (START, between):
            found = read_all(log, position=position)
            assert [r.kind for r in found] == [RecordKind.PURGE, RecordKind.SEQUENCE]
            assert (found[0].number, found[0].before) == (3, float("inf"))
        assert numbers(log, position=after) == [4]

    def test_a_purge_by_age_removes_what_is_older(self, log: SequenceLog) -> None:
        log.append(KEY, [record(n, time=float(n)) for n in (1, 5, 2, 6)])
        start = log.append(KEY, [record(7, time=3.5)])
        log.append(KEY, [record(8, time=9.0)])
        log.purge(KEY, before=4.5, origin=7, number=9)
        assert numbers(log) == [5, 6, 8]
        found = read_all(log, position=start)
        assert [r.number for r in found] == [8, 9]
        assert found[-1].before == 4.5

    def test_purging_one_namespace_leaves_the_others(self, log: SequenceLog) -> None:
        log.append(KEY, [record(1)])
        log.append(OTHER, [record(2)])
        log.purge(KEY, origin=7, number=3)
        assert numbers(log) == []
        assert numbers(log, OTHER) == [2]

    def test_purging_an_unknown_namespace_leaves_a_mark(self, log: SequenceLog) -> None:
        log.purge(KEY, origin=7, number=1)
        assert [r.kind for r in read_all(log)] == [RecordKind.PURGE]

    def test_marks_do_not_pile_up(self, log: SequenceLog) -> None:
        for number in range(1, 6):
            log.append(KEY, [record(number)])
            log.purge(KEY, origin=7, number=10 + number)
        assert [r.number for r in read_all(log)] == [15]

    def test_a_waiting_reader_hears_of_a_purge(self, log: SequenceLog) -> None:
        position = log.append(KEY, [record(1)])
        timer = threading.Timer(0.05, lambda: log.purge(KEY, origin=7, number=2))
        timer.start()
        (batch,) = log.read({KEY: position}, wait=10.0)
        timer.join()
        assert [r.kind for r in batch.records] == [RecordKind.PURGE]

    # --- many at once; ends ----------------------------------------------------------------------

    def test_writers_and_readers_at_once(self, log: SequenceLog, open_log: OpenLog) -> None:
        """Each writer's records come in its order, none is lost, all readers see one order."""
        each = 60
        seen: dict[int, list[tuple[int, int]]] = {0: [], 1: []}

        def write(origin: int) -> None:
            for number in range(1, each + 1):
                log.append(KEY, [record(number, [origin, number], origin=origin)])

        def follow(reader: int) -> None:
            position, ends = START, time.monotonic() + 60.0
            with open_log(read_only=True) as mine:
                while len(seen[reader]) < 3 * each and time.monotonic() < ends:
                    for batch in mine.read({KEY: position}, wait=0.5, max_bytes=500):
                        position = batch.position
                        seen[reader] += [(r.origin, r.number) for r in batch.records]

        threads = [
            threading.Thread(daemon=True, target=write, args=(origin,)) for origin in (1, 2, 3)
        ]
        threads += [threading.Thread(daemon=True, target=follow, args=(reader,)) for reader in seen]
        for thread in threads:
            thread.start()
        ended(threads, 90.0)
        assert seen[0] == seen[1]
        assert len(seen[0]) == 3 * each
        for origin in (1, 2, 3):
            assert [n for o, n in seen[0] if o == origin] == list(range(1, each + 1))

    def test_a_position_of_another_log_starts_over(self, log: SequenceLog) -> None:
        log.append(KEY, [record(1)])
        with type(self).a_foreign_log() as foreign:
            position = foreign.append(KEY, [record(n) for n in range(1, 30)])
        (batch,) = log.read({KEY: position})
        assert batch.reset
        assert [r.number for r in batch.records] == [1]

    def test_read_only(self, log: SequenceLog, open_log: OpenLog) -> None:
        log.append(KEY, [record(1)])
        with open_log(read_only=True) as reader:
            assert numbers(reader) == [1]
            with pytest.raises(LogRefusedError):
                reader.append(KEY, [record(2)])
            with pytest.raises(LogRefusedError):
                reader.purge(KEY, origin=7, number=2)

    def test_closed(self, log: SequenceLog) -> None:
        log.check()
        log.close()
        log.close()
        for use in (
            lambda: log.append(KEY, [record(1)]),
            lambda: log.read({KEY: START}),
            lambda: log.namespaces(),
            lambda: log.purge(KEY, origin=7, number=2),
            lambda: log.statistics(KEY),
            lambda: log.check(),
        ):
            with pytest.raises(LogClosedError):
                use()

    @staticmethod
    def a_foreign_log() -> SequenceLog:
        """Another log, whose positions mean nothing here."""
        from suffixspec_index.log import open_log

        return open_log("memory:")
