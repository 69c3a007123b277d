"""Attention of a whole step at once, and the pool it needs: against the plain way, and slow
oracles of the masks. What needs a GPU says so."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from suffixspec_engine.attention import PackedRow  # noqa: E402
from suffixspec_engine.cache import KeyValueCache, LayerShape  # noqa: E402
from suffixspec_engine.engine import Engine  # noqa: E402
from suffixspec_engine.engine_config import EngineConfig  # noqa: E402
from suffixspec_engine.flex import BLOCK, SIZES, WIDTH, size_for, step_arrays  # noqa: E402
from suffixspec_engine.graphs import FlexRunner, PlainRunner  # noqa: E402
from suffixspec_engine.sampling import SamplingParams  # noqa: E402
from suffixspec_engine.sequences import PooledSequence  # noqa: E402
from suffixspec_engine.slots import SlotPool  # noqa: E402
from suffixspec_index.errors import IntegrityError  # noqa: E402
from tests.engine.conftest import VOCABULARY  # noqa: E402
from tests.engine.oracles import TreeOracle  # noqa: E402
from tests.engine.said import random_prompt, said  # noqa: E402

if TYPE_CHECKING:
    from suffixspec_engine.models import TargetModel

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU; torch sees none here"
)
SHAPES = (LayerShape(2, 4, 4), LayerShape(1, 8, 6))


def pooled_cache(target: TargetModel, tokens: int) -> KeyValueCache:
    size = target.dtype.itemsize * sum(shape.elements for shape in target.shapes)
    return KeyValueCache(
        target.shapes,
        dtype=target.dtype,
        device=target.device,
        max_bytes=tokens * size,
        pooled=True,
    )


def random_rows(
    cache: KeyValueCache, rng: np.random.Generator, requests: int
) -> tuple[list[PackedRow], list[int]]:
    """Requests with a random past and a random tree behind their last token."""
    rows: list[PackedRow] = []
    tokens: list[int] = []
    for i in range(requests):
        past, size = int(rng.integers(0, 150)), int(rng.integers(0, 9))
        ids = rng.integers(0, 256, past + 1).astype(np.int32)
        sequence = cache.open("", f"{i}", ids, past + 1 + size + int(rng.integers(0, 20)))
        assert sequence is not None
        sequence.length = past
        parents = np.array([rng.integers(-1, node) for node in range(size)], np.int32)
        rows.append(PackedRow(sequence, len(tokens), 1 + size, past, parents if size else None))
        tokens += rng.integers(0, 256, 1 + size).tolist()
    return rows, tokens


@pytest.mark.parametrize("window", [None, 1, 5, 40])
@pytest.mark.parametrize("seed", range(4))
def test_the_mask_is_what_each_token_sees(seed: int, window: int | None) -> None:
    rng = np.random.default_rng(seed)
    cache = KeyValueCache(
        SHAPES, dtype=torch.float32, device=torch.device("cpu"), max_bytes=120 * 2000, pooled=True
    )
    assert cache.pool is not None
    rows, tokens = random_rows(cache, rng, 1 + 3 * seed)
    size = size_for(rows)
    assert size in SIZES
    arrays = step_arrays(rows, size, cache.pool.size, window)
    given = np.zeros((size, cache.pool.size), bool)
    for token in range(size):
        given[token, arrays.low[token] : arrays.end[token]] = True
        new = arrays.end[token] + np.flatnonzero(arrays.sees[token])
        given[token, new] = True
    expected = np.zeros_like(given)  # the slow way: walk up the tree, then through the past
    for row in rows:
        assert isinstance(row.cache, PooledSequence)
        for node in range(row.count):
            path, at = [], node
            while at > 0 and row.parents is not None:
                path.append(at)
                at = int(row.parents[at - 1]) + 1
            path += list(range(at, -1, -1))
            path += range(-1, -row.past - 1, -1)  # the past, latest first
            for slot in path[:window]:
                expected[row.start + node, row.cache.start + row.past + slot] = True
    expected[len(tokens) :, 0] = True
    np.testing.assert_array_equal(given, expected)
    assert len(set(arrays.slots[: len(tokens)].tolist())) == len(tokens)
    assert (arrays.slots[len(tokens) :] == 0).all()
    for block in range(-(-size // BLOCK)):
        seen = np.flatnonzero(expected[block * BLOCK : (block + 1) * BLOCK].any(0)) // BLOCK
        listed = arrays.blocks[block, : arrays.counts[block]].tolist()
        assert set(seen.tolist()) <= set(listed)
        assert listed == sorted(set(listed))
        assert sorted(arrays.blocks[block].tolist()) == list(range(cache.pool.size // BLOCK))


@pytest.mark.parametrize("seed", range(4))
def test_a_step_at_once_equals_request_by_request(target: TargetModel, seed: int) -> None:
    rng = np.random.default_rng(seed)
    cache = pooled_cache(target, 2000)
    assert cache.pool is not None
    flex, plain = FlexRunner(target, cache.pool), PlainRunner(target)
    for layer in (*cache.pool.keys, *cache.pool.values):
        layer.normal_()  # any past will do, and what is not to be seen is there too
    for requests in (1, 5, 3):  # the same sizes again: what was loaded before must be gone
        rows, tokens = random_rows(cache, rng, requests)
        wanted = np.sort(rng.choice(len(tokens), min(7, len(tokens)), replace=False))
        expected = plain.run(rows, tokens, wanted)
        written = [layer.clone() for layer in (*cache.pool.keys, *cache.pool.values)]
        given = flex.run(rows, tokens, wanted)
        torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-4)
        layers = (*cache.pool.keys, *cache.pool.values)
        for layer, before in zip(layers, written, strict=True):
            own = cache.pool.padding
            torch.testing.assert_close(layer[:, own:], before[:, own:], rtol=1e-4, atol=1e-4)
        for row in rows:
            cache.drop(row.cache)
        cache.check_integrity()


def test_large_steps_and_prompts_go_the_plain_way() -> None:
    cache = KeyValueCache(
        SHAPES, dtype=torch.float32, device=torch.device("cpu"), max_bytes=120 * 2000, pooled=True
    )
    sequence = cache.open("", "s", np.arange(5, dtype=np.int32), 500)
    assert sequence is not None
    assert size_for([PackedRow(sequence, 0, WIDTH, 0)]) == 64
    assert size_for([PackedRow(sequence, 0, WIDTH + 1, 0)]) is None
    rows = [PackedRow(sequence, start, 20, 0) for start in range(0, 260, 20)]
    assert size_for(rows) is None
    assert size_for(rows[:12]) == 256


def test_the_engine_says_the_same_with_it(target: TargetModel, reference: Any) -> None:
    prompts = [random_prompt(seed, length) for seed, length in enumerate((3, 50, 17, 1, 90, 8))]
    truth = [said(reference, prompt, 20) for prompt in prompts]
    known = {tuple(p.tolist()): t for p, t in zip(prompts, truth, strict=True)}
    token_bytes = target.dtype.itemsize * sum(shape.elements for shape in target.shapes)
    config = EngineConfig(
        max_running=4,
        max_prefill_tokens=70,
        prefill_chunk=7,
        attention="flex",
        cache_bytes=token_bytes * 320,  # so tight that sequences are dropped and pieces reused
    )
    params = SamplingParams(temperature=0.0, max_tokens=20)
    with Engine(target, proposer=TreeOracle(known, VOCABULARY), config=config) as engine:
        for _ in range(2):
            outputs = engine.generate(prompts * 2, params)
            assert [o.token_ids.tolist() for o in outputs] == truth * 2
            engine.check_integrity()
        assert engine.metrics.counts.accepted > 50
        assert engine._core.cache.evictions > 0
        assert sum(o.metrics.cached_tokens for o in outputs) > 0


@pytest.mark.parametrize("seed", range(3))
def test_pieces_of_a_pool_hold_what_was_written(seed: int) -> None:
    """Random lives of sequences; each key and value says which token it belongs to."""
    rng = np.random.default_rng(seed)
    store = KeyValueCache(
        SHAPES, dtype=torch.float32, device=torch.device("cpu"), max_bytes=120 * 400, pooled=True
    )
    live: list[tuple[Any, list[int]]] = []
    for step in range(400):
        action = rng.random()
        if action < 0.35:
            tokens = [*range(int(rng.integers(0, 80))), *rng.integers(100, 200, 5).tolist()]
            name = f"{rng.integers(0, 6)}"
            sequence = store.open("n", name, np.array(tokens, np.int32), len(tokens) + 30)
            if sequence is not None:
                assert sequence.token_ids.tolist() == tokens[: sequence.length]
                live.append((sequence, tokens))
        elif live:
            sequence, tokens = live[int(rng.integers(0, len(live)))]
            room = min(sequence.reserved - sequence.length, 12)
            if action < 0.8 and room:
                new = tokens[sequence.length :][:room] or rng.integers(100, 200, room).tolist()
                past = sequence.length
                sequence.reserve(past + len(new))
                for layer in (*sequence.keys, *sequence.values):
                    layer[:, past : past + len(new)] = torch.tensor(new, dtype=torch.float32)[
                        None, :, None
                    ]
                sequence.commit(new, range(len(new)))
            else:
                live = [entry for entry in live if entry[0] is not sequence]
                (store.close if action < 0.95 else store.drop)(sequence)
        if step % 50 == 7:
            store.end_session("n", f"{rng.integers(0, 6)}")
        store.check_integrity()
        for sequence, _ in live:
            expected = torch.from_numpy(sequence.token_ids).float()[None, :, None]
            for layer in (*sequence.keys, *sequence.values):
                assert bool((layer[:, : sequence.length] == expected).all())
    assert store.evictions > 0


def test_free_pieces_are_joined() -> None:
    pool = SlotPool(SHAPES, dtype=torch.float32, device=torch.device("cpu"), slots=100)
    starts = [pool.take(25) for _ in range(4)]
    assert pool.take(1) is None
    for index in (1, 3, 2):  # in the middle, at the end, between both
        start = starts[index]
        assert start is not None
        pool.give(start, 25)
    assert pool.free_slots == 75
    assert pool.take(75) == starts[1]
    pool.check_integrity([(pool.padding, 25), (pool.padding + 25, 75)])
    with pytest.raises(IntegrityError):
        pool.check_integrity([(pool.padding, 25)])


@needs_gpu
def test_graphs_on_a_gpu_say_what_the_plain_way_says(tiny_llama: Any) -> None:
    from suffixspec_engine.models import load_model

    target = load_model(tiny_llama, device="cuda", dtype="float32")
    prompts = [random_prompt(seed, length) for seed, length in enumerate((3, 50, 17, 1, 90, 8))]
    params = SamplingParams(temperature=0.0, max_tokens=40)
    texts = []
    for attention in ("plain", "flex"):
        config = EngineConfig(attention=attention, cache_bytes=1 << 24)
        speculative = {"method": "suffix", "draft_shape": "tree"}
        with Engine(target, speculative=speculative, config=config) as engine:
            for _ in range(2):
                outputs = engine.generate(prompts, params)
            texts.append([o.token_ids.tolist() for o in outputs])
            engine.check_integrity()
    assert texts[0] == texts[1]


@needs_gpu
def test_a_captured_step_equals_request_by_request(tiny_llama: Any) -> None:
    from suffixspec_engine.models import load_model

    target = load_model(tiny_llama, device="cuda", dtype="float32")
    cache = pooled_cache(target, 2000)
    assert cache.pool is not None
    flex, plain = FlexRunner(target, cache.pool), PlainRunner(target)
    rng = np.random.default_rng(0)
    for requests in (2, 2, 6, 2):
        rows, tokens = random_rows(cache, rng, requests)
        wanted = np.arange(len(tokens))
        expected = plain.run(rows, tokens, wanted)
        torch.testing.assert_close(flex.run(rows, tokens, wanted), expected, rtol=1e-3, atol=1e-3)
        for row in rows:
            cache.drop(row.cache)
    assert any(step._graph is not None for step in flex._steps.values())


def test_wrong_attention_is_named() -> None:
    with pytest.raises(ValueError, match="attention: must be one of auto, plain, flex"):
        dataclasses.replace(EngineConfig(), attention="fast")  # type: ignore[arg-type]
