"""Prompt lookup against a plain rescan of the context before every step."""

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suffixspec_index.draft import Draft, Source
from suffixspec_index.errors import ConfigError, InputError, TokenError, UnknownRequestError
from suffixspec_index.proposers import ngram
from suffixspec_index.proposers.ngram import NgramProposer
from suffixspec_index.speculative_config import SpeculativeConfig
from tests.threads import ended


def rescan(
    context: list[int],
    low: int,
    high: int,
    limit: int,
    forbidden: tuple[int, ...] = (),
) -> tuple[list[int], int]:
    """The draft and the n it rests on: longest n first, earliest occurrence."""
    for n in range(min(high, len(context) - 1), low - 1, -1):
        for start in range(len(context) - n):
            if context[start : start + n] == context[-n:]:
                draft = context[start + n : start + n + limit]
                for i, token in enumerate(draft):
                    if token in forbidden:
                        draft = draft[:i]
                        break
                return draft, n if draft else 0
    return [], 0


def make(
    low: int = 1, high: int = 3, tokens: int = 4, forbidden: tuple[int, ...] = (), **extra: int
) -> NgramProposer:
    config = SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=tokens,
        prompt_lookup_min=low,
        prompt_lookup_max=high,
        **extra,  # type: ignore[arg-type]
    )
    return NgramProposer(config, vocab_size=100, forbidden=forbidden)


@given(
    st.lists(st.integers(0, 3), max_size=60),
    st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=8),
    st.integers(1, 4),
    st.integers(0, 4),
    st.integers(1, 6),
    st.sets(st.integers(0, 3), max_size=1),
)
@settings(deadline=None, max_examples=300)
def test_equals_a_rescan(
    prompt: list[int],
    steps: list[list[int]],
    low: int,
    more: int,
    tokens: int,
    forbidden: set[int],
) -> None:
    proposer = make(low, low + more, tokens, tuple(forbidden))
    request = proposer.begin("s", prompt)
    context = list(prompt)
    for step in [[], *steps]:
        proposer.advance(request, step)
        context += step
        draft = proposer.propose(request)
        draft.check_integrity()
        expected, n = rescan(context, low, low + more, tokens, tuple(forbidden))
        assert draft.token_ids.tolist() == expected
        assert draft.match_len == n
        assert draft.is_path


@given(st.data())
@settings(deadline=None, max_examples=150)
def test_edited_histories_equal_a_fresh_context(data: st.DataObject) -> None:
    """A prompt that extends, cuts or changes the session gives what a new session would."""
    tokens = st.lists(st.integers(0, 2), max_size=25)
    proposer = make(1, 3, 5)
    context: list[int] = []
    for _ in range(data.draw(st.integers(1, 6))):
        keep = data.draw(st.integers(0, len(context)))
        context = context[:keep] + data.draw(tokens)
        request = proposer.begin("s", context)
        assert proposer.propose(request).token_ids.tolist() == rescan(context, 1, 3, 5)[0]
        output = data.draw(tokens)
        proposer.advance(request, output)
        context = context + output
        assert proposer.propose(request).token_ids.tolist() == rescan(context, 1, 3, 5)[0]
        proposer.finish(request, keep=data.draw(st.booleans()))


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_a_batch_equals_single_calls(data: st.DataObject) -> None:
    proposer = make(1, 4, 6)
    tokens = st.lists(st.integers(0, 2), max_size=30)
    contexts = data.draw(st.lists(tokens, max_size=5))
    requests = [proposer.begin(f"s{i}", context) for i, context in enumerate(contexts)]
    gained = [data.draw(tokens) for _ in contexts]
    offsets = np.cumsum([0] + [len(g) for g in gained])
    proposer.advance_batch(requests, [t for g in gained for t in g], offsets)
    limits = [data.draw(st.integers(0, 8)) for _ in contexts]
    batch = proposer.propose_batch(requests, limits)
    assert len(batch) == len(contexts)
    for row, draft in enumerate(batch):
        expected, n = rescan(contexts[row] + gained[row], 1, 4, min(6, limits[row]))
        single = proposer.propose(requests[row], limits[row])
        for candidate in (draft, single):
            candidate.check_integrity()
            assert candidate.token_ids.tolist() == expected
            assert candidate.match_len == (n if expected else 0)
    assert [d.token_ids.tolist() for d in proposer.propose_batch(requests)] == [
        proposer.propose(r).token_ids.tolist() for r in requests
    ]


def test_a_long_random_text_with_growth() -> None:
    rng = np.random.default_rng(7)
    text = rng.integers(0, 9, 3000).tolist()
    proposer = make(2, 5, 8)
    request = proposer.begin("s", text[:10])
    done = 10
    while done < len(text):
        step = int(rng.integers(1, 40))
        proposer.advance(request, text[done : done + step])
        done = min(done + step, len(text))
        assert proposer.propose(request).token_ids.tolist() == rescan(text[:done], 2, 5, 8)[0]


def test_cutting_back_keeps_probe_sequences_whole() -> None:
    """Cut the text back and grow it again, many times over, in the same table."""
    rng = np.random.default_rng(3)
    proposer = make(1, 2, 4)
    context: list[int] = []
    for _ in range(200):
        keep = int(rng.integers(0, len(context) + 1)) if context else 0
        context = context[:keep] + rng.integers(0, 40, int(rng.integers(0, 60))).tolist()
        request = proposer.begin("s", context)
        assert proposer.propose(request).token_ids.tolist() == rescan(context, 1, 2, 4)[0]
        proposer.finish(request)


def test_lengths_are_bounded() -> None:
    proposer = make(1, 3, 8)
    request = proposer.begin("s", [1, 2, 3, 4, 5, 6, 7, 1], max_tokens=3)
    assert proposer.propose(request).token_ids.tolist() == [2, 3, 4]
    assert proposer.propose(request, 2).token_ids.tolist() == [2, 3]
    assert proposer.propose(request, 0) is Draft.empty()
    proposer.advance(request, [2, 3])
    assert proposer.propose(request).token_ids.tolist() == [4]
    proposer.advance(request, [4])
    assert len(proposer.propose(request)) == 0
    proposer.advance(request, [5, 6])  # more than asked for: still no draft, no error
    assert len(proposer.propose(request)) == 0


def test_the_model_length_bounds_the_context() -> None:
    proposer = make(1, 3, 8, max_model_len=10)
    request = proposer.begin("s", [1, 2, 3, 4, 5, 6, 7, 1])
    assert proposer.propose(request).token_ids.tolist() == [2, 3]


def test_a_huge_draft_limit_costs_no_memory() -> None:
    proposer = make(1, 3, 2**31 - 1)
    request = proposer.begin("s", [1, 2, 3, 1])
    assert proposer.propose(request).token_ids.tolist() == [2, 3, 1]
    assert proposer.propose_batch([request])[0].token_ids.tolist() == [2, 3, 1]


def test_a_draft_names_its_source() -> None:
    proposer = make()
    draft = proposer.propose(proposer.begin("s", [1, 2, 1]))
    assert draft.source is Source.NGRAM
    assert draft.probs.tolist() == [1.0] * len(draft)


def test_requests_of_one_session_at_once_keep_apart() -> None:
    proposer = make()
    first = proposer.begin("s", [1, 2, 3, 1])
    second = proposer.begin("s", [1, 2, 3, 1])
    proposer.advance(first, [9])
    proposer.advance(second, [2])
    assert len(proposer.propose(first)) == 0
    assert proposer.propose(second).token_ids.tolist() == [3, 1, 2]
    proposer.finish(first)
    proposer.finish(second)
    third = proposer.begin("s", [1, 2, 3, 1, 2, 3])
    assert proposer.propose(third).token_ids.tolist() == [1, 2, 3]


def test_memory_goes_back() -> None:
    proposer = make()
    requests = [proposer.begin(f"s{i}", list(range(50)) * 20) for i in range(30)]
    held = proposer.memory_bytes
    assert held > 30 * 1000 * 4
    for request in requests[:15]:
        proposer.finish(request)
    assert proposer.memory_bytes == held
    for i in range(30):
        proposer.end_session(f"s{i}")
    proposer.end_session("never opened")
    for request in requests[15:]:
        proposer.finish(request)
    assert proposer.memory_bytes == 0


def test_idle_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram, "_IDLE_BYTES", 100_000)
    proposer = make()
    for i in range(100):
        proposer.finish(proposer.begin(f"s{i}", list(range(90)) * 5))
    assert 0 < proposer.memory_bytes <= 100_000


@pytest.mark.parametrize(
    "call",
    [
        lambda p, r: p.begin("s", [1, 100]),
        lambda p, r: p.begin("s", [1.5]),
        lambda p, r: p.advance(r, [-1]),
        lambda p, r: p.advance_batch([r], [100], [0, 1]),
    ],
)
def test_bad_tokens_change_nothing(call: Callable[[NgramProposer, int], object]) -> None:
    proposer = make()
    request = proposer.begin("s", [1, 2, 3, 1])
    with pytest.raises(TokenError):
        call(proposer, request)
    assert proposer.propose(request).token_ids.tolist() == [2, 3, 1]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda p, r: p.begin(5, [1]), "session_id"),
        (lambda p, r: p.begin("s", [1], max_tokens=-1), "max_tokens: must not be negative"),
        (lambda p, r: p.begin("s", [1], max_tokens=1.5), "max_tokens: must be an integer"),
        (lambda p, r: p.propose(r, -1), "limit: must not be negative"),
        (lambda p, r: p.propose_batch([r], [1, 2]), "limits: must be one integer"),
        (lambda p, r: p.propose_batch([r], [-2]), "limits: must not be negative"),
        (lambda p, r: p.advance_batch([r], [1], [0]), "offsets: must be 2 integers"),
        (lambda p, r: p.advance_batch([r], [1, 2], [0, 1]), "offsets: must rise"),
    ],
)
def test_bad_arguments_are_named(call: Callable[[NgramProposer, int], object], error: str) -> None:
    proposer = make()
    request = proposer.begin("s", [1, 2, 3, 1])
    with pytest.raises(InputError, match=error):
        call(proposer, request)


def test_unknown_requests() -> None:
    proposer = make()
    request = proposer.begin("s", [1])
    proposer.finish(request)
    calls: list[Callable[[], object]] = [
        lambda: proposer.propose(request),
        lambda: proposer.advance(request, [1]),
        lambda: proposer.finish(request),
        lambda: proposer.propose_batch([request]),
        lambda: proposer.advance_batch([99], [1], [0, 1]),
        lambda: proposer.propose([]),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(UnknownRequestError, match="no request has the handle"):
            call()


def test_a_request_named_twice_in_a_batch_gains_both() -> None:
    proposer = make()
    request = proposer.begin("s", [1, 2])
    proposer.advance_batch([request, request], [3, 1], [0, 1, 2])
    assert proposer.propose(request).token_ids.tolist() == [2, 3, 1]


def test_needs_its_bounds() -> None:
    with pytest.raises(ConfigError, match="prompt_lookup_max"):
        NgramProposer(SpeculativeConfig())


def test_threads() -> None:
    proposer = make(1, 4, 6)
    failures: list[str] = []

    def work(name: str) -> None:
        rng = np.random.default_rng(len(name))
        context = rng.integers(0, 4, 50).tolist()
        for _ in range(5):
            request = proposer.begin(name, context)
            for _ in range(30):
                draft = proposer.propose(request).token_ids.tolist()
                if draft != rescan(context, 1, 4, 6)[0]:
                    failures.append(name)
                step = rng.integers(0, 4, 3).tolist()
                proposer.advance(request, step)
                context += step
            proposer.finish(request)

    threads = [threading.Thread(daemon=True, target=work, args=("s" * i,)) for i in range(1, 5)]
    for thread in threads:
        thread.start()
    ended(threads)
    assert not failures


def test_on_a_recorded_trace() -> None:
    folder = Path(__file__).parents[4] / "shared" / "traces"
    path = folder / "tau-bench-gpt-4o.jsonl"
    if not path.exists():
        pytest.skip("the recorded traces are not beside the repository")
    # Bytes as tokens: long contexts over a small alphabet, with real repetitions.
    data = list(path.read_bytes()[:6000])
    config = SpeculativeConfig(
        method="ngram", num_speculative_tokens=8, prompt_lookup_min=2, prompt_lookup_max=5
    )
    proposer = NgramProposer(config, vocab_size=256)
    request = proposer.begin("s", data[:3000])
    for done in range(3000, len(data), 37):
        assert proposer.propose(request).token_ids.tolist() == rescan(data[:done], 2, 5, 8)[0]
        proposer.advance(request, data[done : done + 37])
