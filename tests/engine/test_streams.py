"""Asynchronous requests: events, refusal, and cancellation at any moment."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

from suffixspec_engine.engine import Engine
from suffixspec_engine.engine_config import EngineConfig
from suffixspec_engine.sampling import SamplingParams
from suffixspec_index.errors import CapacityError
from tests.engine.said import random_prompt, said

if TYPE_CHECKING:
    from suffixspec_engine.models import TargetModel

SUFFIX = {"method": "suffix", "draft_shape": "tree", "suffix_decoding_min_token_prob": 0.0}


def greedy(max_tokens: int = 24) -> SamplingParams:
    """An end token must not spoil what a test is about."""
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)


def test_events_add_up_to_the_output(target: TargetModel) -> None:
    async def ask(engine: Engine) -> None:
        stream = engine.submit(random_prompt(1, 20), greedy(), request_id="mine")
        assert stream.request_id == "mine"
        events = [event async for event in stream]
        output = await stream.output()
        assert [t for e in events for t in e.token_ids] == output.token_ids.tolist()
        assert [int(s) for e in events for s in e.sources] == output.sources.tolist()
        assert "".join(e.text for e in events) == output.text
        assert [e.finish_reason for e in events[:-1]] == [None] * (len(events) - 1)
        assert events[-1].finish_reason == output.finish_reason == "length"

    with Engine(target, speculative=SUFFIX) as engine:
        asyncio.run(ask(engine))


@pytest.mark.parametrize("after", [0, 1, 5])
def test_cancelling_harms_no_other(target: TargetModel, reference: Any, after: int) -> None:
    """Victims and survivors share sessions' beginnings, so their caches are copies of another."""
    shared = random_prompt(5, 40)
    prompts = [[*shared.tolist(), i] for i in range(6)]
    expected = [said(reference, prompt, 24, ignore_eos=True) for prompt in prompts]

    async def survive(engine: Engine, number: int) -> list[int]:
        output = await engine.submit(prompts[number], greedy()).output()
        tokens: list[int] = output.token_ids.tolist()
        return tokens

    async def perish(engine: Engine, number: int) -> str | None:
        stream = engine.submit(prompts[number], greedy(200), session_id="victims")
        seen = 0
        async for event in stream:
            seen += 1
            if seen > after or event.finish_reason:
                break
        stream.cancel()
        stream.cancel()
        return (await stream.output()).finish_reason

    async def both(engine: Engine) -> None:
        tasks = [survive(engine, i) for i in range(6)]
        doomed = [perish(engine, i) for i in range(6)]
        results = await asyncio.gather(*tasks, *doomed)
        assert list(results[:6]) == expected
        assert set(results[6:]) == {"cancelled"}

    config = EngineConfig(max_running=5, prefill_chunk=8)
    with Engine(target, speculative=SUFFIX, config=config) as engine:
        asyncio.run(both(engine))
        engine.check_integrity()
        assert engine.num_running == engine.num_waiting == 0
        assert engine._core.cache.live_tokens == 0


def test_leaving_a_stream_or_losing_its_task_cancels(target: TargetModel) -> None:
    async def leave(engine: Engine) -> None:
        async with engine.submit(random_prompt(2, 9), greedy(400)) as stream:
            async for _ in stream:
                break
        assert (await stream.output()).finish_reason == "cancelled"
        other = engine.submit(random_prompt(3, 9), greedy(400))

        async def listen() -> None:
            async for _ in other:
                pass

        task = asyncio.create_task(listen())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await other.output()).finish_reason == "cancelled"

    with Engine(target) as engine:
        asyncio.run(leave(engine))


def test_a_full_queue_refuses(target: TargetModel) -> None:
    async def fill(engine: Engine) -> None:
        streams = [engine.submit(random_prompt(i, 9), greedy(60)) for i in range(3)]
        with pytest.raises(CapacityError, match="max_waiting"):
            streams.extend(engine.submit(random_prompt(i, 9), greedy(60)) for i in range(20))
        outputs = [await stream.output() for stream in streams]
        assert {output.finish_reason for output in outputs} == {"length"}

    with Engine(target, config=EngineConfig(max_running=1, max_waiting=2)) as engine:
        asyncio.run(fill(engine))


def test_closing_ends_what_runs(target: TargetModel) -> None:
    async def close(engine: Engine) -> None:
        stream = engine.submit(random_prompt(1, 9), greedy(400))
        await asyncio.to_thread(engine.close)
        output = await stream.output()
        assert output.finish_reason == "error"
        assert output.stop_reason == "the engine was closed"

    engine = Engine(target)
    asyncio.run(close(engine))
    engine.close()


def test_a_closed_generator_cancels(target: TargetModel) -> None:
    with Engine(target) as engine:
        stream = engine.stream(random_prompt(1, 9), greedy(400))
        events = iter(stream)
        next(events)
        events.close()
        assert stream.output().finish_reason == "cancelled"
        assert engine.generate([random_prompt(2, 5)], greedy(3))[0].finish_reason == "length"
    assert engine.metrics.requests == {"cancelled": 1, "length": 1}
