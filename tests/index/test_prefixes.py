"""Recognising the session that a prompt continues."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suffixspec_index.errors import ConfigError, TokenError
from suffixspec_index.prefixes import SessionPrefixes


def text(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 50_000, n).astype(np.int32)


@pytest.mark.parametrize("n", [16, 63, 64, 65, 128, 1000])
def test_next_prompt_continues_the_session(n: int) -> None:
    prefixes = SessionPrefixes()
    prefixes.remember("a", text(n))
    assert prefixes.find(np.append(text(n), text(50, 1))) == "a"
    assert prefixes.find(text(n, 2)) is None


def test_equal_prompts_are_parallel_samples() -> None:
    prefixes = SessionPrefixes()
    prefixes.remember("a", text(200))
    assert prefixes.find(text(200)) is None
    assert prefixes.find(text(200)[:150]) is None


def test_output_rendered_anew_is_recognised_by_the_prompt() -> None:
    prefixes = SessionPrefixes()
    prefixes.remember("a", text(300), prompt_length=170)
    changed = np.concatenate([text(300)[:171], text(60, 9)])
    assert prefixes.find(changed) == "a"
    prefixes.remember("b", changed, prompt_length=171)
    assert prefixes.find(np.append(changed, 5)) == "b"
    assert prefixes.find(np.append(text(300), 5)) == "a"


def test_longest_text_wins_and_busy_sessions_are_left_alone() -> None:
    prefixes = SessionPrefixes()
    prefixes.remember("short", text(100))
    prefixes.remember("long", text(180))
    assert prefixes.find(text(400)) == "long"
    assert prefixes.find(text(400), busy=["long"]) == "short"
    assert prefixes.find(text(400), busy=["long", "short"]) is None


def test_scopes_are_apart() -> None:
    prefixes = SessionPrefixes()
    prefixes.remember("a", text(100), scope="one")
    assert prefixes.find(text(200), scope="two") is None
    assert prefixes.find(text(200), scope="one") == "a"


def test_a_few_tokens_identify_nobody() -> None:
    prefixes = SessionPrefixes()
    prefixes.remember("a", text(10))
    assert prefixes.find(text(100)) is None


def test_forgets_the_least_recent_and_leaves_nothing_behind() -> None:
    prefixes = SessionPrefixes(max_sessions=2)
    prefixes.remember("a", text(100, 1))
    prefixes.remember("b", text(100, 2))
    assert prefixes.find(text(150, 1)) == "a"
    assert prefixes.remember("c", text(100, 3)) == ["b"]
    assert prefixes.find(text(150, 2)) is None
    for name in "ac":
        prefixes.forget(name)
    prefixes.forget("unknown")
    assert not len(prefixes)
    assert not prefixes._ends


def test_bad_input() -> None:
    with pytest.raises(ConfigError, match="max_sessions"):
        SessionPrefixes(0)
    with pytest.raises(TokenError):
        SessionPrefixes().find([1.5])


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 300)), min_size=1, max_size=8), st.data()
)
def test_agrees_with_comparing_every_session(
    held: list[tuple[int, int]], data: st.DataObject
) -> None:
    prefixes = SessionPrefixes()
    contexts: dict[str, np.ndarray] = {}
    for i, (seed, n) in enumerate(held):
        name = f"s{i}"
        contexts[name] = text(400, seed)[:n]
        prefixes.remember(name, contexts[name])
    prompt = text(400, data.draw(st.integers(0, 4)))[: data.draw(st.integers(1, 400))]
    fitting = [
        name
        for name, context in contexts.items()
        if 16 <= len(context) < len(prompt) and np.array_equal(context, prompt[: len(context)])
    ]
    found = prefixes.find(prompt)
    if not fitting:
        assert found is None
    else:
        assert found is not None
        assert len(contexts[found]) == max(len(contexts[name]) for name in fitting)
