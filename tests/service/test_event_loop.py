"""The event loop goes on while an index, or the engine, keeps everybody else waiting.

Not a matter of time: the lock is held until ``/healthz`` has answered, so a call that waits for it
on the loop would never see it free.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import grpc
import httpx
import pytest

from suffixspec_engine.engine import Engine
from suffixspec_engine.models import TargetModel
from suffixspec_service.app import create_app
from suffixspec_service.config import ServiceConfig
from suffixspec_service.rpc.generated import drafting_pb2 as pb
from suffixspec_service.rpc.generated import drafting_pb2_grpc as pb_grpc
from suffixspec_service.rpc.server import serve_grpc
from suffixspec_service.runtime import Runtime
from tests.service.grpc_service import MODEL, phrases
from tests.service.serving import CHATML
from tests.threads import ended

PATIENCE_S = 20.0
TEXT = phrases(1, 60).tolist()


@contextmanager
def held(lock: AbstractContextManager[Any]) -> Iterator[threading.Event]:
    """Hold a lock in another thread until the event that this gives is set; fail where it never
    was."""
    taken, answered = threading.Event(), threading.Event()
    in_time: list[bool] = []

    def hold() -> None:
        with lock:
            taken.set()
            in_time.append(answered.wait(PATIENCE_S))

    thread = threading.Thread(daemon=True, target=hold)
    thread.start()
    assert taken.wait(PATIENCE_S)
    try:
        yield answered
    finally:
        answered.set()
        ended([thread])
    assert in_time == [True], "the event loop waited for the lock"


@pytest.fixture
async def runtime(tiny_target: TargetModel) -> AsyncIterator[Runtime]:
    engine = Engine(tiny_target, speculative={"method": "suffix"})
    runtime = Runtime(
        ServiceConfig(port=0, grpc_port=0), engine, model_name="tiny", chat_template=CHATML
    )
    await runtime.start()
    yield runtime
    await runtime.close()


@pytest.fixture
async def client(runtime: Runtime) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(runtime))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        yield client


async def answers_meanwhile(
    client: httpx.AsyncClient, lock: AbstractContextManager[Any], call: Any
) -> Any:
    """What ``call`` returns, which was begun while the lock was held and ``/healthz`` answered."""
    with held(lock) as answered:
        task = asyncio.ensure_future(call)
        for _ in range(20):  # the call has gone as far as it can
            await asyncio.sleep(0.005)
        alive = await client.get("/healthz")
        assert alive.status_code == 200
        assert not task.done(), "the call did not need the lock: nothing was shown"
        answered.set()
        return await asyncio.wait_for(task, PATIENCE_S)


def write_lock(runtime: Runtime) -> AbstractContextManager[Any]:
    """Of the drafting clients' index: as if somebody wrote in it for long."""
    (space,) = (s for s in runtime.spaces.all() if s.key.model == MODEL["model"])
    assert space.index is not None
    return space.index._lock.writing()


BODIES: dict[str, dict[str, Any]] = {
    "begin": {"requests": [{"request": 2, "session": "t", "prompt": TEXT[:20]}]},
    "step": {
        "advance": [{"request": 1, "token_ids": TEXT[20:22]}],
        "propose": [{"request": 1}],
    },
    "finish": {"requests": [1]},
    "end_sessions": {"sessions": ["u"]},
    "ingest": {"sequences": [TEXT]},
    "purge": {},
    "statistics": {},
    "close": {},
}


@pytest.mark.parametrize("call", BODIES)
async def test_http_drafting(client: httpx.AsyncClient, runtime: Runtime, call: str) -> None:
    post = "/v1/speculation/{}".format
    opened = await client.post(post("open"), json=MODEL)
    lease = {"lease": opened.json()["lease"]}
    requests = [{"request": 1, "session": "s", "prompt": TEXT[:20]}]
    await client.post(post("begin"), json=lease | {"requests": requests})
    waiting = client.post(post(call), json=lease | BODIES[call])
    answer = await answers_meanwhile(client, write_lock(runtime), waiting)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("path", ["/metrics", "/dashboard/api/overview"])
async def test_looking(client: httpx.AsyncClient, runtime: Runtime, path: str) -> None:
    await client.post("/v1/speculation/open", json=MODEL)
    answer = await answers_meanwhile(client, write_lock(runtime), client.get(path))
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("stream", [True, False])
async def test_grpc_drafting(client: httpx.AsyncClient, runtime: Runtime, stream: bool) -> None:
    server = await serve_grpc(runtime)
    async with grpc.aio.insecure_channel(server.addresses[0]) as channel:
        stub = pb_grpc.DraftingStub(channel)
        lease = (await stub.Open(pb.OpenRequest(**MODEL))).lease
        prompt = phrases(1, 20).tobytes()
        new = pb.NewRequest(request=1, session="s", prompt=prompt)
        await stub.Begin(pb.BeginRequest(lease=lease, requests=[new]))
        step = pb.StepRequest(lease=lease, proposed=[1])
        messages: Any = stub.Stream()

        async def ask() -> Any:
            if not stream:
                return await stub.Step(step)
            await messages.write(pb.StreamRequest(id=1, step=step))
            return (await messages.read()).step

        reply = await answers_meanwhile(client, write_lock(runtime), ask())
        assert len(reply.lengths) == 1
        messages.cancel()
    await server.stop(0)


async def test_a_chat_while_the_engine_takes_in_prompts(
    client: httpx.AsyncClient, runtime: Runtime
) -> None:
    assert runtime.engine is not None
    messages = [{"role": "user", "content": "hello"}]
    body = {"model": "tiny", "messages": messages, "max_tokens": 2}
    waiting = client.post("/v1/chat/completions", json=body)
    answer = await answers_meanwhile(client, runtime.engine._steps._changed, waiting)
    assert answer.status_code == 200, answer.text
