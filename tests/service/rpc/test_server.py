from __future__ import annotations

import asyncio
import stat
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from suffixspec_index.errors import ConfigError
from suffixspec_service.config import ServiceConfig, TlsConfig
from suffixspec_service.drafting import DraftingConfig
from suffixspec_service.rpc.generated import drafting_pb2 as pb
from suffixspec_service.rpc.generated import drafting_pb2_grpc as pb_grpc
from suffixspec_service.rpc.server import serve_grpc
from suffixspec_service.rpc.statuses import DETAILS, error_of
from tests.service.grpc_service import MODEL, VOCAB, Service, phrases, running
from tests.service.rpc.certificates import make_certificates

KEYS = ("anne:sk-suffixspec-anne-0123456789", "bob:sk-suffixspec-bob-0123456789")
ANNE = (("authorization", "Bearer sk-suffixspec-anne-0123456789"),)
BOB = (("x-api-key", "sk-suffixspec-bob-0123456789"),)


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    limits = DraftingConfig(max_context_tokens=500, max_requests=4)
    async with running(socket=True, drafting=limits) as service:
        yield service


async def opened(stub: Any, **call: Any) -> str:
    return str((await stub.Open(pb.OpenRequest(**MODEL), **call)).lease)


def new(
    lease: str, prompt: Any = (1, 2, 3), data: bytes | None = None, **fields: Any
) -> pb.BeginRequest:
    if data is None:
        data = np.asarray(prompt, "<i4").tobytes()
    request: dict[str, Any] = {"request": 1, "session": "s", "prompt": data} | fields
    return pb.BeginRequest(lease=lease, requests=[pb.NewRequest(**request)])


async def test_unary_calls_over_both_addresses(service: Service) -> None:
    assert len(service.server.addresses) == 2
    text = phrases(1, 80)
    for address in service.server.addresses:
        async with grpc.aio.insecure_channel(address) as channel:
            stub: Any = pb_grpc.DraftingStub(channel)
            lease = await opened(stub)
            begun = await stub.Begin(new(lease, [*text, *text[:9]], session=address))
            assert list(begun.context_tokens) == [89]
            drafts = await stub.Step(pb.StepRequest(lease=lease, proposed=[1], limits=[5]))
            found = np.frombuffer(drafts.token_ids, "<i4")
            n = len(found)
            assert 0 < n <= 5
            assert found.tolist() == text[9 : 9 + n].tolist()
            assert set(drafts.sources) <= {pb.SOURCE_SESSION, pb.SOURCE_GLOBAL}
            step = pb.StepRequest(lease=lease, advanced=[1], advanced_lengths=[n])
            step.token_ids = drafts.token_ids
            assert len((await stub.Step(step)).lengths) == 0
            finished = await stub.Finish(pb.FinishRequest(lease=lease, requests=[1]))
            assert (finished.requests[0].drafted, finished.requests[0].accepted) == (n, n)
            assert (await stub.KeepAlive(pb.KeepAliveRequest(lease=lease))).ttl_seconds == 60
            found = await stub.Ingest(pb.IngestRequest(lease=lease, sequences=[text.tobytes()]))
            assert found.tokens == 80
            found = await stub.Statistics(pb.StatisticsRequest(lease=lease))
            assert found.index.tokens >= 80
            assert found.acceptance.accepted >= n
            await stub.EndSessions(pb.EndSessionsRequest(lease=lease, sessions=[address]))
            await stub.Purge(pb.PurgeRequest(lease=lease))
            assert (await stub.Statistics(pb.StatisticsRequest(lease=lease))).index.tokens == 0
            assert (await stub.Close(pb.CloseRequest(lease=lease))).dropped_requests == 0
    assert service.live == (0, 0, 0)


async def test_a_stream_answers_in_order_and_survives_errors(service: Service) -> None:
    async with grpc.aio.insecure_channel(service.address) as channel:
        stub: Any = pb_grpc.DraftingStub(channel)
        lease = await opened(stub)
        step = pb.StepRequest(lease=lease, proposed=[1])
        messages = [
            pb.StreamRequest(id=10, step=step),  # not begun yet
            pb.StreamRequest(id=11, begin=new(lease)),
            pb.StreamRequest(id=12, step=step),
            pb.StreamRequest(id=13),
            pb.StreamRequest(id=14, keep_alive=pb.KeepAliveRequest(lease=lease)),
            pb.StreamRequest(id=15, ingest=pb.IngestRequest(lease=lease, sequences=[b"123"])),
            pb.StreamRequest(id=16, finish=pb.FinishRequest(lease=lease, requests=[1])),
            pb.StreamRequest(
                id=17, end_sessions=pb.EndSessionsRequest(lease=lease, sessions=["s"])
            ),
        ]
        replies = [reply async for reply in stub.Stream(iter(messages))]
    assert [reply.id for reply in replies] == list(range(10, 18))
    assert [reply.WhichOneof("message") for reply in replies] == [
        "error",
        "begin",
        "step",
        "error",
        "keep_alive",
        "error",
        "finish",
        "end_sessions",
    ]
    assert (replies[0].error.reason, replies[0].error.code) == ("UnknownRequestError", 5)
    assert (replies[3].error.reason, replies[3].error.code) == ("InputError", 3)
    assert "sequences[0]" in replies[5].error.message


async def test_a_client_that_does_not_read_is_not_read_from(service: Service) -> None:
    """Thousands of messages wait in the client, not in the service."""
    async with grpc.aio.insecure_channel(service.address) as channel:
        stub: Any = pb_grpc.DraftingStub(channel)
        lease = await opened(stub)
        call = stub.Stream()
        filler = pb.StreamRequest(
            id=1, end_sessions=pb.EndSessionsRequest(lease=lease, sessions=["x" * 200] * 300)
        )
        sent = 0

        async def write() -> None:
            nonlocal sent
            while True:
                await call.write(filler)
                sent += 1

        writer = asyncio.create_task(write())
        await asyncio.sleep(0.5)
        seen = sent
        await asyncio.sleep(0.5)
        assert sent - seen < 50_000  # replies of 4 bytes: the window is large, yet bounded
        writer.cancel()
        call.cancel()
        await asyncio.gather(writer, return_exceptions=True)


async def test_reflection_as_grpcurl_uses_it(service: Service) -> None:
    def call() -> tuple[set[str], str, float]:
        with grpc.insecure_channel(service.address) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            names = set(database.get_services())
            pool = DescriptorPool(database)
            method = pool.FindServiceByName("suffixspec.v1.Drafting").FindMethodByName("Open")
            request = GetMessageClass(method.input_type)(**MODEL)
            invoke: Any = channel.unary_unary(
                "/suffixspec.v1.Drafting/Open",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
            lease: Any = invoke(request)
            return names, method.containing_service.file.name, lease.ttl_seconds

    names, file, seconds = await asyncio.to_thread(call)
    assert {"suffixspec.v1.Drafting", "grpc.health.v1.Health"} <= names
    assert "suffixspec.v1.Generation" not in names  # there is no engine
    assert file == "suffixspec/v1/drafting.proto"
    assert seconds == 60


async def test_health(service: Service) -> None:
    async with grpc.aio.insecure_channel(service.address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        for name in ("", "suffixspec.v1.Drafting"):
            reply = await stub.Check(health_pb2.HealthCheckRequest(service=name))
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        await service.server.drain()
        reply = await stub.Check(health_pb2.HealthCheckRequest(service=""))
        assert reply.status == health_pb2.HealthCheckResponse.NOT_SERVING


Code = grpc.StatusCode
BAD: dict[str, tuple[str, Any, grpc.StatusCode, str]] = {
    "no model": (
        "Open",
        pb.OpenRequest(tokenizer="t", vocab_size=9),
        Code.INVALID_ARGUMENT,
        "model",
    ),
    "no tokenizer": (
        "Open",
        pb.OpenRequest(model="m", vocab_size=9),
        Code.INVALID_ARGUMENT,
        "tokenizer",
    ),
    "no vocabulary": (
        "Open",
        pb.OpenRequest(model="m", tokenizer="t"),
        Code.INVALID_ARGUMENT,
        "vocab_size",
    ),
    "endless lease": (
        "Open",
        pb.OpenRequest(**MODEL, ttl_seconds=1e9),
        Code.INVALID_ARGUMENT,
        "ttl_seconds",
    ),
    "unknown lease": ("Step", pb.StepRequest(lease="x"), Code.NOT_FOUND, "lease"),
    "no lease": ("Begin", pb.BeginRequest(), Code.NOT_FOUND, "lease"),
    "empty prompt": ("Begin", new("", []), Code.INVALID_ARGUMENT, "prompt"),
    "torn prompt": ("Begin", new("", data=b"12345"), Code.INVALID_ARGUMENT, "5 bytes"),
    "negative id": ("Begin", new("", [-1]), Code.INVALID_ARGUMENT, "-1"),
    "foreign id": ("Begin", new("", [VOCAB]), Code.INVALID_ARGUMENT, "vocabulary has 1000"),
    "long prompt": ("Begin", new("", [1] * 501), Code.OUT_OF_RANGE, "501"),
    "unknown base": ("Begin", new("", base=7), Code.FAILED_PRECONDITION, "base"),
    "too many": (
        "Begin",
        pb.BeginRequest(requests=[new("", request=n).requests[0] for n in range(5)]),
        Code.RESOURCE_EXHAUSTED,
        "requests",
    ),
    "unknown request": ("Step", pb.StepRequest(proposed=[3]), Code.NOT_FOUND, "request 3"),
    "finish unknown": ("Finish", pb.FinishRequest(requests=[3]), Code.NOT_FOUND, "request 3"),
    "long name": (
        "EndSessions",
        pb.EndSessionsRequest(sessions=["x" * 300]),
        Code.INVALID_ARGUMENT,
        "sessions",
    ),
    "torn sequence": (
        "Ingest",
        pb.IngestRequest(sequences=[b"1"]),
        Code.INVALID_ARGUMENT,
        "sequences[0]",
    ),
}


@pytest.mark.parametrize("case", BAD)
async def test_bad_input(service: Service, case: str) -> None:
    method, message, code, text = BAD[case]
    async with grpc.aio.insecure_channel(service.address) as channel:
        stub: Any = pb_grpc.DraftingStub(channel)
        lease = await opened(stub)
        sent = type(message)()
        sent.CopyFrom(message)
        if "lease" not in case and method != "Open":
            sent.lease = lease
        with pytest.raises(grpc.RpcError) as caught:
            await getattr(stub, method)(sent)
        assert caught.value.code() is code
        assert text in str(caught.value.details())
        assert type(error_of(caught.value)).__name__ in dict(_reasons(caught.value))
        assert service.live == (1, 0, 0)
        await stub.Close(pb.CloseRequest(lease=lease))


def _reasons(error: grpc.RpcError) -> list[tuple[str, str]]:
    from google.rpc import error_details_pb2, status_pb2

    metadata: Any = error.trailing_metadata()
    (details,) = [value for key, value in metadata if key == DETAILS]
    found = []
    for packed in status_pb2.Status.FromString(details).details:
        info = error_details_pb2.ErrorInfo()
        if packed.Unpack(info):
            found.append((info.reason, info.domain))
    assert [domain for _, domain in found] == ["suffixspec"]
    return found


async def test_a_message_that_is_too_large() -> None:
    async with (
        running(max_body_bytes=10_000) as service,
        grpc.aio.insecure_channel(service.address) as channel,
    ):
        stub: Any = pb_grpc.DraftingStub(channel)
        lease = await opened(stub)
        with pytest.raises(grpc.RpcError) as caught:
            await stub.Begin(new(lease, [1] * 3000))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await stub.Begin(new(lease))).context_tokens


async def test_keys() -> None:
    async with (
        running(api_keys=KEYS) as service,
        grpc.aio.insecure_channel(service.address) as channel,
    ):
        stub: Any = pb_grpc.DraftingStub(channel)
        for bad in ((), (("authorization", "Bearer sk-wrong"),), (("authorization", "x"),)):
            with pytest.raises(grpc.RpcError) as caught:
                await opened(stub, metadata=bad)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            with pytest.raises(grpc.RpcError) as caught:
                async for _ in stub.Stream(iter([pb.StreamRequest()]), metadata=bad):
                    pass
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        lease = await opened(stub, metadata=ANNE)
        text = np.arange(1, 101, dtype=np.int32)
        await stub.Ingest(pb.IngestRequest(lease=lease, sequences=[text.tobytes()]), metadata=ANNE)
        with pytest.raises(grpc.RpcError) as caught:  # another tenant's lease is not there
            await stub.KeepAlive(pb.KeepAliveRequest(lease=lease), metadata=BOB)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        other = await opened(stub, metadata=BOB)
        await stub.Begin(new(other, text[:40]), metadata=BOB)
        drafts = await stub.Step(pb.StepRequest(lease=other, proposed=[1]), metadata=BOB)
        assert list(drafts.lengths) == [0]
        health: Any = health_pb2_grpc.HealthStub(channel)  # needs no key
        await health.Check(health_pb2.HealthCheckRequest())


async def test_a_revoked_key_does_not_live_on_in_a_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("suffixspec_service.rpc.drafting_servicer._KEY_AGAIN_S", 0.0)
    async with (
        running(api_keys=KEYS) as service,
        grpc.aio.insecure_channel(service.address) as channel,
    ):
        stub: Any = pb_grpc.DraftingStub(channel)
        lease = await opened(stub, metadata=ANNE)
        call = stub.Stream(metadata=ANNE)
        message = pb.StreamRequest(keep_alive=pb.KeepAliveRequest(lease=lease))
        await call.write(message)
        assert (await call.read()).keep_alive.ttl_seconds == 60
        service.runtime.callers._own = service.runtime.callers._own.without(
            service.runtime.callers._own.keys[0].key_id
        )
        await call.write(message)
        with pytest.raises(grpc.RpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_tls(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    tls = TlsConfig(certificate=made.server, key=made.server_key, client_ca=made.authority)
    root = made.authority.read_bytes()
    async with running(tls=tls) as service:
        mutual = grpc.ssl_channel_credentials(
            root, made.client_key.read_bytes(), made.client.read_bytes()
        )
        async with grpc.aio.secure_channel(service.address, mutual) as channel:
            assert await opened(pb_grpc.DraftingStub(channel))
        for credentials in (
            grpc.ssl_channel_credentials(root),  # shows no certificate of its own
            grpc.ssl_channel_credentials(made.client.read_bytes()),  # does not trust the service's
        ):
            async with grpc.aio.secure_channel(service.address, credentials) as channel:
                with pytest.raises(grpc.RpcError) as caught:
                    await opened(pb_grpc.DraftingStub(channel), timeout=5)
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        async with grpc.aio.insecure_channel(service.address) as channel:
            with pytest.raises(grpc.RpcError):
                await opened(pb_grpc.DraftingStub(channel), timeout=5)


async def test_the_socket_is_its_owners_and_goes(service: Service) -> None:
    assert service.socket is not None
    assert stat.S_IMODE(service.socket.stat().st_mode) == 0o600
    await service.server.stop(0)
    assert not service.socket.exists()


async def test_where_it_cannot_listen(service: Service, tmp_path: Path) -> None:
    taken = service.server.port
    runtime = service.runtime
    for config, text in (
        (ServiceConfig(grpc_port=taken), "grpc_port"),
        (ServiceConfig(grpc_port=None), "neither a port nor grpc_socket"),
        (ServiceConfig(grpc_port=None, grpc_socket=tmp_path / "no" / "s"), "grpc_socket"),
        (ServiceConfig(host="0.0.0.0", grpc_port=0), "API keys"),
    ):
        with pytest.raises(ConfigError, match=text):
            await serve_grpc(runtime, config)


async def test_draining_ends_idle_streams_and_finishes_what_runs(service: Service) -> None:
    async with grpc.aio.insecure_channel(service.address) as channel:
        stub: Any = pb_grpc.DraftingStub(channel)
        lease = await opened(stub)
        call = stub.Stream()
        await call.write(pb.StreamRequest(id=1, begin=new(lease)))
        assert (await call.read()).begin.context_tokens
        service.runtime.drafting.stop()
        began = asyncio.get_running_loop().time()
        await service.server.stop(20)
        assert asyncio.get_running_loop().time() - began < 5
        with pytest.raises(grpc.RpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(grpc.RpcError) as caught:
            await opened(stub, timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_calls_are_counted(service: Service) -> None:
    async with grpc.aio.insecure_channel(service.address) as channel:
        stub: Any = pb_grpc.DraftingStub(channel)
        lease = await opened(stub)
        with pytest.raises(grpc.RpcError):
            await stub.Step(pb.StepRequest(lease=lease, proposed=[1]))
    value = service.runtime.monitor.registry.get_sample_value
    handled = "grpc_server_handled_total"
    assert value(handled, {"grpc_method": "Open", "grpc_code": "OK"}) == 1
    assert value(handled, {"grpc_method": "Step", "grpc_code": "NOT_FOUND"}) == 1


@pytest.mark.parametrize("how", ["cancel", "deadline"])
async def test_a_beginning_that_nobody_waits_for_is_undone(service: Service, how: str) -> None:
    async with grpc.aio.insecure_channel(service.address) as channel:
        stub: Any = pb_grpc.DraftingStub(channel)
        lease = await opened(stub)
        (space,) = service.runtime.spaces.all()
        assert space.index is not None
        release = threading.Event()
        blocked = asyncio.get_running_loop().run_in_executor(None, held, space.index, release)
        await asyncio.sleep(0.1)
        call = stub.Begin(new(lease), timeout=0.3 if how == "deadline" else None)
        await asyncio.sleep(0.2)
        if how == "cancel":
            call.cancel()
        code = await call.code()
        assert code is (Code.CANCELLED if how == "cancel" else Code.DEADLINE_EXCEEDED)
        await asyncio.sleep(0.1)
        release.set()
        await blocked
        async with asyncio.timeout(10):
            while service.live != (1, 0, 0) or not service.records:
                await asyncio.sleep(0.02)
        assert [record.status for record in service.records] == ["cancelled"]
        assert (await stub.Begin(new(lease))).context_tokens


def held(index: Any, release: threading.Event) -> None:
    """Keep others out of an index, as a long insertion would."""
    with index._lock.writing():
        release.wait(20)


async def test_an_unforeseen_error_tells_nothing(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(service.runtime.drafting, "keep_alive", broken)
    async with grpc.aio.insecure_channel(service.address) as channel:
        stub: Any = pb_grpc.DraftingStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            await stub.KeepAlive(pb.KeepAliveRequest())
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in str(caught.value.details())
