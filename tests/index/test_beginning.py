"""A long prompt enters its session's memory beside the lock: others go on, drafts are the same."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from suffixspec_index import beginning
from suffixspec_index.errors import CapacityError, UnknownRequestError
from suffixspec_index.index import SuffixIndex
from suffixspec_index.index_config import IndexConfig
from suffixspec_index.sessions import SessionMemory
from tests.index.test_stress import run_all, serve

CONFIG = IndexConfig(depth=16, session_depth=8, live_chunk=8, min_token_prob=0.0)


def tokens(n: int, seed: int = 0, alphabet: int = 40) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, alphabet, n).astype(np.int32)


def at_once(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(beginning, "_AT_ONCE", most)


@dataclass
class Gate:
    """Holds whoever inserts a prompt beside the lock; throws the fault there, if any, halfway."""

    index: SuffixIndex
    threads: ThreadPoolExecutor
    arrived: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    opened: threading.Event = field(default_factory=threading.Event)
    fault: BaseException | None = None

    def begin(self, session_id: str, prompt: Any) -> Future[int]:
        """Let a thread begin; returns when the prompt is being inserted."""
        begun = self.threads.submit(self.index.begin, session_id, prompt)
        assert self.arrived.acquire(timeout=20)
        return begun

    def hold(self, memory: SessionMemory, set_prompt: Callable[[Any], int], prompt: Any) -> int:
        if memory.forest is self.index._forest:
            return set_prompt(prompt)
        known = set_prompt(prompt if self.fault is None else prompt[: len(prompt) // 2])
        self.arrived.release()
        assert self.opened.wait(20)
        if self.fault is not None:
            raise self.fault
        return known


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    original = SessionMemory.set_prompt
    with ThreadPoolExecutor(4) as threads:
        made = Gate(SuffixIndex(CONFIG, vocab_size=40), threads)
        monkeypatch.setattr(
            SessionMemory,
            "set_prompt",
            lambda self, prompt: made.hold(self, lambda p: original(self, p), prompt),
        )
        try:
            yield made
        finally:
            made.opened.set()


def drafts(index: SuffixIndex, handle: int, seed: int = 5, steps: int = 40) -> list[list[float]]:
    """What is drafted while a request says what it said before, and other things."""
    rng, found = random.Random(seed), []
    for _ in range(steps):
        context = index.context(handle)
        draft = index.propose(handle)
        found.append([*draft.token_ids.tolist(), *draft.probs.tolist()])
        at = rng.randrange(max(len(context) - 4, 1))
        index.advance(handle, context[at : at + 3].copy())
    return found


@pytest.mark.parametrize("begun", [False, True], ids=["new", "next turn"])
def test_others_go_on_while_a_prompt_is_inserted(gate: Gate, begun: bool) -> None:
    index, prompt = gate.index, tokens(3000)
    other = index.begin("other", tokens(50, 1))
    before: list[int] | None = None
    if begun:
        index.finish(index.begin("s", prompt[:300]))
        before = prompt[:300].tolist()
    begin = gate.begin("s", prompt)

    def go_on() -> None:
        for _ in range(20):
            index.propose_batch([other])
            index.advance(other, tokens(9, 2))
            index.check_integrity()
        index.finish(index.begin("third", tokens(20, 3)))
        held = index.session_context("s")
        assert (None if held is None else held.tolist()) == before

    gate.threads.submit(go_on).result(20)
    assert not begin.done()
    gate.opened.set()
    handle = begin.result(20)
    assert np.array_equal(index.context(handle), prompt)
    index.check_integrity()


@pytest.mark.parametrize("seed", range(12))
def test_drafts_are_those_of_a_prompt_inserted_under_the_lock(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every kind of next turn, aside and at once: the same drafts, the same trees."""

    def history(most: int) -> tuple[list[list[float]], list[int], int]:
        at_once(monkeypatch, most)
        rng = random.Random(seed)
        index = SuffixIndex(
            IndexConfig(
                depth=12,
                session_depth=8,
                live_chunk=8,
                min_token_prob=0.0,
                index_prompts=seed % 2 == 1,
            )
        )
        context, found = tokens(200, seed, 6), []
        for turn in range(8):
            handle = index.begin("s", context)
            branch = index.begin("s", context[: len(context) // 2])
            found += drafts(index, handle, turn, 10) + drafts(index, branch, turn, 5)
            said = index.context(handle)
            index.finish(handle, keep=rng.random() < 0.7)
            index.finish(branch)
            at = rng.choice([len(said), len(said) // 2, 10])
            context = np.concatenate([said[:at], tokens(rng.choice([0, 30, 900]), turn, 6)])
            index.check_integrity()
        session = index._sessions.get("s")
        assert session is not None
        head = index._forest.table[session.row]
        return found, head[9:].tolist(), index._forest.nbytes_total

    aside = history(-1)
    assert aside == history(1 << 30)


def test_two_begin_the_same_session_at_once(gate: Gate) -> None:
    index, prompt = gate.index, tokens(2000)
    first = gate.begin("s", prompt)
    second = gate.begin("s", prompt[:1500])
    index.check_integrity()
    gate.opened.set()
    handles = first.result(20), second.result(20)
    for handle, length in zip(handles, (2000, 1500), strict=True):
        assert np.array_equal(index.context(handle), prompt[:length])
    index.check_integrity()
    index.finish(handles[1])
    index.finish(handles[0])
    held = index.session_context("s")
    assert held is not None
    assert len(held) == 2000
    assert index.statistics().sessions == 1
    index.check_integrity()


def test_prompts_enter_the_global_tree_once(gate: Gate) -> None:
    gate.index = index = SuffixIndex(IndexConfig(depth=16, index_prompts=True), vocab_size=40)
    prompt = tokens(2000)
    begun = [gate.begin("s", prompt) for _ in range(3)]
    gate.opened.set()
    for one in begun:
        one.result(20)
    assert index.world.count(prompt[:8]) == 1
    assert index.statistics().tokens == 2000


@pytest.mark.parametrize("known", [0, 700])
def test_what_is_ended_meanwhile_goes_on_alone(gate: Gate, known: int) -> None:
    index, prompt = gate.index, tokens(2000)
    if known:
        at = index.begin("s", prompt[:300])
        index.finish(at)
    begin = gate.begin("s", prompt)
    index.end_session("s")
    index.check_integrity()
    assert index.session_context("s") is None
    newer = index.begin("s", prompt[:50])
    gate.opened.set()
    handle = begin.result(20)
    index.check_integrity()
    assert len(index.context(handle)) == 2000
    assert len(index.context(newer)) == 50
    index.finish(handle)
    index.finish(newer)
    assert index.statistics().sessions == 1
    index.end_session("s")
    index.check_integrity()
    assert index.statistics().session_bytes == 0


def test_what_is_purged_meanwhile_stays_forgotten(gate: Gate) -> None:
    index, prompt = gate.index, tokens(2000)
    index.ingest(tokens(500, 8))
    index.finish(index.begin("idle", tokens(30, 4)))
    begin = gate.begin("s", prompt)
    index.purge()
    index.check_integrity()
    gate.opened.set()
    handle = begin.result(20)
    sizes = index.statistics()
    assert (sizes.sequences, sizes.sessions, sizes.requests) == (0, 1, 1)
    assert drafts(index, handle)
    index.check_integrity()


def test_what_is_lent_is_not_evicted_and_counts_afterwards(gate: Gate) -> None:
    gate.index = index = SuffixIndex(
        IndexConfig(depth=8, session_depth=8, max_bytes=1 << 20, max_cached_requests=0)
    )
    for n in range(20):
        index.finish(index.begin(str(n), tokens(400, n)))
    index.finish(index.begin("s", tokens(100)))
    begin = gate.begin("s", tokens(3000))
    for n in range(20, 60):  # more than there is room for
        index.finish(index.begin(str(n), tokens(500, n)))
    assert index.nbytes <= 1 << 20
    assert index.session_context("s") is not None
    evicted = index.statistics().evicted_sessions
    gate.opened.set()
    handle = begin.result(20)
    assert index.statistics().evicted_sessions > evicted
    assert index.nbytes <= 1 << 20
    assert len(index.context(handle)) == 3000
    index.check_integrity()


@pytest.mark.parametrize("fault", [CapacityError("text: full"), MemoryError(), KeyboardInterrupt()])
@pytest.mark.parametrize("case", ["new", "next turn", "branch", "ended"])
def test_a_fault_leaves_nothing_behind(gate: Gate, fault: BaseException, case: str) -> None:
    index, prompt = gate.index, tokens(2000)
    if case != "new":
        live = index.begin("s", prompt[:300])
        if case != "branch":
            index.finish(live)
    sessions = index.statistics().sessions
    gate.fault = fault
    begin = gate.begin("s", prompt)
    if case == "ended":
        index.end_session("s")
    gate.opened.set()
    with pytest.raises(type(fault)):
        begin.result(20)
    gate.fault = None
    index.check_integrity()
    left = index.statistics()
    assert left.requests == (1 if case == "branch" else 0)
    assert left.sessions == (sessions if case == "branch" else 0)
    assert case == "branch" or left.session_bytes == 0
    handle = index.begin("s", prompt)
    assert np.array_equal(index.context(handle), prompt)
    index.check_integrity()


def test_a_request_that_cannot_be_opened_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index, prompt = SuffixIndex(CONFIG), tokens(2000)
    live = index.begin("s", prompt)
    wrong: Any = "many"
    for size in (10, 2000):
        with pytest.raises(TypeError):
            index.begin("s", prompt[:size], max_tokens=wrong)  # a private branch
        index.check_integrity()
        with pytest.raises(TypeError):
            index.begin(f"t{size}", prompt[:size], max_tokens=wrong)
        index.check_integrity()
    assert index.statistics().requests == 1
    index.finish(live)
    with pytest.raises(UnknownRequestError):
        index.propose(live)


@pytest.mark.parametrize("index_prompts", [False, True])
def test_many_threads_begin_beside_the_lock(
    index_prompts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the stress test, every prompt inserted aside, threads sharing sessions."""
    at_once(monkeypatch, -1)
    index = SuffixIndex(
        IndexConfig(
            depth=16,
            session_depth=8,
            live_chunk=16,
            max_bytes=2 << 20,
            max_cached_requests=60,
            index_prompts=index_prompts,
        ),
        vocab_size=40,
        forbidden=[7],
    )
    counts = [0] * 4

    def begin_shared(seed: int) -> Callable[[threading.Event], None]:
        def work(stop: threading.Event) -> None:
            rng, text = random.Random(seed), tokens(4000, 1)
            while not stop.is_set():
                prompt = text[rng.choice([0, 0, 500]) : rng.randrange(500, 4000)]
                handle = index.begin(f"shared {rng.randrange(2)}", prompt)
                assert np.array_equal(index.context(handle), prompt)
                index.propose(handle).check_integrity()
                index.advance(handle, tokens(rng.randrange(1, 30), rng.randrange(3)))
                index.finish(handle, keep=rng.random() < 0.8)
                if rng.random() < 0.2:
                    index.end_session(f"shared {rng.randrange(2)}")
                if rng.random() < 0.05:
                    index.purge()
                if rng.random() < 0.1:
                    index.check_integrity()

        return work

    run_all(
        [serve(index, seed, counts) for seed in range(4)] + [begin_shared(9), begin_shared(10)],
        counts,
    )
    index.check_integrity()
    assert index.statistics().requests == 0
    for name in ("shared 0", "shared 1"):
        index.end_session(name)
    index.check_integrity()
