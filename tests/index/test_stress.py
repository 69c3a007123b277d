"""Threads: many readers and one writer in a namespace, and namespaces side by side."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import numpy as np

from suffixspec_index.index import SuffixIndex
from suffixspec_index.index_config import IndexConfig
from suffixspec_index.namespaces import NamespaceKey, Namespaces
from tests.threads import ended

SECONDS = 2.5


def run_all(
    workers: list[Callable[[threading.Event], None]],
    counts: list[int] | None = None,
    seconds: float = SECONDS,
) -> None:
    """Run workers until the time is up, and until every count is above 20 (a minute at most: a busy
    machine may leave a thread waiting, a starved one never gets there). The first exception of
    any is raised."""
    stop, failures = threading.Event(), []

    def guarded(worker: Callable[[threading.Event], None]) -> None:
        try:
            worker(stop)
        except BaseException as error:
            failures.append(error)
            stop.set()

    threads = [threading.Thread(daemon=True, target=guarded, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 60
    stop.wait(seconds)
    while min(counts or [21]) <= 20 and time.monotonic() < deadline and not stop.is_set():
        stop.wait(0.1)
    stop.set()
    ended(threads, 60)
    if failures:
        raise failures[0]


def new_index() -> SuffixIndex:
    return SuffixIndex(
        IndexConfig(
            depth=16,
            session_depth=8,
            live_chunk=16,
            max_bytes=2 << 20,
            max_cached_requests=60,
            tree=True,
            min_token_prob=0.02,
        ),
        vocab_size=40,
        forbidden=[7],
    )


def serve(index: SuffixIndex, seed: int, counts: list[int]) -> Callable[[threading.Event], None]:
    """A caller with requests of its own: begins, proposes, advances and finishes them."""

    def work(stop: threading.Event) -> None:
        rng = random.Random(seed)
        phrases = [[rng.randrange(40) for _ in range(30)] for _ in range(5)]
        turn = 0
        while not stop.is_set():
            session = f"{seed}-{turn % 3}"
            context = rng.choice(phrases)[:20]
            handle = index.begin(session, context)
            for _ in range(rng.randrange(1, 25)):
                draft = index.propose(handle)
                draft.check_integrity()
                assert not {7} & set(draft.token_ids.tolist())
                gained = rng.choice(phrases)[: rng.randrange(1, 6)]
                index.advance_batch(
                    [handle], np.array(gained, np.int32), np.array([0, len(gained)], np.int64)
                )
                context = context + gained
                counts[seed] += 1
            assert index.context(handle).tolist() == context
            index.finish(handle, keep=rng.random() < 0.8)
            if rng.random() < 0.1:
                index.end_session(session)
            turn += 1

    return work


def test_many_callers_in_one_namespace() -> None:
    index, counts = new_index(), [0] * 6

    def disturb(stop: threading.Event) -> None:
        rng = random.Random(99)
        while not stop.is_set():
            index.ingest([rng.randrange(40) for _ in range(rng.randrange(300))])
            if rng.random() < 0.02:
                index.purge()
            if rng.random() < 0.1:
                index.check_integrity()
            time.sleep(0.001)

    run_all([serve(index, seed, counts) for seed in range(6)] + [disturb], counts)
    index.check_integrity()
    assert min(counts) > 20
    assert index.statistics().requests == 0


def test_many_readers_and_one_writer() -> None:
    """Readers only propose, each for its own request; what the writer does may not disturb them."""
    index = new_index()
    texts = [[(number * 5 + i) % 40 for i in range(60)] for number in range(6)]
    handles = [index.begin(f"reader {n}", text) for n, text in enumerate(texts)]
    proposals = [0] * len(handles)

    def read(number: int) -> Callable[[threading.Event], None]:
        def work(stop: threading.Event) -> None:
            while not stop.is_set():
                draft = index.propose_batch([handles[number]])[0]
                draft.check_integrity()
                assert index.context(handles[number]).tolist() == texts[number]
                proposals[number] += 1

        return work

    def write(stop: threading.Event) -> None:
        rng = random.Random(1)
        while not stop.is_set():
            start = rng.randrange(40)
            index.ingest([(start + i) % 40 for i in range(rng.randrange(1, 200))])
            if rng.random() < 0.2:
                index.finish(index.begin("writer", [start] * 30))

    run_all([read(number) for number in range(len(handles))] + [write], proposals)
    index.check_integrity()
    assert min(proposals) > 20


def test_two_namespaces_in_parallel() -> None:
    """Each gives exactly what it would give alone."""
    spaces = Namespaces(
        IndexConfig(depth=12, session_depth=8, live_chunk=8, max_cached_requests=20)
    )

    def transcript(index: SuffixIndex, seed: int) -> list[list[float]]:
        rng, found = random.Random(seed), []
        for number in range(120):
            handle = index.begin(f"s{number % 4}", [rng.randrange(8) for _ in range(20)])
            for _ in range(10):
                draft = index.propose(handle)
                found.append([*draft.token_ids.tolist(), *draft.probs.tolist()])
                tokens = np.array([rng.randrange(8) for _ in range(3)], np.int32)
                index.advance_batch([handle], tokens, np.array([0, 3], np.int64))
            index.finish(handle)
        return found

    alone = [transcript(SuffixIndex(spaces.config), seed) for seed in (1, 2)]
    together: dict[int, list[list[float]]] = {}

    def work(seed: int) -> Callable[[threading.Event], None]:
        index = spaces.get_or_create(NamespaceKey(f"tenant {seed}", "model", "tok"))

        def run(stop: threading.Event) -> None:
            together[seed] = transcript(index, seed)
            if len(together) == 2:
                stop.set()

        return run

    run_all([work(1), work(2)], seconds=30)
    assert [together[1], together[2]] == alone
