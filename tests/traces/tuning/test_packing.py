from __future__ import annotations

import pickle

import numpy as np

from suffixspec_traces.model import TokenSession, Turn
from suffixspec_traces.tuning.packing import PackedSession, fingerprint
from tests.traces.tuning.talk import talk, talks


def same(a: TokenSession, b: TokenSession) -> bool:
    return (a.id, a.source, a.start) == (b.id, b.source, b.start) and all(
        np.array_equal(x.prompt, y.prompt) and np.array_equal(x.output, y.output)
        for x, y in zip(a.turns, b.turns, strict=True)
    )


def test_a_session_comes_back_and_is_sent_once() -> None:
    session = talk("s", turns=30, start=5.0)
    packed = PackedSession.of(session)
    assert same(packed.unpacked(), session)
    assert len(packed.buffers) == 1
    tokens = len(session.turns[-1].prompt) + len(session.turns[-1].output)
    assert len(pickle.dumps(packed)) < 4 * tokens + 2000


def test_a_rewritten_history_takes_a_buffer_of_its_own() -> None:
    a = np.arange(10, dtype=np.int32)
    session = TokenSession("s", (Turn(a, a[:3]), Turn(a[5:], a[:2]), Turn(a[5:], a[:4])))
    packed = PackedSession.of(session)
    assert len(packed.buffers) == 2
    assert same(packed.unpacked(), session)


def test_the_fingerprint_sees_tokens_groups_and_words() -> None:
    sessions = talks(4)
    one = fingerprint((sessions[:2], sessions[2:]), "cost")
    assert one == fingerprint((talks(4)[:2], talks(4)[2:]), "cost")
    others = {
        fingerprint((sessions[:1], sessions[1:]), "cost"),
        fingerprint((sessions[:2], sessions[2:]), "costs"),
        fingerprint((sessions[:2], sessions[2:]), "co", "st"),
        fingerprint((sessions[:2], [*sessions[2:3], talk("s3", seed=9)]), "cost"),
    }
    assert len(others | {one}) == 5
