"""Sharing between replicas: what is said in one is drafted in all, and all end up equal."""

from __future__ import annotations

import random
import threading
import time
import uuid
from typing import Any

import numpy as np
import pytest

from suffixspec_index.errors import ConfigError, InputError
from suffixspec_index.index import SuffixIndex
from suffixspec_index.log import SequenceLog, open_log
from suffixspec_index.namespaces import NamespaceKey
from suffixspec_index.proposers.null import NullProposer
from suffixspec_index.sharing import SharingConfig
from tests.index.log.contract import read_all, record
from tests.index.sharing.replicas import KEY, LONG, Replica, assert_equal, closing, settle
from tests.threads import ended


def new_log(name: str | None = None) -> SequenceLog:
    return open_log(f"memory:{name or uuid.uuid4().hex}")


def new_replicas(count: int, **changes: Any) -> list[Replica]:
    name = uuid.uuid4().hex
    return [Replica(new_log(name), **changes) for _ in range(count)]


def test_what_one_finished_another_drafts() -> None:
    one, other = replicas = new_replicas(2)
    with closing(replicas):
        one.say("a", [5, 6, 7, 8, 9])
        settle(replicas)
        request = other.begin("b", [1, 5, 6])
        assert other.proposer.propose(request).token_ids.tolist()[:2] == [7, 8]
        assert_equal(replicas)


def test_a_long_generation_is_shared_while_it_runs() -> None:
    one, other = replicas = new_replicas(2)
    said = list(range(100, 140))
    with closing(replicas):
        request = one.begin("a")
        for token in said:
            one.proposer.advance(request, [token])
        settle(replicas)
        (live,) = other.sequences()
        assert live == tuple(said[: len(live)])
        assert len(live) >= 20
        assert other.index.world.count([105, 106]) == 1
        one.proposer.finish(request)
        settle(replicas)
        assert other.sequences() == {tuple(said): 1}
        assert_equal(replicas)


def test_own_sequences_are_not_applied_twice() -> None:
    one, other = replicas = new_replicas(2)
    with closing(replicas):
        for _ in range(3):
            one.say("a", [1, 2, 3])
        other.say("a", [1, 2, 3])
        settle(replicas)
        assert one.index.world.count([1, 2]) == other.index.world.count([1, 2]) == 4
        (status,) = one.sharing.status().namespaces
        assert (status.sent, status.applied, status.duplicates) == (3, 1, 0)


@pytest.mark.parametrize("length", [3, 40])
def test_what_is_not_kept_is_forgotten_everywhere(length: int) -> None:
    one, other = replicas = new_replicas(2)
    with closing(replicas):
        one.say("a", range(50, 50 + length), keep=False)
        one.say("b", [1, 2])
        settle(replicas)
        assert other.sequences() == {(1, 2): 1}
        assert_equal(replicas)


def test_prompts_and_ingested_sequences_are_shared_where_they_are_remembered() -> None:
    one, other = replicas = new_replicas(2, index_prompts=True)
    with closing(replicas):
        one.begin("a", [4, 5, 6])
        one.index.ingest([7, 8])
        settle(replicas)
        assert other.sequences() == {(4, 5, 6): 1, (7, 8): 1}


def test_a_newcomer_is_warm_after_reading_the_log() -> None:
    name = uuid.uuid4().hex
    one = Replica(new_log(name))
    with closing([one]):
        for number in range(50):
            one.say("a", [number, number + 1, number + 2])
        settle([one])
        late = Replica(new_log(name))
        with closing([late]):
            settle([late])
            status = late.sharing.status()
            assert status.caught_up
            assert status.progress == 1.0
            assert status.namespaces[0].applied == 50
            assert_equal([one, late])


def test_a_restarted_replica_reads_its_own_past() -> None:
    name = uuid.uuid4().hex
    keep = new_log(name)  # the log outlives its users
    one = Replica(new_log(name))
    one.say("a", [1, 2, 3])
    assert one.sharing.close()
    again = Replica(new_log(name))
    with closing([again]), keep:
        settle([again])
        assert again.sequences() == {(1, 2, 3): 1}


def test_a_purge_reaches_every_replica() -> None:
    one, other = replicas = new_replicas(2)
    with closing(replicas):
        one.say("a", [1, 2, 3])
        other.say("b", [4, 5, 6])
        settle(replicas)
        other.index.purge()
        settle(replicas)
        assert one.sequences() == other.sequences() == {}
        one.say("a", [7, 8])
        settle(replicas)
        assert other.sequences() == {(7, 8): 1}
        assert_equal(replicas)


def test_a_purge_by_age_reaches_every_replica() -> None:
    one, other = replicas = new_replicas(2)
    with closing(replicas):
        one.say("a", [1, 2, 3])
        settle(replicas)
        time.sleep(0.01)
        limit = time.time()
        one.say("a", [4, 5])
        settle(replicas)
        other.index.purge(before=limit)
        settle(replicas)
        assert one.sequences() == other.sequences() == {(4, 5): 1}
        assert_equal(replicas)


def test_retention_forgets_by_itself() -> None:
    name = uuid.uuid4().hex
    config = SharingConfig(retention=1.0)
    replicas = [Replica(new_log(name), config) for _ in range(2)]
    with closing(replicas):
        replicas[0].say("a", [1, 2, 3])
        settle(replicas)
        ends = time.monotonic() + LONG
        while any(r.sequences() for r in replicas) and time.monotonic() < ends:
            time.sleep(0.02)
        assert [r.sequences() for r in replicas] == [{}, {}]
        settle(replicas)
        assert replicas[0].sharing.log.statistics(KEY).tokens == 0


def test_namespaces_with_other_tokenizers_share_nothing() -> None:
    name = uuid.uuid4().hex
    one = Replica(new_log(name))
    other = Replica(new_log(name), key=NamespaceKey("tenant", "model", "another"))
    with closing([one, other]):
        one.say("a", [1, 2, 3])
        settle([one, other])
        assert other.sequences() == {}


def test_attach_and_detach() -> None:
    replica = Replica(new_log())
    with closing([replica]):
        replica.attach()  # the same again: fine
        with pytest.raises(InputError):
            replica.sharing.attach(KEY, SuffixIndex(), replica.proposer)
        replica.sharing.detach(KEY)
        replica.sharing.detach(KEY)
        replica.say("a", [1, 2])
        assert replica.sharing.log.statistics(KEY).records == 0
        replica.attach()
        replica.say("a", [1, 2])
        settle([replica])
        assert replica.sharing.log.statistics(KEY).records == 1


def test_methods_without_a_global_tree_share_nothing() -> None:
    replica = Replica(new_log(), max_cached_requests=0)
    with closing([replica]):
        assert replica.index.spoken.listener is None
        null = NullProposer()
        assert replica.sharing.attach(KEY, None, null) is null
        assert replica.sharing.status().namespaces == ()


def test_wrong_settings() -> None:
    for changes in ({"spool_bytes": 1}, {"linger": -1}, {"retention": 0.0}, {"linger": True}):
        with pytest.raises(ConfigError):
            SharingConfig(**changes)


@pytest.mark.parametrize("seed", range(6))
def test_replicas_are_equal_after_any_history(seed: int) -> None:
    """Three replicas say, stop, take back and purge at random, each in its own thread."""
    replicas = new_replicas(3)
    name = replicas[0].sharing.log.url.removeprefix("memory:")

    def live(replica: Replica, rng: random.Random) -> None:
        for turn in range(60):
            request = replica.begin(f"s{rng.randrange(3)}")
            for _ in range(rng.randrange(6)):
                said = [rng.randrange(4) for _ in range(rng.randrange(1, 7))]
                replica.proposer.advance(request, said)
            if rng.random() < 0.08:
                replica.index.purge()
            if rng.random() < 0.05:
                replica.index.purge(before=time.time() - 0.02 * rng.random())
            replica.proposer.finish(request, keep=rng.random() < 0.8)
            if turn % 7 == 0:
                time.sleep(0.004 * rng.random())

    with closing(replicas):
        threads = [
            threading.Thread(
                daemon=True, target=live, args=(replica, random.Random(10 * seed + number))
            )
            for number, replica in enumerate(replicas)
        ]
        for thread in threads:
            thread.start()
        ended(threads)
        settle(replicas)
        late = Replica(new_log(name))
        with closing([late]):
            settle([*replicas, late])
            assert_equal([*replicas, late])


def test_drafts_go_on_while_a_long_log_is_read() -> None:
    name = uuid.uuid4().hex
    rng = np.random.default_rng(0)
    with new_log(name) as log:
        one = Replica(new_log(name), depth=64)
        with closing([one]):
            for _ in range(200):
                one.index.ingest(rng.integers(0, 1000, 500))
            settle([one])
        late = Replica(log, depth=64, attach=False)
        with closing([late]):
            request = late.begin("a", [1, 2, 3, 1, 2])
            late.attach()
            steps = 0
            while not late.sharing.status().caught_up:
                assert late.proposer.propose(request).token_ids.tolist()[:1] == [3]
                steps += 1
            settle([late])
            assert steps > 0
            assert late.index.world.statistics().tokens == 100_000


def test_a_small_index_starts_with_the_newest_part_of_a_long_log() -> None:
    name = uuid.uuid4().hex
    with new_log(name) as log:
        for number in range(1, 201):
            said = np.arange(1000) + number
            log.append(KEY, [record(number, said, time=float(number))])
        small = Replica(new_log(name), max_bytes=1 << 20)
        with closing([small]):
            settle([small])
            (status,) = small.sharing.status().namespaces
            assert 10 < status.applied < 40
            assert small.index.world.count([1198, 1199]) >= 1
            assert small.index.nbytes <= 1 << 20


def test_a_full_index_forgets_the_oldest_while_requests_go_on() -> None:
    name = uuid.uuid4().hex
    rng = np.random.default_rng(1)
    with new_log(name) as log:
        replica = Replica(new_log(name), max_bytes=1 << 20, depth=16)
        with closing([replica]):
            request = replica.begin("a", [1, 2, 3, 1, 2])
            for number in range(400):
                log.append(KEY, [record(number, rng.integers(0, 5000, 300))])
                if number % 7 == 0:
                    replica.say("b", rng.integers(0, 5000, 40))
                assert replica.proposer.propose(request).token_ids.tolist()[:1] == [3]
            settle([replica])
            replica.index.check_integrity()
            statistics = replica.index.statistics()
            assert statistics.evicted_sequences > 100
            assert statistics.bytes <= 1 << 20
            newest = [r for r in read_all(log) if r.origin == 7][-1].tokens
            assert replica.index.world.count(newest[:10]) == 1
