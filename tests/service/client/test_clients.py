from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suffixspec_index.draft import DraftBatch
from suffixspec_index.errors import (
    AuthenticationError,
    DeadlineError,
    InputError,
    LimitExceededError,
    TokenError,
    UnavailableError,
    UnknownRequestError,
)
from suffixspec_index.proposers.suffix import SuffixProposer
from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_service.client import AsyncDraftClient, ClientRequest, DraftClient, RemoteProposer
from suffixspec_service.config import TlsConfig
from suffixspec_service.drafting import DraftingConfig
from tests.service.grpc_service import MODEL, VOCAB, Service, phrases, running
from tests.service.rpc.certificates import make_certificates

TRANSPORTS = ("stream", "unary")
TREES = SpeculativeConfig(draft_shape="tree")


class InThread:
    """A blocking client with an asynchronous face, so that both clients pass the same tests."""

    def __init__(self, address: str, **options: Any) -> None:
        self._make = lambda: DraftClient(address, **options)

    async def __aenter__(self) -> Any:
        client = self.client = await asyncio.to_thread(self._make)

        class Face:
            def __getattr__(self, name: str) -> Any:
                value = getattr(client, name)
                if not callable(value):
                    return value
                return lambda *args, **kwargs: asyncio.to_thread(value, *args, **kwargs)

        return Face()

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.client.close)


CLIENTS: dict[str, Callable[..., Any]] = {"async": AsyncDraftClient, "blocking": InThread}
every_client = pytest.mark.parametrize("kind", CLIENTS)
every_transport = pytest.mark.parametrize("transport", TRANSPORTS)


class Drive:
    """An engine's loop over texts, the same for a client and for the oracle beside it."""

    def __init__(self, client: Any, oracle: SuffixProposer) -> None:
        self.client, self.oracle = client, oracle
        self.accepted = 0

    async def turn(
        self,
        texts: dict[str, np.ndarray[Any, Any]],
        between: Callable[[int], Awaitable[None]] | None = None,
        *,
        compare: bool = True,
    ) -> None:
        """One request per session: half the text is the prompt, the other half is said."""
        rows: dict[str, ClientRequest] = {}
        handles: dict[str, int] = {}
        at: dict[str, int] = {}
        for session, text in texts.items():
            at[session] = len(text) // 2
            rows[session] = await self.client.begin(session, text[: at[session]], max_tokens=500)
            handles[session] = self.oracle.begin(session, text[: at[session]], max_tokens=500)
        gained: list[tuple[ClientRequest, Any]] = []
        live = list(texts)
        step = 0
        while live:
            if between is not None:
                await between(step)
            step += 1
            drafts = await self.client.step(gained, [rows[s] for s in live], [9])
            wanted = self.oracle.propose_batch([handles[s] for s in live], [9] * len(live))
            if compare:
                assert_equal(drafts, wanted)
            gained = []
            for session, draft in zip(list(live), drafts, strict=True):
                text = texts[session]
                rest = text[at[session] :]
                good = len(draft.accepted_by(rest))
                said = rest[: good + 1]
                self.accepted += good
                at[session] += len(said)
                gained.append((rows[session], said))
                self.oracle.advance(handles[session], said)
                if at[session] == len(text):
                    live.remove(session)
        await self.client.step(gained)
        await self.client.finish(list(rows.values()))
        for handle in handles.values():
            self.oracle.finish(handle)


def assert_equal(found: DraftBatch, wanted: DraftBatch) -> None:
    for name in ("offsets", "token_ids", "parents", "sources", "match_lens"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
    np.testing.assert_allclose(found.probs, wanted.probs, rtol=1e-5)


def texts_of(turn: int) -> dict[str, Any]:
    """Texts of three sessions; each goes on from the one of the turn before."""
    return {f"s{n}": phrases(n, 240 + 200 * turn) for n in range(3)}


@every_client
@every_transport
@pytest.mark.parametrize("config", [SpeculativeConfig(), TREES], ids=["path", "tree"])
async def test_drafts_are_those_of_a_proposer_of_ones_own(
    kind: str, transport: str, config: SpeculativeConfig
) -> None:
    async with running(speculative=config, socket=True) as service:
        address = service.server.addresses[transport == "stream"]
        async with CLIENTS[kind](address, **MODEL, transport=transport) as client:
            drive = Drive(client, SuffixProposer(config, vocab_size=VOCAB))
            for turn in range(3):
                await drive.turn(texts_of(turn))
            assert drive.accepted > 100
            found = await client.statistics()
            assert found.finished_requests == 9
            assert found.acceptance.accepted == drive.accepted
            await client.end_session("s0")
            assert (await client.statistics()).open_sessions == 2
        assert service.live == (0, 0, 0)
        assert sum(record.accepted for record in service.records) == drive.accepted


@every_client
@every_transport
async def test_a_client_goes_on_after_a_restart(kind: str, transport: str) -> None:
    """The service loses everything in mid-turn; the client tells it again what it has open."""
    config = SpeculativeConfig()
    async with running(speculative=config) as first:
        port = first.server.port
        assert port is not None
        options = {"transport": transport, "timeout": 5.0, "resume_seconds": 20.0}
        async with CLIENTS[kind](first.address, **MODEL, **options) as client:
            drive = Drive(client, SuffixProposer(config, vocab_size=VOCAB))
            await drive.turn(texts_of(0))
            restarted: list[Any] = []

            async def restart(step: int) -> None:
                if step == 4:
                    await first.server.stop(0)
                    context = running(speculative=config, port=port)
                    restarted.extend((context, await context.__aenter__()))

            # What was learned before is gone, so drafts differ from the oracle's from here on.
            await drive.turn(texts_of(1), restart, compare=False)
            context, second = restarted
            try:
                assert second.live[:2] == (1, 0)
                index = second.runtime.spaces.all()[0].index.statistics()
                # Whole outputs, though half of each was said before the restart.
                assert (index.sequences, index.tokens) == (3, 3 * 220)
                fresh = Drive(client, SuffixProposer(config, vocab_size=VOCAB))
                await fresh.turn({"new": phrases(9, 200)}, compare=False)
            finally:
                await client.purge()
                await context.__aexit__(None, None, None)
                # The client's close has nobody to talk to any more, which is fine.


async def test_a_lost_lease_is_replaced() -> None:
    """What ran out while the engine slept is begun again, and what it held is not held twice."""
    async with running(drafting=DraftingConfig(lease_seconds=600)) as service:
        async with AsyncDraftClient(service.address, **MODEL) as client:
            text = phrases(1, 100)
            request = await client.begin("s", text)
            await client.step([(request, [5, 6])])
            (lease,) = service.runtime.drafting._leases.all()
            lease.expires_at = 0.0
            await asyncio.sleep(1.3)  # the service looks every second
            assert service.live == (0, 0, 0)
            await client.step([(request, [7])], [request])
            assert service.live == (1, 1, 1)
            assert client.terms.lease != lease.id
            index = service.runtime.spaces.all()[0].index
            assert index is not None
            context = index.session_context("drafting/s")
            assert context is not None
            assert context.tolist() == [*text.tolist(), 5, 6, 7]
        assert [record.status for record in service.records] == ["abandoned", "cancelled"]


async def test_the_lease_is_kept_while_the_engine_rests() -> None:
    async with running() as service:
        for kind in CLIENTS.values():
            async with kind(service.address, **MODEL, ttl_seconds=0.6) as client:
                await client.begin("s", [1, 2, 3])
                lease = client.terms.lease
                await asyncio.sleep(2.0)
                assert service.live == (1, 1, 1)
                assert client.terms.lease == lease


@every_client
async def test_a_later_prompt_sends_only_what_is_new(kind: str) -> None:
    async with running() as service, CLIENTS[kind](service.address, **MODEL) as client:
        text = phrases(1, 400)
        request = await client.begin("s", text[:300])
        await client.step([(request, text[300:350])])
        await client.finish([request])
        seen: list[Any] = []
        begin = service.runtime.drafting.begin

        def spy(tenant: Any, lease: str, requests: Any) -> list[int]:
            seen.extend(requests)
            return begin(tenant, lease, requests)

        service.runtime.drafting.begin = spy  # type: ignore[method-assign, assignment]
        request = await client.begin("s", text)
        assert [(r.base, len(r.prompt)) for r in seen] == [(350, 50)]
        await client.finish([request])
        # The service has forgotten the session: the whole prompt goes after all.
        space = service.runtime.spaces.all()[0]
        space.proposer.end_session("drafting/s")
        seen.clear()
        request = await client.begin("s", text)
        assert [(r.base, len(r.prompt)) for r in seen] == [(400, 0), (0, 400)]


@every_client
@every_transport
async def test_errors_name_what_is_wrong_and_change_nothing(kind: str, transport: str) -> None:
    limits = DraftingConfig(max_requests=2)
    async with (
        running(drafting=limits) as service,
        CLIENTS[kind](service.address, **MODEL, transport=transport) as client,
    ):
        request = await client.begin("s", [1, 2, 3])
        for bad in ([VOCAB], [-1], [1.5], "text"):
            with pytest.raises(TokenError, match="prompt"):
                await client.begin("t", bad)
            with pytest.raises(TokenError, match="token_ids"):
                await client.step([(request, bad)])
        with pytest.raises(InputError, match="session_id"):
            await client.begin(7, [1])
        with pytest.raises(InputError, match="session"):
            await client.begin("", [1])
        with pytest.raises(InputError, match="limits"):
            await client.step([(request, [4])], [request], [1, 2])
        with pytest.raises(InputError, match="twice"):
            await client.step([], [request, request])
        with pytest.raises(InputError, match="must be what begin returned"):
            await client.step([(1, [4])])
        assert request.output.tolist() == []
        await client.begin("u", [1])
        with pytest.raises(LimitExceededError) as caught:
            await client.begin("v", [1])
        assert caught.value.retry_after > 0
        await client.finish([request])
        with pytest.raises(UnknownRequestError):
            await client.step([], [request])
        assert len(client.requests) == 1
        assert service.live == (1, 1, 1)


@every_client
async def test_who_cannot_be_reached(kind: str) -> None:
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1"):
        async with CLIENTS[kind]("127.0.0.1:1", **MODEL):
            pass
    async with running(api_keys=("anne:sk-suffixspec-anne-0123456789",)) as service:
        for key in (None, "sk-suffixspec-wrong"):
            with pytest.raises(AuthenticationError):
                async with CLIENTS[kind](service.address, **MODEL, api_key=key):
                    pass
        key = "sk-suffixspec-anne-0123456789"
        async with CLIENTS[kind](service.address, **MODEL, api_key=key) as client:
            await client.begin("s", [1])
        assert "anne" not in repr(client)


@every_client
@every_transport
async def test_a_service_that_goes_away_for_good(kind: str, transport: str) -> None:
    async with running() as service:
        options = {"resume_seconds": 0.0, "transport": transport}
        async with CLIENTS[kind](service.address, **MODEL, **options) as client:
            request = await client.begin("s", [1, 2, 3])
            await service.server.stop(0)
            with pytest.raises(UnavailableError):
                await client.step([], [request])


@every_client
@every_transport
async def test_a_late_answer(kind: str, transport: str) -> None:
    """The client does not know whether it counts, so it begins anew with what it knows."""
    async with running() as service:
        options = {"timeout": 0.5, "transport": transport}
        async with CLIENTS[kind](service.address, **MODEL, **options) as client:
            request = await client.begin("s", [1, 2, 3])
            index = service.runtime.spaces.all()[0].index
            assert index is not None
            release = threading.Event()
            blocked = asyncio.get_running_loop().run_in_executor(None, held, index, release)
            await asyncio.sleep(0.1)
            began = asyncio.get_running_loop().time()
            with pytest.raises(DeadlineError, match=r"within 0\.5 s"):
                await client.step([(request, [4])])
            assert asyncio.get_running_loop().time() - began < 3
            release.set()
            await blocked
            await client.step([(request, [5])], [request])
            context = index.session_context("drafting/s")
            assert context is not None
            assert context.tolist() == [1, 2, 3, 4, 5]
            assert service.live == (1, 1, 1)


def held(index: Any, release: threading.Event) -> None:
    """Keep others out of an index, as a long insertion would."""
    with index._lock.writing():
        release.wait(20)


async def test_the_event_loop_goes_on_while_an_index_is_busy() -> None:
    async with running() as service, AsyncDraftClient(service.address, **MODEL) as client:
        request = await client.begin("s", [1, 2, 3])
        index = service.runtime.spaces.all()[0].index
        release = threading.Event()
        blocked = asyncio.get_running_loop().run_in_executor(None, held, index, release)
        await asyncio.sleep(0.1)
        waiting = asyncio.create_task(client.step([(request, [4])], [request]))
        async with AsyncDraftClient(service.address, **MODEL | {"model": "other"}) as other:
            mine = await other.begin("s", [1, 2])
            assert len(await other.step([], [mine])) == 1
        assert not waiting.done()
        release.set()
        assert len(await waiting) == 1
        await blocked


async def test_calls_overlap_and_take_effect_in_order() -> None:
    async with running() as service, AsyncDraftClient(service.address, **MODEL) as client:
        text = phrases(1, 400)
        request = await client.begin("s", text[:100])
        steps = [client.step([(request, [token])]) for token in text[100:]]
        await asyncio.gather(*steps)
        index = service.runtime.spaces.all()[0].index
        assert index is not None
        context = index.session_context("drafting/s")
        assert context is not None
        assert context.tolist() == text.tolist()


async def test_many_clients_at_once() -> None:
    async with running(socket=True) as service:

        async def work(number: int) -> None:
            address = service.server.addresses[number % 2]
            options = {"transport": TRANSPORTS[number % 2], "adapter": f"a{number % 3}"}
            async with AsyncDraftClient(address, **MODEL, **options) as client:
                for turn in range(3):
                    requests = [
                        await client.begin(f"{number}-{n}", phrases(n, 100 + 50 * turn))
                        for n in range(4)
                    ]
                    for step in range(10):
                        gained = [(request, [step + 1]) for request in requests]
                        assert len(await client.step(gained, requests)) == 4
                    await client.finish(requests)

        await asyncio.gather(*(work(number) for number in range(12)))
        assert service.live == (0, 0, 0)
        assert len(service.records) == 144
        assert all(record.steps == 10 for record in service.records)
        for space in service.runtime.spaces.all():
            assert space.index is not None
            space.index.check_integrity()


async def test_a_cancelled_beginning_leaves_nothing_behind() -> None:
    async with running() as service, AsyncDraftClient(service.address, **MODEL) as client:
        kept = await client.begin("kept", [1, 2, 3])
        index = service.runtime.spaces.all()[0].index
        release = threading.Event()
        blocked = asyncio.get_running_loop().run_in_executor(None, held, index, release)
        await asyncio.sleep(0.1)
        begin = asyncio.create_task(client.begin("cancelled", phrases(1, 50)))
        await asyncio.sleep(0.1)
        begin.cancel()
        with pytest.raises(asyncio.CancelledError):
            await begin
        release.set()
        await blocked
        assert client.requests == [kept]
        await client.step([(kept, [4])], [kept])
        assert service.live == (1, 1, 1)


async def test_a_vanished_client() -> None:
    """Its process is gone without a word: the lease runs out."""
    async with running() as service:
        client = AsyncDraftClient(service.address, **MODEL, ttl_seconds=0.5)
        await client.connect()
        request = await client.begin("s", phrases(1, 50))
        await client.step([(request, [1])], [request])
        assert client._keeper is not None
        client._keeper.cancel()
        assert client._transport is not None
        await client._transport.close()
        await gone(service)
        assert [record.status for record in service.records] == ["abandoned"]


async def gone(service: Service) -> None:
    async with asyncio.timeout(10):
        while service.live != (0, 0, 0):
            await asyncio.sleep(0.05)


async def test_tls(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    tls = TlsConfig(certificate=made.server, key=made.server_key, client_ca=made.authority)
    async with running(tls=tls) as service:
        own = {"certificate": made.client, "certificate_key": made.client_key}
        for kind in CLIENTS.values():
            options = {"tls": True, "ca": made.authority, **own}
            async with kind(service.address, **MODEL, **options) as client:
                assert client.terms.ttl_seconds == 60
            with pytest.raises(UnavailableError):
                async with kind(service.address, **MODEL, tls=True, ca=made.authority):
                    pass


async def test_a_remote_proposer_is_a_proposer() -> None:
    config = SpeculativeConfig()
    async with running(speculative=config, socket=True) as service:

        def drive() -> int:
            with DraftClient(service.server.addresses[1], **MODEL) as client:
                remote = RemoteProposer(client)
                own = SuffixProposer(config, vocab_size=VOCAB)
                accepted = 0
                for turn in range(3):
                    texts = [phrases(n, 300 + turn) for n in range(3)]
                    mine, theirs = (
                        [run(proposer, f"s{n}", text) for n, text in enumerate(texts)]
                        for proposer in (own, remote)
                    )
                    assert mine == theirs
                    accepted += sum(mine)
                with pytest.raises(UnknownRequestError):
                    remote.advance(999, [1])
                remote.end_session("s1")
                handle = remote.begin("s1", [1, 2, 3])
                remote.finish(handle, keep=False)
                return accepted

        assert await asyncio.to_thread(drive) > 100


def run(proposer: Any, session: str, text: np.ndarray[Any, Any]) -> int:
    """Decode a text with a proposer; returns how many drafted tokens were accepted."""
    handle = proposer.begin(session, text[:100], max_tokens=len(text) - 100)
    at, accepted = 100, 0
    while at < len(text):
        draft = proposer.propose(handle, 8)
        good = len(draft.accepted_by(text[at:]))
        accepted += good
        said = text[at : at + good + 1]
        at += len(said)
        proposer.advance_batch([handle], said, [0, len(said)])
    proposer.finish(handle)
    return accepted
