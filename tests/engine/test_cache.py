"""The cache of keys and values: what is kept, what makes room, and the budget."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from suffixspec_engine.cache import KeyValueCache, LayerShape, SequenceCache  # noqa: E402
from suffixspec_index.errors import CapacityError, ConfigError, IntegrityError  # noqa: E402

SHAPES = (LayerShape(2, 4, 4), LayerShape(1, 8, 6))
BYTES = 4 * (2 * 8 + 14)


def make(tokens: int) -> KeyValueCache:
    return KeyValueCache(
        SHAPES, dtype=torch.float32, device=torch.device("cpu"), max_bytes=tokens * BYTES
    )


def write(cache: SequenceCache, tokens: list[int], kept: list[int] | None = None) -> None:
    """What a step does: every key and value says which token it belongs to."""
    past = cache.length
    cache.reserve(past + len(tokens))
    for store in (*cache.keys, *cache.values):
        for slot, token in enumerate(tokens):
            store[:, past + slot] = token
    cache.commit(tokens, range(len(tokens)) if kept is None else kept)


def check_contents(cache: SequenceCache, tokens: list[int]) -> None:
    assert cache.token_ids.tolist() == tokens
    for store in (*cache.keys, *cache.values):
        for slot, token in enumerate(tokens):
            assert bool((store[:, slot] == token).all())


def ids(tokens: list[int]) -> Any:
    return np.array(tokens, np.int32)


def test_accepted_tokens_of_a_tree_move_together() -> None:
    cache = make(1000).open("", "s", ids([1, 2]), 200)
    assert cache is not None
    write(cache, [1, 2, 3])
    write(cache, [4, 50, 60, 5, 70, 6], kept=[0, 3, 5])
    check_contents(cache, [1, 2, 3, 4, 5, 6])
    write(cache, [7, 8], kept=[0])  # a rejected token is simply written over
    write(cache, list(range(10, 110)))
    check_contents(cache, [1, 2, 3, 4, 5, 6, 7, *range(10, 110)])


def test_a_session_takes_up_its_own_sequence() -> None:
    store = make(1000)
    first = store.open("", "s", ids([1, 2, 3]), 100)
    assert first is not None
    write(first, [1, 2, 3, 4])
    store.close(first)
    again = store.open("", "s", ids([1, 2, 3, 9, 9]), 100)
    assert again is first
    check_contents(again, [1, 2, 3])
    store.close(again)
    # The last prompt token is computed even if it is known: its logits are wanted.
    third = store.open("", "s", ids([1, 2, 3]), 100)
    assert third is not None
    assert third.length == 2
    store.check_integrity()


def test_a_common_beginning_is_copied_within_a_namespace_only() -> None:
    store = make(1000)
    system = list(range(50))
    first = store.open("a", "s", ids(system), 100)
    assert first is not None
    write(first, system)
    for namespace, known in (("a", 50), ("b", 0)):
        other = store.open(namespace, "t", ids([*system, 77]), 100)
        assert other is not None
        check_contents(other, system[:known])
        store.drop(other)
    check_contents(first, system)


def test_what_a_neighbour_has_come_to_know_is_shared() -> None:
    store = make(1000)
    prompt = list(range(60))
    first = store.open("", "s", ids(prompt), 80)
    second = store.open("", "t", ids([*prompt[:50], 99, 99]), 80)
    assert first is not None
    assert second is not None
    store.share(second, ids([*prompt[:50], 99, 99]))
    assert second.length == 0
    write(first, prompt[:20])
    store.share(second, ids([*prompt[:50], 99, 99]))
    assert second.length == 0  # too little to be worth a copy
    write(second, prompt[:5])
    write(first, prompt[20:])
    store.share(second, ids([*prompt[:50], 99, 99]))
    check_contents(second, prompt[:50])
    check_contents(first, prompt)
    store.check_integrity()


def test_the_sequence_used_longest_ago_makes_room() -> None:
    store = make(256)
    for name in "abc":
        cache = store.open("", name, ids([ord(name)] * 3), 64)
        assert cache is not None
        write(cache, [ord(name)] * 3)
        store.close(cache)
    assert store.idle_tokens == 192
    fourth = store.open("", "d", ids([1, 2]), 128)
    assert fourth is not None
    assert store.evictions == 1
    again = store.open("", "b", ids([ord("b")] * 5), 64)
    assert again is not None
    assert again.length == 3
    gone = store.open("", "a", ids([ord("a")] * 5), 64)
    assert gone is not None
    assert gone.length == 0
    store.check_integrity()
    assert store.open("", "e", ids([1]), 64) is None  # nothing idle is left
    with pytest.raises(CapacityError, match="256 in all"):
        store.open("", "e", ids([1]), 257)


def test_a_sequence_never_outgrows_its_reservation() -> None:
    cache = make(1000).open("", "s", ids([1]), 70)
    assert cache is not None
    write(cache, [1] * 60)
    cache.reserve(70)
    with pytest.raises(CapacityError, match="70 were reserved"):
        cache.reserve(71)


def test_too_small_a_budget() -> None:
    with pytest.raises(ConfigError, match="cache_bytes"):
        make(0)


def test_a_broken_length_is_found() -> None:
    store = make(100)
    cache = store.open("", "s", ids([1]), 10)
    assert cache is not None
    cache.length = 5
    with pytest.raises(IntegrityError, match="length 5"):
        store.check_integrity()


@pytest.mark.parametrize("seed", range(4))
def test_stress(seed: int) -> None:
    """Random sessions under a tight budget; every sequence must always hold its own tokens."""
    rng = np.random.default_rng(seed)
    store = make(700)
    live: list[tuple[SequenceCache, list[int]]] = []
    history: dict[str, list[int]] = {}
    for _ in range(400):
        action = rng.random()
        if action < 0.35:
            name = f"s{rng.integers(8)}"
            known = history.get(name, list(range(40)))  # all sessions begin alike
            cut = len(known) if rng.random() < 0.8 else int(rng.integers(0, len(known)))
            prompt = [*known[:cut], *rng.integers(0, 5, 4).tolist()]
            reserve = len(prompt) + int(rng.integers(5, 60))
            if reserve > store.max_tokens:
                history.pop(name)
                continue
            cache = store.open("", name, ids(prompt), reserve)
            if cache is None:
                assert live
                continue
            assert cache.length < len(prompt)
            check_contents(cache, prompt[: cache.length])
            write(cache, prompt[cache.length :])
            live.append((cache, prompt))
        elif live and action < 0.8:
            cache, tokens = live[int(rng.integers(len(live)))]
            room = cache.reserved - cache.length
            new = rng.integers(0, 5, min(room, int(rng.integers(1, 12)))).tolist()
            kept = sorted({0, *rng.integers(0, max(len(new), 1), 4).tolist()})[: len(new)]
            write(cache, new, kept=[k for k in kept if k < len(new)])
            tokens.extend(new[k] for k in kept if k < len(new))
            check_contents(cache, tokens)
        elif live:
            cache, tokens = live.pop(int(rng.integers(len(live))))
            if rng.random() < 0.2:
                store.drop(cache)
            else:
                history[cache.session_id] = list(tokens)
                store.close(cache)
        store.check_integrity()
    assert store.evictions
