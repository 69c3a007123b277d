from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest

from suffixspec_engine.engine import Engine
from suffixspec_engine.sampling import SamplingParams
from suffixspec_service.config import Limits
from suffixspec_service.rpc.generated import generation_pb2 as pb
from suffixspec_service.rpc.generated import generation_pb2_grpc as pb_grpc
from tests.service.grpc_service import Service, running

if TYPE_CHECKING:
    from suffixspec_engine.models import TargetModel

Code = grpc.StatusCode
GREEDY = pb.SamplingParameters(temperature=0, max_tokens=40, ignore_eos=True)
ENDLESS = pb.SamplingParameters(temperature=0, ignore_eos=True)
PROMPT = np.arange(40, 60, dtype="<i4")


@pytest.fixture
async def service(tiny_target: TargetModel) -> AsyncIterator[Service]:
    limits = Limits(concurrent_requests=2)
    engine = Engine(tiny_target, speculative={"method": "suffix"})
    async with running(engine, limits=limits) as service:
        yield service


def stub_of(channel: grpc.aio.Channel) -> Any:
    return pb_grpc.GenerationStub(channel)


async def settled(service: Service) -> None:
    """Wait until nothing is left of any request."""
    engine = service.runtime.engine
    assert engine is not None
    async with asyncio.timeout(20):
        while (
            engine.num_running
            or engine.num_waiting
            or service.runtime.admission.running
            or service.runtime.spaces.live_requests
            or service.runtime._kept  # what counts a request runs beside its answer
        ):
            await asyncio.sleep(0.01)


async def test_the_stream_is_what_the_engine_says(
    service: Service, tiny_target: TargetModel
) -> None:
    with Engine(tiny_target) as plain:
        params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
        (wanted,) = await asyncio.to_thread(plain.generate, [PROMPT.tolist()], params)
    async with grpc.aio.insecure_channel(service.address) as channel:
        for _ in range(2):
            request = pb.GenerateRequest(token_ids=PROMPT.tobytes(), sampling=GREEDY, session="s")
            events = [event async for event in stub_of(channel).Generate(request)]
            said = np.concatenate([np.frombuffer(event.token_ids, "<i4") for event in events])
            assert said.tolist() == wanted.token_ids.tolist()
            assert "".join(event.text for event in events) == wanted.text
            assert all(len(event.sources) * 4 == len(event.token_ids) for event in events)
            assert [bool(event.finish_reason) for event in events[:-1]] == [False] * (
                len(events) - 1
            )
            last = events[-1]
            assert last.finish_reason == "length"
            assert (last.usage.prompt_tokens, last.usage.output_tokens) == (20, 40)
        # The second time the text is known: several tokens per event.
        assert last.usage.accepted > 0
        assert len(events) < 40
    await settled(service)
    assert [record.api for record in service.records] == ["grpc", "grpc"]


async def test_text_predictions_and_stops(service: Service) -> None:
    async with grpc.aio.insecure_channel(service.address) as channel:
        plain = pb.GenerateRequest(text="hello", sampling=GREEDY, max_draft=0)
        events = [event async for event in stub_of(channel).Generate(plain)]
        assert events[-1].usage.drafted == 0
        text = "".join(event.text for event in events)
        data = b"".join(event.token_ids for event in events)
        for prediction in ({"prediction_token_ids": data}, {"prediction_text": text}):
            request = pb.GenerateRequest(text="hello", sampling=GREEDY, **prediction)
            again = [event async for event in stub_of(channel).Generate(request)]
            assert b"".join(event.token_ids for event in again) == data
        assert again[-1].usage.output_tokens == 40
        token = int(np.frombuffer(data, "<i4")[5])
        sampling = pb.SamplingParameters(temperature=0, max_tokens=40, stop_token_ids=[token])
        request = pb.GenerateRequest(text="hello", sampling=sampling)
        stopped = [event async for event in stub_of(channel).Generate(request)]
        assert stopped[-1].finish_reason == "stop"
        assert stopped[-1].stop_token_id == token
    await settled(service)


BAD: dict[str, tuple[pb.GenerateRequest, grpc.StatusCode, str]] = {
    "no prompt": (pb.GenerateRequest(), Code.INVALID_ARGUMENT, "prompt"),
    "empty": (pb.GenerateRequest(token_ids=b""), Code.INVALID_ARGUMENT, "prompt"),
    "torn": (pb.GenerateRequest(token_ids=b"12345"), Code.INVALID_ARGUMENT, "5 bytes"),
    "foreign": (
        pb.GenerateRequest(token_ids=np.array([9999], "<i4").tobytes()),
        Code.INVALID_ARGUMENT,
        "9999",
    ),
    "model": (pb.GenerateRequest(text="x", model="gpt"), Code.INVALID_ARGUMENT, "model"),
    "long": (
        pb.GenerateRequest(token_ids=np.ones(600, "<i4").tobytes()),
        Code.INVALID_ARGUMENT,
        "600",
    ),
    "temperature": (
        pb.GenerateRequest(text="x", sampling=pb.SamplingParameters(temperature=-1)),
        Code.INVALID_ARGUMENT,
        "temperature",
    ),
    "bias": (
        pb.GenerateRequest(text="x", sampling=pb.SamplingParameters(logit_bias={5: 1000})),
        Code.INVALID_ARGUMENT,
        "logit_bias",
    ),
}


@pytest.mark.parametrize("case", BAD)
async def test_bad_input(service: Service, case: str) -> None:
    request, code, text = BAD[case]
    async with grpc.aio.insecure_channel(service.address) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            async for _ in stub_of(channel).Generate(request):
                pass
    assert (caught.value.code(), text in str(caught.value.details())) == (code, True)
    await settled(service)


@pytest.mark.parametrize("how", ["cancel", "deadline", "vanish"])
async def test_a_call_that_ends_early_ends_the_request(service: Service, how: str) -> None:
    async with grpc.aio.insecure_channel(service.address) as channel:
        request = pb.GenerateRequest(token_ids=PROMPT.tobytes(), sampling=ENDLESS)
        timeout = 0.15 if how == "deadline" else None
        call = stub_of(channel).Generate(request, timeout=timeout)
        await call.read()
        if how == "cancel":
            call.cancel()
        elif how == "deadline":
            assert await call.code() is Code.DEADLINE_EXCEEDED
    await settled(service)
    (record,) = service.records
    assert record.status in ("cancelled", "length")
    assert record.output_tokens <= 512 - 20


async def test_a_limit_of_the_tenant(service: Service) -> None:
    async with grpc.aio.insecure_channel(service.address) as channel:
        request = pb.GenerateRequest(token_ids=PROMPT.tobytes(), sampling=ENDLESS)
        calls = [stub_of(channel).Generate(request) for _ in range(2)]
        for call in calls:
            await call.read()
        with pytest.raises(grpc.RpcError) as caught:
            await stub_of(channel).Generate(request).read()
        assert caught.value.code() is Code.RESOURCE_EXHAUSTED
        for call in calls:
            call.cancel()
    await settled(service)
